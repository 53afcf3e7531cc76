"""Adam and SGD over stacked or server-side tensors, with their state as plain tensors."""

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

    Adam works entry by entry, so one step over stacked weights [k, ...] is exactly k separate steps. SGD
    keeps its momentum in `first` and has no second moment. `step` counts the steps; where clients take
    different numbers of them it is int64 [k].
    """

    first: Tensors = field(default_factory=dict)
    second: Tensors = field(default_factory=dict)
    step: int | Tensor = 0

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
    assert isinstance(state.step, int)
    groups: dict[tuple[float, float], list[str]] = {}
    for name in gradients:
        groups.setdefault((own or {}).get(name, (lr, weight_decay)), []).append(name)
    for (rate, decay), names in groups.items():
        _step(weights, gradients, state, names, rate, decay, active)
    state.step += 1


def client_adam_step(
    weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    state: AdamState,
    rates: Mapping[str, tuple[float, float]],
    active: Tensor,
) -> None:
    """One Adam step in place of the active clients, each with the bias correction of its own step count.

    Args:
        weights, gradients: [k, ...].
        state: moments, and steps of each client [k]; changed in place.
        rates: learning rate and (coupled) weight decay of each parameter.
        active: bool [k].
    """
    assert isinstance(state.step, Tensor)
    state.step += active
    count = state.step.clamp(min=1).double()
    with torch.no_grad():
        for name, gradient in gradients.items():
            weight, first, second = weights[name], state.first[name], state.second[name]
            shape = (-1, *[1] * (weight.dim() - 1))
            mask = active.view(shape)
            lr, decay = rates[name]
            direction = gradient + decay * weight
            first.copy_(torch.where(mask, 0.9 * first + 0.1 * direction, first))
            second.copy_(torch.where(mask, 0.999 * second + 0.001 * direction.square(), second))
            scale = (lr / (1 - 0.9**count)).to(weight.dtype).view(shape)
            root = (second / (1 - 0.999**count).to(weight.dtype).view(shape)).sqrt()
            weight.copy_(torch.where(mask, weight - scale * first / (root + 1e-8), weight))


def sgd_step(
    weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    state: AdamState,
    rates: Mapping[str, tuple[float, float]],
    momentum: float,
    active: Tensor | None = None,
) -> None:
    """One step of SGD with momentum in place: v <- mu v + g + lambda w, w <- w - eta v.

    Args:
        weights, gradients: [k, ...].
        state: v in `first`, changed in place.
        rates: eta and lambda of each parameter.
        momentum: mu.
        active: bool [k]; clients that are False keep weights and momentum. None: all.
    """
    partial = active is not None and not bool(active.all())
    with torch.no_grad():
        for name, gradient in gradients.items():
            weight, velocity = weights[name], state.first[name]
            lr, decay = rates[name]
            direction = gradient.add(weight, alpha=decay)
            if partial:
                assert active is not None
                mask = active.view(-1, *[1] * (weight.dim() - 1))
                velocity.copy_(torch.where(mask, momentum * velocity + direction, velocity))
                weight.sub_(velocity * mask, alpha=lr)
            else:
                velocity.mul_(momentum).add_(direction)
                weight.sub_(velocity, alpha=lr)


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
