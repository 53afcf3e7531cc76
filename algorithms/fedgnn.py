"""FedGNN for node classification: clients lend each other embeddings of nodes with equal neighbourhoods.

FedGNN (Wu, Wu, Cao, Huang, Xie: arXiv 2102.04925, 2021; FedPerGNN, Nature Communications 2022) recommends
items: each client is a user, a third party matches encrypted items and returns embeddings of other users of
an item. Papers on graph federated learning compare with a version for node classification that they describe
in one sentence: where nodes of different clients have identical neighbourhoods, their embeddings are
transferred and the subgraph is expanded. No definition and no code of it was found. This is our reading.

Matching, once before round 0: every client sends a keyed hash of the multiset of its nodes' neighbours, for
every node with neighbours. Neighbours are told apart by their ids in the whole graph, or by their rounded
features (`matching.py`). Nodes v of client i and u of client j != i match if their keys are equal. The server
tells each client which of its nodes others need, and what its nodes will be joined to.

A round is FedAvg's, besides:

- Client j sends the embeddings of needed nodes after the first layer and its non-linearity, in evaluation
  mode, [o_j, p]; the server keeps them and hands each client i in the next round the rows that it needs,
  [u_i, p]. In round 0 there are none.
- Client i appends, before the second layer, one virtual node for each pair (v, u): it carries u's embedding
  without gradient and dropout and is linked to v in both directions. With a_v of them,

      h2_v = sum_{w in N(v) + v} h1_w W / sqrt(d_v d_w) + sum_u z_u W / sqrt(2 d_v) + b,
      d_v = deg_v + 1 + a_v.

  Virtual nodes have no label and no score.

Choices: where clients share ids (`fingerprint=auto`), that is where at least one pair of keys of ids is
equal, ids decide, else features. An embedding that several nodes of a client match is sent to it once. At
most `cap` matches are kept per node, drawn at random, as the original does per item. Without any match the
method is FedAvg. Clients that share no node match by features only: hardly ever where these are rich, for
most nodes where they take few values (Minesweeper).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import scipy.sparse as sp
import torch
from pydantic import Field
from torch import Tensor

from fedatlas.algorithms import matching
from fedatlas.algorithms.backbones import Representation
from fedatlas.algorithms.backbones.backbone import affine
from fedatlas.algorithms.backbones.gcn import convolve
from fedatlas.algorithms.optimizer import AdamState
from fedatlas.algorithms.weight_sharing import (
    SharedClient,
    SharedServer,
    WeightSharing,
    WeightSharingConfiguration,
)
from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.contract import LocalUpdate, MethodConfiguration
from fedatlas.platform.federation.messages import Broadcast, Ragged, Tensors, Upload
from fedatlas.platform.federation.sparse import SparseMatrix
from fedatlas.platform.federation.state import transient
from fedatlas.platform.randomness import SERVER, stream


class FedGNNConfiguration(WeightSharingConfiguration):
    """Defaults of FedGNN."""

    fingerprint: Literal["auto", "ids", "features"] = Field("auto", description="what tells neighbours apart")
    cap: int = Field(100, ge=1, description="matches kept per node")
    noise: float = Field(0.0, ge=0, description="scale of Laplace noise on sent embeddings")


@dataclass
class FedGNNServer(SharedServer):
    """Adds who needs what, and the embeddings of the last round.

    Attributes:
        seed: of the draws beyond the cap.
        matched: number of nodes with a match, over all clients.
        needed: nodes that each client sends, [o_m], as positions among its connected nodes.
        received: what each client receives, [u_m], as rows of all sent embeddings one after another.
        links: own connected node and received row of each virtual node, [2, q_m].
        embeddings: sent in the last round, [o_m, p]; empty before the first.
    """

    seed: int = 0
    matched: int = 0
    needed: Ragged = ()
    received: Ragged = ()
    links: Ragged = ()
    embeddings: Ragged = ()


@dataclass
class FedGNNClient(SharedClient):
    """Adds what the server found before round 0.

    Attributes:
        needed: nodes whose embeddings are sent, [o_m].
        links: own node and received row of each virtual node, [2, q_m].
        extension: propagation over the extended graph.
        inflow: what virtual nodes bring to the second layer, [k, n, p]; None without any.
    """

    needed: Ragged = ()
    links: Ragged = ()
    extension: Extension | None = transient()
    inflow: Tensor | None = transient()


@dataclass(frozen=True)
class Extension:
    """Symmetric normalisation with self-loops of the graphs with virtual nodes, its rows of real nodes.

    Attributes:
        own: columns of real nodes, [k*n, k*n].
        virtual: columns of virtual nodes, [k*n, sum of u_m]; virtual nodes with one embedding are added up.
    """

    own: SparseMatrix
    virtual: SparseMatrix


class FedGNN(WeightSharing[FedGNNConfiguration, FedGNNServer, FedGNNClient]):
    """FedAvg on GCN in which matched nodes of other clients are neighbours in the second layer.

    Without matches it equals FedAvg. Uploads per client and round: shared weights, embeddings [o_m, p];
    downloads: shared weights, embeddings [u_m, p].
    """

    name: ClassVar[str] = "fedgnn"
    title: ClassVar[str] = "FedGNN"
    note: ClassVar[str] = "our reading: published for recommendation, never defined for node classification"
    uploads: ClassVar[frozenset[str]] = WeightSharing.uploads | {"keys", "embeddings"}
    meanings: ClassVar[Mapping[str, str]] = {
        "keys": "hashes of nodes and their neighbours, by which nodes are matched, before round 0",
        "embeddings": "first-layer embeddings of matched nodes",
    }
    downloads: ClassVar[frozenset[str]] = WeightSharing.downloads | {"matches", "embeddings"}
    backbones: ClassVar[tuple[str, ...] | None] = ("gcn",)
    configuration_type: ClassVar[type[MethodConfiguration]] = FedGNNConfiguration

    # Before round 0: keys up, then matches down

    @property
    def preparation_steps(self) -> int:
        return 2

    def prepare_broadcast(self, server: FedGNNServer, step: int) -> Broadcast:
        if step == 0:
            return Broadcast()
        return Broadcast(ragged={"matches/needed": server.needed, "matches/links": server.links})

    def prepare(self, client: FedGNNClient, cohort: Cohort, broadcast: Broadcast, step: int) -> Upload:
        if step == 0:
            return Upload(ragged={f"keys/{kind}": _keys(cohort, kind) for kind in self._kinds()})
        needed, links = (broadcast.ragged[f"matches/{name}"] for name in ("needed", "links"))
        nodes = [torch.from_numpy(part).to(cohort.device) for part in matching.connected_nodes(cohort)]
        client.needed = tuple(own[chosen.long()] for own, chosen in zip(nodes, needed, strict=True))
        client.links = tuple(
            torch.stack([own[node.long()], row.long()]) for own, (node, row) in zip(nodes, links, strict=True)
        )
        return Upload()

    def prepare_aggregate(self, server: FedGNNServer, upload: Upload, step: int) -> FedGNNServer:
        if step > 0:
            return server
        generator = stream(server.seed, SERVER, -1, "matches")
        for kind in self._kinds():
            keys = [part.numpy() for part in upload.ragged[f"keys/{kind}"]]
            own, other = matching.matches(keys, self.configuration.cap, generator)
            if len(own):
                break
        # Entries are numbered through: those of client m are bounds[m] <= entry < bounds[m + 1].
        bounds = np.cumsum([0, *map(len, keys)])
        sent = np.unique(other)
        needed, received, links = [], [], []
        for first, end in itertools.pairwise(bounds):
            mine = slice(*np.searchsorted(own, [first, end]))
            rows, row = np.unique(other[mine], return_inverse=True)
            needed.append(sent[slice(*np.searchsorted(sent, [first, end]))] - first)
            received.append(np.searchsorted(sent, rows))
            links.append(np.stack([own[mine] - first, row]))
        return dataclasses.replace(
            server,
            matched=len(np.unique(own)),
            needed=_ragged(needed),
            received=_ragged(received),
            links=_ragged(links),
        )

    def _kinds(self) -> tuple[str, ...]:
        """Fingerprints in the order in which the server tries them."""
        kind = self.configuration.fingerprint
        return ("ids", "features") if kind == "auto" else (kind,)

    # Server side

    def broadcast(self, server: FedGNNServer, round_number: int) -> Broadcast:
        plain = super().broadcast(server, round_number)
        if not server.embeddings:
            return plain
        sent = torch.cat(server.embeddings)
        rows = tuple(sent[chosen.long()] for chosen in server.received)
        return dataclasses.replace(plain, ragged={"embeddings/embeddings": rows})

    def aggregate(self, server: FedGNNServer, upload: Upload, round_number: int) -> FedGNNServer:
        averaged = super().aggregate(server, upload, round_number)
        return dataclasses.replace(averaged, embeddings=upload.ragged["embeddings/embeddings"])

    def diagnostics(self, server: FedGNNServer) -> dict[str, float]:
        return {
            "matches/nodes": float(server.matched),
            "matches/virtual_nodes": float(sum(part.shape[1] for part in server.links)),
        }

    # Client side

    def receive(self, client: FedGNNClient, cohort: Cohort, broadcast: Broadcast) -> None:
        super().receive(client, cohort, broadcast)
        client.inflow = None
        parts = broadcast.ragged.get("embeddings/embeddings", ())
        if any(len(part) for part in parts):
            if client.extension is None:
                client.extension = _extension(cohort, client.links, [len(part) for part in parts])
            brought = client.extension.virtual @ torch.cat(parts)
            client.inflow = brought.reshape(len(cohort.clients), cohort.width, -1)

    def represent(
        self, client: FedGNNClient, cohort: Cohort, weights: Tensors, dropout: Dropout | None
    ) -> Representation:
        if client.inflow is None:
            return super().represent(client, cohort, weights, dropout)
        return self._second(client, cohort, weights, self._first(cohort, weights, dropout), dropout)

    def update(self, client: FedGNNClient, cohort: Cohort, round_number: int) -> LocalUpdate:
        result = super().update(client, cohort, round_number)
        with torch.no_grad():
            first = self._first(cohort, client.weights, None)
            client.logits = self._second(client, cohort, client.weights, first, None).logits
        sent = tuple(values[nodes] for values, nodes in zip(first, client.needed, strict=True))
        if self.configuration.noise > 0:
            sent = self._noised(cohort, sent, round_number)
        upload = Upload(result.upload.fields, {"embeddings/embeddings": sent})
        return dataclasses.replace(result, upload=upload)

    def _first(self, cohort: Cohort, weights: Tensors, dropout: Dropout | None) -> Tensor:
        """First layer with its non-linearity, [k, n, p]: virtual nodes play no part in it."""
        network = self.backbone
        projected = cohort.project(weights["encoder.0.weight"], dropout, network.input_dropout)
        return network.act(convolve(cohort, projected, weights["encoder.0.bias"]))

    def _second(
        self,
        client: FedGNNClient,
        cohort: Cohort,
        weights: Tensors,
        first: Tensor,
        dropout: Dropout | None,
    ) -> Representation:
        network = self.backbone

        def drop(purpose: str, values: Tensor) -> Tensor:
            return values if dropout is None else dropout.apply(purpose, values, network.dropout)

        weight, bias = weights["encoder.1.weight"], weights["encoder.1.bias"]
        projected = torch.bmm(drop("hidden.0", first), weight)
        if client.inflow is None:
            embedding = convolve(cohort, projected, bias)
        else:
            assert client.extension is not None
            embedding = cohort.propagate(client.extension.own, projected) + bias[:, None, :]
            embedding = embedding + torch.bmm(client.inflow, weight)
        hidden = drop("hidden.1", network.act(embedding))
        logits = affine(hidden, weights, "classifier")
        return Representation(logits, embedding)

    def _noised(self, cohort: Cohort, sent: Ragged, round_number: int) -> Ragged:
        scale = self.configuration.noise
        draws = [
            generator.laplace(0.0, scale, tuple(values.shape))
            for generator, values in zip(
                cohort.generators(round_number, "embedding noise"), sent, strict=True
            )
        ]
        return tuple(
            values + torch.from_numpy(draw).to(values.device, values.dtype)
            for values, draw in zip(sent, draws, strict=True)
        )

    def _client(self, weights: Tensors, optimizer: AdamState, cohort: Cohort) -> FedGNNClient:
        empty = torch.zeros(0, dtype=torch.int64, device=cohort.device)
        k = len(cohort.clients)
        return FedGNNClient(weights, optimizer, needed=(empty,) * k, links=(empty.reshape(2, 0),) * k)

    def _server(self, weights: Tensors, task: Task) -> FedGNNServer:
        return FedGNNServer(weights, seed=task.seed)


def _keys(cohort: Cohort, kind: str) -> Ragged:
    """Keys of each client's connected nodes, int64 [.], from ids or from features."""
    by_id = kind == "ids"
    fingerprints = matching.id_fingerprints(cohort) if by_id else matching.feature_fingerprints(cohort)
    return tuple(torch.from_numpy(keys) for keys in matching.neighbourhood_keys(cohort, fingerprints))


