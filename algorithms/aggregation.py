"""How weights travel: which parameters are shared, and what the server does with them.

Three rules, each over a declared set of shared parameters:

- ``fedavg``: clients step with their own Adam, the server averages weights,
  w <- sum_m p_m w_m (McMahan et al., AISTATS 2017).
- ``fedopt``: clients send gradients at the shared weights, the server takes one Adam step along
  g = sum_m p_m g_m; its moments live on the server (Reddi et al., ICLR 2021).
- ``none``: nothing travels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from fedatlas.platform.federation.messages import Tensors

Aggregation = Literal["fedavg", "fedopt", "none"]
Shared = Literal["all", "all_but_bias", "encoder", "classifier", "none"]
ClientWeights = Literal["uniform", "train_nodes", "nodes"]


PRIVATE = "private."
"""Names that start so never travel, whatever is shared."""


def shared_names(names: Iterable[str], shared: Shared) -> tuple[str, ...]:
    """Parameters that travel; never those whose name starts with `PRIVATE`.

    Args:
        names: all parameter names of a backbone.
        shared: ``all``; ``all_but_bias`` keeps the classifier's bias personal; ``encoder`` keeps the whole
            classifier personal; ``classifier`` shares its weight only; ``none``.
    """
    names = tuple(name for name in names if not name.startswith(PRIVATE))
    if shared == "none":
        return ()
    if shared == "encoder":
        return tuple(name for name in names if name.startswith("encoder."))
    if shared == "classifier":
        return tuple(name for name in names if name == "classifier.weight")
    if shared == "all_but_bias":
        return tuple(name for name in names if name != "classifier.bias")
    return names


def normalised_client_weights(client_weights: ClientWeights, fields: Mapping[str, Tensor]) -> Tensor:
    """Aggregation weights p_m with sum 1, [M]; 0 for a client without training nodes.

    If no client has training nodes, all weights are equal.

    Args:
        client_weights: ``uniform`` 1/M (what the protocol's code family computes), in proportion to
            ``train_nodes``, or in proportion to all ``nodes``.
        fields: uploaded ``size/train_nodes`` and ``size/nodes``, [M] each.
    """
    raw = raw_client_weights(client_weights, fields)
    return raw / raw.sum() if raw.sum() > 0 else torch.full_like(raw, 1.0 / raw.numel())


def raw_client_weights(client_weights: ClientWeights, fields: Mapping[str, Tensor]) -> Tensor:
    """Aggregation weights before their normalisation, which a client knows by itself, [M] in float64."""
    train = fields["size/train_nodes"].double()
    present = (train > 0).double()
    if client_weights == "train_nodes":
        return train
    if client_weights == "nodes":
        return fields["size/nodes"].double() * present
    return present


def scaled(tensors: Mapping[str, Tensor], factors: Tensor) -> Tensors:
    """q_m x_m for factors [k] and tensors [k, ...], in float64."""
    return {
        name: tensor.double() * factors.view(-1, *[1] * (tensor.dim() - 1))
        for name, tensor in tensors.items()
    }


def weighted_mean(stacked: Mapping[str, Tensor], weights: Tensor) -> Tensors:
    """sum_m p_m x_m over the client axis: [M, ...] -> [...] for each named tensor."""
    return {
        name: torch.tensordot(weights.to(tensor.dtype), tensor, dims=1) for name, tensor in stacked.items()
    }
