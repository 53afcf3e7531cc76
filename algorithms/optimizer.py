"""Adam over stacked or server-side tensors, with its state as plain tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim.adam import adam

from fedatlas.platform.federation.messages import Tensors


@dataclass
class AdamState:
    """Moments of Adam (Kingma and Ba, ICLR 2015), one pair of tensors per parameter.

    Adam works entry by entry, so one step over stacked weights [k, ...] is exactly k separate steps.
    """

    first: Tensors = field(default_factory=dict)
    second: Tensors = field(default_factory=dict)
    step: int = 0

    @staticmethod
    def zeros(weights: Mapping[str, Tensor]) -> AdamState:
        """State before the first step."""
        return AdamState(
            {name: torch.zeros_like(weight) for name, weight in weights.items()},
            {name: torch.zeros_like(weight) for name, weight in weights.items()},
        )


def adam_step(
    weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    state: AdamState,
    lr: float,
    weight_decay: float,
    active: Tensor | None = None,
    own: Mapping[str, tuple[float, float]] | None = None,
) -> None:
    """One Adam step in place over the named gradients; weight decay is added to the gradient (coupled).

    Args:
        weights: parameters; those without a gradient are left alone.
        gradients: gradients by parameter name.
        state: moments, changed in place.
        lr: learning rate.
        weight_decay: factor of the weights added to the gradients.
        active: bool [k] for stacked weights; clients that are False keep weights and moments. None: all.
        own: learning rate and weight decay of parameters that have their own.
    """
    groups: dict[tuple[float, float], list[str]] = {}
    for name in gradients:
        groups.setdefault((own or {}).get(name, (lr, weight_decay)), []).append(name)
    for (rate, decay), names in groups.items():
        _step(weights, gradients, state, names, rate, decay, active)
    state.step += 1


def _step(
    weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    state: AdamState,
    names: list[str],
    lr: float,
    weight_decay: float,
    active: Tensor | None,
) -> None:
    partial = active is not None and not bool(active.all())
    tables = (weights, state.first, state.second)
    before = [{name: table[name].clone() for name in names} for table in tables] if partial else []
    # The fused kernel reads the step where the weights are.
    state_steps = [torch.tensor(float(state.step), device=weights[name].device) for name in names]
    with torch.no_grad():
        adam(
            [weights[name] for name in names],
            [gradients[name].contiguous() for name in names],
            [state.first[name] for name in names],
            [state.second[name] for name in names],
            [],
            state_steps,
            foreach=False,
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=lr,
            weight_decay=weight_decay,
            eps=1e-8,
            maximize=False,
        )
        for table, saved in zip(tables, before, strict=False):
            for name in names:
                assert active is not None
                keep = active.view(-1, *[1] * (saved[name].dim() - 1))
                table[name].copy_(torch.where(keep, table[name], saved[name]))