def _ragged(parts: list[np.ndarray]) -> Ragged:
    return tuple(torch.from_numpy(part.astype(np.int32)) for part in parts)


def _extension(cohort: Cohort, links: Ragged, counts: list[int]) -> Extension:
    """Operators of the graphs with virtual nodes.

    Args:
        cohort: the clients.
        links: own node and received row of each virtual node, [2, q_m].
        counts: received rows u_m.
    """
    kind = np.float64 if cohort.dtype == torch.float64 else np.float32
    blocks, entries = [], []
    offset = 0
    for row, (adjacency, pairs, count) in enumerate(zip(cohort.adjacencies, links, counts, strict=True)):
        node, source = pairs.cpu().numpy()
        degree = 1.0 + np.diff(adjacency.indptr) + np.bincount(node, minlength=adjacency.shape[0])
        scale = 1.0 / np.sqrt(degree)
        looped = sp.coo_array(adjacency + sp.eye_array(adjacency.shape[0], format="csr"))
        values = scale[looped.row] * looped.data * scale[looped.col]
        blocks.append(sp.csr_array((values.astype(kind), (looped.row, looped.col)), shape=looped.shape))
        entries.append((scale[node] / np.sqrt(2.0), node + row * cohort.width, source + offset))
        offset += count
    values, nodes, sources = (np.concatenate(parts) for parts in zip(*entries, strict=True))
    size = len(cohort.clients) * cohort.width
    virtual = sp.csr_array((values.astype(kind), (nodes, sources)), shape=(size, offset))
    return Extension(cohort.block_diagonal(blocks), SparseMatrix(virtual, cohort.dtype, cohort.device))
