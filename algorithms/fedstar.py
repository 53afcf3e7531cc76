"""FedStar: clients share what they learn about structure, and keep features to themselves (AAAI 2023)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedatlas.algorithms.backbones import GAT, Representation
from fedatlas.algorithms.backbones.backbone import affine, glorot, linear
from fedatlas.algorithms.backbones.gat import attend, attention
from fedatlas.algorithms.backbones.gin import isomorphic, perceptron
from fedatlas.algorithms.backbones.graph_level import (
    CLASSIFIER,
    INPUT,
    GraphBackbone,
    classified,
    projection,
    union_of,
)
from fedatlas.algorithms.structure import structural_encodings
from fedatlas.algorithms.weight_sharing import (
    SharedClient,
    SharedServer,
    WeightSharing,
    WeightSharingConfiguration,
)
from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.contract import MethodConfiguration
from fedatlas.platform.federation.messages import Tensors
from fedatlas.platform.graphs.graph import Level


class FedStarConfiguration(WeightSharingConfiguration):
    """Defaults of FedStar."""

    aggregation: Literal["fedavg", "none"] = Field("fedavg", description="how shared weights travel")
    walks: int = Field(16, ge=1, le=64, description="random-walk steps of the structure encoding")
    degrees: int = Field(16, ge=1, description="degrees of the structure encoding")


class FedStar(WeightSharing[FedStarConfiguration, SharedServer, SharedClient]):
    """Two channels; only the structure channel is shared (Tan et al., AAAI 2023).

        x_0 = X W_in,   s_0 = S W_s              S: structure encodings, `fedatlas.algorithms.structure`
        x_{l+1} = dropout(act(layer_l([x_l ; s_l])))                      layer of the backbone: GAT or GIN
        s_{l+1} = tanh(A^ s_l V_l + b_l)                                  A^ as in GCN
        z = readout([x_L ; s_L] W_f),   logits = dropout(ReLU(z W_p)) W_c

    `structure.*` travels: W_s, V_l, b_l. All else is private. With 16 walks, 16 degrees, width 64 and three
    layers that is 14,592 numbers. The classifier reads the representation that RepDec decorrelates.

    Compared with SEAL the feature channel is a GAT (our choice: the comparison names a GAT for all methods);
    `backbone=gin` is the published network. `aggregation=none` is Local with this network.
    """

    name: ClassVar[str] = "fedstar"
    title: ClassVar[str] = "FedStar"
    levels: ClassVar[tuple[Level, ...]] = ("graph",)
    partial_participation: ClassVar[bool] = True
    default_backbone: ClassVar[str | None] = "gat"
    backbones: ClassVar[tuple[str, ...] | None] = ("gat", "gin")
    configuration_type: ClassVar[type[MethodConfiguration]] = FedStarConfiguration

    def initialise(self, task: Task) -> Tensors:
        network, p = self._network, self.backbone.hidden
        given = self.configuration
        out = {
            **projection(task, p),
            **linear(task, "structure.input", given.walks + given.degrees, p),
        }
        for layer in range(network.layers):
            name = f"private.feature.{layer}"
            if isinstance(network, GAT):
                out |= attention(task, name, 2 * p, p, network.heads_of(layer))
            else:
                out |= perceptron(task, name, 2 * p, p)
            out[f"structure.{layer}.weight"] = glorot(task, f"structure.{layer}.weight", p, p)
            out[f"structure.{layer}.bias"] = torch.zeros(p)
        return {
            **out,
            **linear(task, "private.fusion", 2 * p, p),
            **linear(task, "private.post", p, p),
            **linear(task, CLASSIFIER, p, task.classes),
        }

    def represent(
        self, client: SharedClient, cohort: Cohort, weights: Tensors, dropout: Dropout | None
    ) -> Representation:
        network = self._network

        def drop(purpose: str, values: Tensor, sizes: list[int] | None = None) -> Tensor:
            return values if dropout is None else dropout.apply(purpose, values, network.dropout, sizes)

        projected = cohort.project(weights[f"{INPUT}.weight"], dropout, network.input_dropout)
        features = projected + weights[f"{INPUT}.bias"][:, None, :]
        structure = affine(self._encodings(cohort), weights, "structure.input")
        graphs = union_of(cohort)
        for layer in range(network.layers):
            name, both = f"private.feature.{layer}", torch.cat([features, structure], dim=2)
            if isinstance(network, GAT):
                features = attend(cohort, both, weights, name, network.heads_of(layer))
            else:
                features = isomorphic(cohort, both, weights, name)
            features = drop(f"hidden.{layer}", network.act(features))
            mixed = cohort.propagate(
                graphs.normalised, torch.bmm(structure, weights[f"structure.{layer}.weight"])
            )
            structure = torch.tanh(mixed + weights[f"structure.{layer}.bias"][:, None, :])
        fused = affine(torch.cat([features, structure], dim=2), weights, "private.fusion")
        embedding = torch.relu(affine(network.pool(fused, cohort), weights, "private.post"))
        read = drop("readout", embedding, [len(ids) for ids in graphs.chosen])
        return classified(embedding, weights, cohort, read)

    @property
    def _network(self) -> GraphBackbone:
        assert isinstance(self.backbone, GraphBackbone)
        return self.backbone

    def _encodings(self, cohort: Cohort) -> Tensor:
        """Structure encodings of a batch's nodes, [k, n, walks + degrees]; those of all graphs are kept."""
        given, whole = self.configuration, cohort.whole
        assert whole is not None

        def build() -> list[np.ndarray]:
            return [structural_encodings(graphs, given.walks, given.degrees) for graphs in whole.unions]

        def stacked() -> Tensor:
            known = whole.keep(f"structural_encodings/{given.walks}/{given.degrees}", build)
            out = np.zeros((len(cohort.clients), cohort.width, given.walks + given.degrees), dtype=np.float32)
            for row, (member, nodes) in enumerate(zip(cohort.clients, cohort.node_ids, strict=True)):
                out[row, : len(nodes)] = known[whole.clients.index(member)][nodes]
            return torch.from_numpy(out).to(cohort.device, cohort.dtype)

        return cohort.keep("structural_encodings", stacked)
