"""FedGMC: graph federated learning via dual manifold calibration.

Source: "Beyond Rigid Alignment: Graph Federated Learning via Dual Manifold Calibration". Equation numbers are
the paper's. Symbols: M clients, C classes, p width, B sampled nodes, Q templates.

Each client minimises (equation 74)

    L_m = CE_m + w_se L_se + w_st L_st
    L_se = mean over training nodes of ||R_m h_v - d_{y_v}||^2                      (3)
    L_st = (1/B_m) sum_{b,q} F_m[b,q] W_2^2(mu_{m,b}, nu_q)                         (4-7)

R_m solves the orthogonal Procrustes problem between the client's class means and the anchors; F_m is a
Sinkhorn plan between B_m sampled neighbourhoods mu and the templates nu. The server refines the anchors (8)
and the templates (9) from what the clients upload.

Choices where the paper is silent or cannot be meant literally:

- Weights: `aggregation` says how they travel. The default `fedopt` reaches the paper's accuracy; `fedavg` and
  `none` do not (see docs/fedgmc.md).
- Only training labels are used; taken literally, equation 3 also uses those of validation and test nodes.
- Equation 3 multiplies h R where the Procrustes line needs R h; R h is used.
- The loss weights are 0.1 instead of 1; `literal_weights` sets them to the published 1.
- The classifier reads the client's own embedding; with `classifier_frame=anchors` it reads R_m h, R_m z_1 and
  R_m z_2 in the span of the client's class means, so that clients in different frames can share it.
- COMBINE: r_1 = normalise(Z1), r_2 = normalise((Z1 + Z2) / 2), or r_2 = r_1 where the 2-hop ring is empty.
- Uploads: sums that suffice to refine the templates (`template_upload=stats`), or the radial pairs and the
  plan as published (`raw`). Both give the same templates.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedatlas.algorithms import procrustes, simplex, templates, transport
from fedatlas.algorithms.aggregation import Aggregation, Shared
from fedatlas.algorithms.backbones import Representation
from fedatlas.algorithms.optimizer import AdamState
from fedatlas.algorithms.search_spaces import among, log_between
from fedatlas.algorithms.templates import TemplateRule
from fedatlas.algorithms.weight_sharing import (
    SharedClient,
    SharedServer,
    WeightSharing,
    WeightSharingConfiguration,
)
from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.contract import MethodConfiguration
from fedatlas.platform.federation.messages import Broadcast, Tensors, Upload
from fedatlas.platform.federation.phases import CALIBRATION, REFINEMENT, phase
from fedatlas.platform.federation.state import transient


class FedGMCConfiguration(WeightSharingConfiguration):
    """Defaults of FedGMC; per data set they are in `presets.yaml`."""

    aggregation: Aggregation = Field("fedopt", description="how shared weights travel")
    shared: Shared = Field("all_but_bias", description="which parameters travel")
    semantic: bool = Field(True, description="semantic calibration (False: w/o Semantic)")
    structural: bool = Field(True, description="structural calibration (False: w/o Structural)")
    refinement: bool = Field(True, description="refinement by the server (False: w/o Refinement)")
    semantic_weight: float = Field(0.1, ge=0, description="w_se", json_schema_extra=log_between(0.001, 1.0))
    structural_weight: float = Field(0.1, ge=0, description="w_st", json_schema_extra=log_between(0.001, 1.0))
    literal_weights: bool = Field(False, description="w_se = w_st = 1 as published")
    templates: int = Field(
        64, ge=1, description="number of structural templates Q", json_schema_extra=among(16, 32, 64, 128)
    )
    sampled_nodes: int = Field(
        64, ge=1, description="nodes sampled per client and round B", json_schema_extra=among(16, 32, 64, 128)
    )
    tau: float = Field(
        1.0,
        gt=0,
        description="temperature of the difficulty weights",
        json_schema_extra=log_between(0.1, 5.0),
    )
    eta: float = Field(
        0.1, gt=0, description="largest step of an anchor per round", json_schema_extra=log_between(0.01, 0.5)
    )
    classifier_frame: Literal["client", "anchors"] = Field(
        "client", description="what the classifier reads: the embedding, or R_m times each of its parts"
    )
    epsilon: float = Field(0.02, gt=0, description="entropic regularisation of the plan")
    sinkhorn_iterations: int = Field(15, ge=1, description="pairs of Sinkhorn scalings")
    template_rule: TemplateRule = Field("closest", description="how templates are refined")
    template_upload: Literal["stats", "raw"] = Field("stats", description="what is sent for templates")

    @model_validator(mode="after")
    def _has_one_ring_of_each_kind(self) -> FedGMCConfiguration:
        if self.propagation != 1:
            raise ValueError("FedGMC reads one 1-hop and one 2-hop ring: propagation must be 1")
        if self.classifier_frame == "anchors" and not self.semantic:
            raise ValueError("classifier_frame=anchors needs the rotation of semantic=true")
        return self

    def weight(self, part: Literal["semantic", "structural"]) -> float:
        """Loss weight of a part; 0 if it is switched off."""
        if not getattr(self, part):
            return 0.0
        return 1.0 if self.literal_weights else float(getattr(self, f"{part}_weight"))


@dataclass
class FedGMCServer(SharedServer):
    """Adds anchors Delta [p, C], templates T [Q, 2, p] and what the last refinement reported."""

    anchors: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))
    templates: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))
    capped_share: float = 0.0
    usage_entropy: float = 1.0


@dataclass
class FedGMCClient(SharedClient):
    """Adds the received anchors and templates (the same for all clients, never saved) and diagnostics."""

    anchors: Tensor | None = transient()
    templates: Tensor | None = transient()
    geometry: Mapping[str, Tensor] | None = transient()


class FedGMC(WeightSharing[FedGMCConfiguration, FedGMCServer, FedGMCClient]):
    """Dual manifold calibration; with both parts off it equals FedAvg, FedOpt or Local on its backbone.

    Uploads per client: shared weights, K [p, C], alignment losses and counts [C], and per template mass, gap
    and two matched sums (2p + 2 numbers), or raw radials [B, 2, p] and the plan [B, Q].
    """

    name: ClassVar[str] = "fedgmc"
    title: ClassVar[str] = "FedGMC"
    partial_participation: ClassVar[bool] = True
    note: ClassVar[str] = "loss weights below the published 1, training labels only"
    uploads: ClassVar[frozenset[str]] = WeightSharing.uploads | {"semantic", "structural"}
    meanings: ClassVar[Mapping[str, str]] = {
        "semantic": "class means, alignment losses and counts of the classes",
        "structural": "sums over sampled neighbourhoods for every template",
    }
    downloads: ClassVar[frozenset[str]] = WeightSharing.downloads | {"anchors", "templates"}
    default_backbone: ClassVar[str | None] = "h2gcn"
    backbones: ClassVar[tuple[str, ...] | None] = ("h2gcn",)
    configuration_type: ClassVar[type[MethodConfiguration]] = FedGMCConfiguration

    # Server side

    def init(self, task: Task) -> FedGMCServer:
        configuration = self.configuration
        server = super().init(task)
        return dataclasses.replace(
            server,
            anchors=simplex.simplex_anchors(configuration.hidden, task.classes, task.seed),
            templates=templates.random_templates(configuration.templates, configuration.hidden, task.seed),
        )

    def broadcast(self, server: FedGMCServer, round_number: int) -> Broadcast:
        precision = next(iter(server.weights.values())).dtype if server.weights else torch.float32
        fields = dict(super().broadcast(server, round_number).common)
        if self.configuration.semantic:
            fields["anchors/anchors"] = server.anchors.to(precision)
        if self.configuration.structural:
            fields["templates/templates"] = server.templates.to(precision)
        return Broadcast(fields)

    def aggregate(self, server: FedGMCServer, upload: Upload, round_number: int) -> FedGMCServer:
        server = super().aggregate(server, upload, round_number)
        with phase(REFINEMENT):
            return self._refined(server, upload)

    def _refined(self, server: FedGMCServer, upload: Upload) -> FedGMCServer:
        configuration, fields = self.configuration, upload.fields
        if configuration.semantic and configuration.refinement:
            step = simplex.refine_anchors(
                server.anchors,
                fields["semantic/means"],
                fields["semantic/losses"],
                fields["semantic/counts"],
                configuration.tau,
                configuration.eta,
            )
            server = dataclasses.replace(server, anchors=step.anchors, capped_share=step.capped_share)
        if configuration.structural:
            assigned = self._assigned(server, fields)
            refined = server.templates
            if configuration.refinement:
                refined = templates.refine_templates(refined, assigned, configuration.template_rule)
            server = dataclasses.replace(
                server, templates=refined, usage_entropy=templates.usage_entropy(assigned.mass)
            )
        return server

    def diagnostics(self, server: FedGMCServer) -> dict[str, float]:
        figures: dict[str, float] = {}
        if self.configuration.semantic:
            figures["geometry/gram_error"] = simplex.gram_error(server.anchors)
            figures["geometry/capped_share"] = server.capped_share
        if self.configuration.structural:
            figures["geometry/template_cosine"] = templates.mean_cosine(server.templates)
            figures["geometry/usage_entropy"] = server.usage_entropy
        return figures

    # Protected uploads

    def additive(self) -> frozenset[str]:
        """Everything, since anchors and templates are refined by sums; raw radials and plans are not."""
        raw = self.configuration.structural and self.configuration.template_upload == "raw"
        return frozenset({"weights", "size", "semantic"} | (set() if raw else {"structural"}))

    def addends(self, upload: Upload) -> Upload:
        """Class means and losses times whether the client has the class, and how many clients have it."""
        fields = dict(super().addends(upload).fields)
        if "semantic/counts" in fields:
            has = (fields["semantic/counts"] > 0).double()
            fields["semantic/means"] = fields["semantic/means"].double() * has[:, None, :]
            fields["semantic/losses"] = fields["semantic/losses"].double() * has
            fields["semantic/holders"] = has
        return Upload(fields)

    def combined(self, server: FedGMCServer, sums: Upload) -> Upload:
        fields = dict(super().combined(server, sums).fields)
        holders = fields.pop("semantic/holders", None)
        if holders is not None:
            divisor = holders.clamp(min=1.0)
            fields["semantic/means"] = fields["semantic/means"] / divisor[:, None, :]
            fields["semantic/losses"] = fields["semantic/losses"] / divisor
        return Upload(fields)

    # Client side

    def receive(self, client: FedGMCClient, cohort: Cohort, broadcast: Broadcast) -> None:
        super().receive(client, cohort, broadcast)
        for name in ("anchors", "templates"):
            value = broadcast.common.get(f"{name}/{name}")
            setattr(client, name, None if value is None else value.to(cohort.dtype))

    def represent(
        self, client: FedGMCClient, cohort: Cohort, weights: Tensors, dropout: Dropout | None
    ) -> Representation:
        found = super().represent(client, cohort, weights, dropout)
        if self.configuration.classifier_frame == "client" or client.anchors is None:
            return found
        assert found.ego is not None
        assert found.rings is not None
        turn = self._calibrate(client, cohort, found.ego.detach()).turn
        hidden = torch.cat([turn(part) for part in (found.ego, *found.rings)], dim=2)
        if dropout is not None:
            hidden = dropout.apply("embedding", hidden, self.configuration.dropout)
        logits = torch.baddbmm(weights["classifier.bias"][:, None], hidden, weights["classifier.weight"])
        return dataclasses.replace(found, logits=logits)

    def losses(
        self,
        client: FedGMCClient,
        cohort: Cohort,
        weights: Tensors,
        representation: Representation,
        round_number: int,
    ) -> Mapping[str, Tensor]:
        with phase(CALIBRATION):
            return self._terms(client, cohort, representation, round_number)

    def _terms(
        self, client: FedGMCClient, cohort: Cohort, representation: Representation, round_number: int
    ) -> Mapping[str, Tensor]:
        terms: dict[str, Tensor] = {}
        semantic, structural = self.configuration.weight("semantic"), self.configuration.weight("structural")
        assert representation.ego is not None
        if semantic > 0:
            calibration = self._calibrate(client, cohort, representation.ego.detach())
            distances = procrustes.squared_distances(
                representation.ego, calibration.personal_anchors, cohort.labels
            )
            terms["semantic"] = semantic * cohort.masked_mean(distances, cohort.train)
        if structural > 0:
            sample, drawn = self._sample(cohort, round_number)
            cost = transport.wasserstein_cost(self._radials(representation, sample), client_templates(client))
            plan = self._plan(cost.detach(), drawn)
            count = drawn.sum(dim=1).clamp(min=1).to(cost.dtype)
            terms["structural"] = structural * (plan * cost).sum(dim=(1, 2)) / count
        return terms

    @torch.no_grad()
    def own_upload(self, client: FedGMCClient, cohort: Cohort, round_number: int) -> Tensors:
        """Evaluate once: the logits serve `predict`, the embeddings the calibration."""
        representation = self.represent(client, cohort, client.weights, None)
        client.logits = representation.logits
        fields: Tensors = {}
        geometry: Tensors = {}
        with phase(CALIBRATION):
            if self.configuration.semantic:
                self._semantic_upload(client, cohort, representation, fields, geometry)
            if self.configuration.structural:
                self._structural_upload(client, cohort, representation, round_number, fields, geometry)
        client.geometry = geometry
        return fields

    def own_metrics(self, client: FedGMCClient) -> Tensors:
        return dict(client.geometry or {})

    def snapshot(self, client: FedGMCClient, cohort: Cohort) -> dict[str, Tensor]:
        """`ego` [k, n, p], `predicted` [k, n]; with the parts that are on, calibrated `class_means` [k, p, C]
        with `class_counts` [k, C], and the `radials` [k, n, 2, p] of every node."""
        representation = self.represent(client, cohort, client.weights, None)
        assert representation.ego is not None
        found = {"ego": representation.ego, "predicted": representation.logits.argmax(dim=2)}
        if client.anchors is not None:
            calibration = self._calibrate(client, cohort, representation.ego)
            found["class_means"] = calibration.calibrated_means
            found["class_counts"] = cohort.class_counts()
        if client.templates is not None:
            every = torch.arange(cohort.width, device=cohort.device).expand(len(cohort.clients), -1)
            found["radials"] = self._radials(representation, every)
        return found

    def server_snapshot(self, server: FedGMCServer) -> dict[str, Tensor]:
        """`anchors` [p, C] and `templates` [Q, 2, p]."""
        return {"anchors": server.anchors, "templates": server.templates}

    def _client(self, weights: Tensors, optimizer: AdamState, cohort: Cohort) -> FedGMCClient:
        return FedGMCClient(weights, optimizer)

    def _server(self, weights: Tensors, task: Task) -> FedGMCServer:
        return FedGMCServer(weights)

    # Semantic part

    def _calibrate(self, client: FedGMCClient, cohort: Cohort, ego: Tensor) -> procrustes.Calibration:
        assert client.anchors is not None
        means = procrustes.class_means(ego, cohort.class_indicator(), cohort.class_counts())
        return procrustes.calibrate(means, client.anchors, cohort.class_counts() > 0)

    def _semantic_upload(
        self,
        client: FedGMCClient,
        cohort: Cohort,
        representation: Representation,
        fields: Tensors,
        geometry: Tensors,
    ) -> None:
        assert representation.ego is not None
        calibration = self._calibrate(client, cohort, representation.ego)
        distances = procrustes.squared_distances(
            representation.ego, calibration.personal_anchors, cohort.labels
        )
        counts = cohort.class_counts()
        sums = torch.bmm(distances[:, None], cohort.class_indicator())[:, 0]
        fields["semantic/means"] = calibration.calibrated_means
        fields["semantic/losses"] = sums / counts.clamp(min=1.0)
        fields["semantic/counts"] = counts.to(torch.int32)
        geometry["geometry/procrustes_residual"] = calibration.residual

    # Structural part

    def _sample(self, cohort: Cohort, round_number: int) -> tuple[Tensor, Tensor]:
        """B node indices per client and which of them exist, [k, B]; drawn among nodes with neighbours."""

        def candidates() -> list[np.ndarray]:
            return [np.flatnonzero(np.diff(a.indptr) > 0) for a in cohort.adjacencies]

        count = self.configuration.sampled_nodes
        chosen = np.zeros((len(cohort.clients), count), dtype=np.int64)
        drawn = np.zeros((len(cohort.clients), count), dtype=bool)
        streams = cohort.generators(round_number, "neighbourhoods")
        connected = cohort.keep("connected_nodes", candidates)
        for row, (generator, nodes) in enumerate(zip(streams, connected, strict=True)):
            size = min(count, nodes.size)
            chosen[row, :size] = generator.choice(nodes, size, replace=False)
            drawn[row, :size] = True
        return torch.from_numpy(chosen).to(cohort.device), torch.from_numpy(drawn).to(cohort.device)

    def _radials(self, representation: Representation, sample: Tensor) -> Tensor:
        """Radial pairs of the sampled nodes, unit rows or zero, [k, B, 2, p] (equations 4 to 6)."""
        assert representation.rings is not None
        z1, z2 = representation.rings
        index = sample[..., None].expand(-1, -1, z1.shape[2])
        near = z1.gather(1, index)
        # Normalisation cancels the factor 1/2 of the mean, and an empty 2-hop ring leaves r_2 = r_1.
        pair = torch.stack([near, near + z2.gather(1, index)], dim=2)
        length = pair.norm(dim=3, keepdim=True)
        # A zero vector has no direction; dividing it by a small number would give a huge gradient.
        radials: Tensor = pair / length.masked_fill(length < 1e-8, math.inf)
        return radials

    def _plan(self, cost: Tensor, drawn: Tensor) -> Tensor:
        return transport.sinkhorn(
            cost, self.configuration.epsilon, self.configuration.sinkhorn_iterations, drawn
        )

    def _structural_upload(
        self,
        client: FedGMCClient,
        cohort: Cohort,
        representation: Representation,
        round_number: int,
        fields: Tensors,
        geometry: Tensors,
    ) -> None:
        sample, drawn = self._sample(cohort, round_number)
        radials = self._radials(representation, sample)
        received = client_templates(client)
        plan = self._plan(transport.wasserstein_cost(radials, received), drawn)
        if self.configuration.template_upload == "raw":
            fields["structural/radials"] = radials
            fields["structural/plan"] = plan
        else:
            assigned = templates.statistics(radials, plan, received)
            fields["structural/mass"] = assigned.mass
            fields["structural/gap"] = assigned.gap
            fields["structural/atoms"] = assigned.atoms
        even = drawn.sum(dim=1, keepdim=True) / self.configuration.templates
        geometry["geometry/plan_row_error"] = (plan.sum(dim=2) - drawn.to(plan.dtype)).abs().amax(1)
        geometry["geometry/plan_column_error"] = (
            (plan.sum(dim=1) - even).abs() / even.clamp(min=1e-12)
        ).amax(1) * drawn.any(1)

    def _assigned(self, server: FedGMCServer, fields: Mapping[str, Tensor]) -> templates.TemplateStatistics:
        """Statistics summed over clients, in float64."""
        if self.configuration.template_upload == "raw":
            each = templates.statistics(
                fields["structural/radials"].double(), fields["structural/plan"].double(), server.templates
            )
        else:
            each = templates.TemplateStatistics(
                fields["structural/mass"], fields["structural/gap"], fields["structural/atoms"]
            )
        return templates.TemplateStatistics(
            each.mass.double().sum(0), each.gap.double().sum(0), each.atoms.double().sum(0)
        )


def client_templates(client: FedGMCClient) -> Tensor:
    """The templates that the client received."""
    assert client.templates is not None
    return client.templates
