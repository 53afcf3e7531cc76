"""Clipping, Gaussian noise and secure aggregation of what clients upload.

All three act between a method and the server: after local training on the client, before aggregation on the
server. A method says which groups of fields are an update that can be bounded (`Algorithm.clipped`) and which
ones its server only adds up (`Algorithm.additive`).

    clip:   u_m = x_m - r_m,   x_m <- r_m + u_m min(1, C / ||u_m||_2)
    noise:  x_m <- x_m + N(0, z^2 C^2 I)                    (`upload`: every upload is protected)
            x_m <- x_m + N(0, z^2 C^2 I / |S|)              (`sum`: the sum over the participants S is)

r_m is what the client received, the norm is over all bounded fields together (McMahan et al., ICLR 2018).
Two federations are neighbours if one client sends its update in the one and a zero update in the other; for
any two updates of a client the sensitivity is 2C, which halves z. Rounds compose without amplification by
sampling of clients, which is an upper bound for every way to draw them.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation import secure_aggregation
from fedatlas.platform.federation.cohort import Task
from fedatlas.platform.federation.contract import Algorithm, LocalUpdate
from fedatlas.platform.federation.messages import Tensors, Upload, group_of
from fedatlas.platform.randomness import stream

NoiseTarget = Literal["upload", "sum"]
DELTA = 1e-5
_ORDERS = (*(1 + step / 20 for step in range(1, 200)), *range(11, 64), 80, 96, 128, 192, 256, 512, 1024)


@dataclass(frozen=True)
class Privacy:
    """How uploads are protected.

    Attributes:
        clip_norm: bound C of the L2 norm of a client's update; None for no bound.
        noise_multiplier: z, standard deviation of the noise in units of C; None for no noise.
        noise_target: what carries the whole noise, every upload or the sum over the participants.
        noise_delta: delta for which epsilon is given.
        secure_aggregation: the server sees sums of masked uploads only.
    """

    clip_norm: float | None = None
    noise_multiplier: float | None = None
    noise_target: NoiseTarget = "upload"
    noise_delta: float = DELTA
    secure_aggregation: bool = False

    @property
    def active(self) -> bool:
        return self.clip_norm is not None or self.secure_aggregation

    def require(self, algorithm: Algorithm[Any, Any], participants: int) -> None:
        """Refuse what cannot be protected so.

        Args:
            algorithm: the method.
            participants: clients that upload in a round.

        Raises:
            ConfigurationError: names the setting and why it does not work.
        """
        noise, z = self.noise_target, self.noise_multiplier
        if z is not None and self.clip_norm is None:
            raise ConfigurationError(
                f"noise_multiplier={z:g} is in units of clip_norm, which is not set: set clip_norm"
            )
        if self.clip_norm is not None and not algorithm.clipped():
            raise ConfigurationError(
                f"clip_norm={self.clip_norm:g}: {algorithm.title} as configured sends no update that can be "
                "clipped: leave it out"
            )
        if z is not None and importlib.util.find_spec("opacus") is None:
            raise ConfigurationError(
                "noise_multiplier needs the accountant of opacus: pip install 'fedatlas[privacy]'"
            )
        if noise == "sum" and z is not None:
            if not self.secure_aggregation:
                raise ConfigurationError(
                    "noise_target=sum protects the sum alone: set secure_aggregation=true, or "
                    "noise_target=upload"
                )
            given = getattr(algorithm.configuration, "client_weights", "uniform")
            if given != "uniform":
                raise ConfigurationError(
                    f"noise_target=sum with client_weights={given}: a client's weight multiplies its update "
                    "beyond clip_norm: use client_weights=uniform, or noise_target=upload"
                )
        if self.secure_aggregation:
            alone = sorted(algorithm.uploads - additive(algorithm))
            if alone:
                raise ConfigurationError(
                    f"secure_aggregation: the server of {algorithm.title} needs {', '.join(alone)} of each "
                    "client by itself, not their sum (`fedatlas algorithms --uploads`): leave it out"
                )
            if participants < 2:
                raise ConfigurationError(
                    "secure_aggregation needs at least two participants in a round: the sum of one is its "
                    "upload"
                )

    def describe(self, algorithm: Algorithm[Any, Any]) -> str:
        """What is protected and what is not, in a line."""
        bounded = sorted(algorithm.clipped())
        parts = []
        if self.noise_multiplier is not None:
            what = "each client's" if self.noise_target == "upload" else "the sum of all clients'"
            parts.append(
                f"Gaussian noise on {what} {' and '.join(bounded)}, clip_norm={self.clip_norm:g}, "
                f"noise_multiplier={self.noise_multiplier:g}, delta={self.noise_delta:g}"
            )
        elif self.clip_norm is not None:
            parts.append(f"{' and '.join(bounded)} clipped to {self.clip_norm:g}, without noise")
        if self.secure_aggregation:
            parts.append("the server sees sums of masked uploads")
        open_ = sorted(algorithm.uploads - algorithm.clipped())
        if self.noise_multiplier is not None and open_:
            seen = "in sums, without noise" if self.secure_aggregation else "as they are"
            parts.append(f"not covered by epsilon: {', '.join(open_)} (sent {seen})")
        return "; ".join(parts)


UNPROTECTED = Privacy()
SETTINGS = tuple(field.name for field in dataclasses.fields(Privacy))
"""Their names, as experiments have them."""


def additive(algorithm: Algorithm[Any, Any]) -> frozenset[str]:
    """Groups of which a method's server needs the sum only.

    A class that aggregates in its own way without saying what is additive has none.
    """
    kind = type(algorithm)
    aggregates, says = _definer(kind, "aggregate"), _definer(kind, "additive")
    return algorithm.additive() if issubclass(says, aggregates) else frozenset()


def _definer(kind: type, name: str) -> type:
    return next(each for each in kind.__mro__ if name in vars(each))


def protect(
    algorithm: Algorithm[Any, Any],
    task: Task,
    privacy: Privacy,
    result: LocalUpdate,
    reference: Mapping[str, Tensor],
    clients: Sequence[int],
    participants: Collection[int],
    round_number: int,
) -> LocalUpdate:
    """What some clients of a cohort send, protected; with the figures of clipping.

    Args:
        result: what they would send, fields [k, ...].
        reference: what the bounded fields started from, [k, ...] or [...]; zero where there is none.
        clients: ids of the k clients.
        participants: ids of all clients that send in this round.
    """
    fields, metrics = dict(result.upload.fields), dict(result.metrics)
    groups = algorithm.clipped()
    bounded = [name for name in fields if group_of(name) in groups]
    if privacy.clip_norm is not None and bounded:
        metrics.update(_clip(fields, bounded, reference, privacy.clip_norm))
        if privacy.noise_multiplier is not None and privacy.noise_target == "upload":
            scale = privacy.noise_multiplier * privacy.clip_norm
            _add_noise(fields, bounded, scale, task.seed, clients, round_number)
    upload = Upload(fields, result.upload.ragged)
    if privacy.secure_aggregation:
        addends = dict(algorithm.addends(upload).fields)
        if privacy.noise_multiplier is not None and privacy.noise_target == "sum":
            assert privacy.clip_norm is not None
            scale = privacy.noise_multiplier * privacy.clip_norm / len(participants) ** 0.5
            chosen = [name for name in addends if group_of(name) in groups]
            _add_noise(addends, chosen, scale, task.seed, clients, round_number)
        upload = Upload(secure_aggregation.masked(addends, clients, participants, task.seed, round_number))
    return dataclasses.replace(result, upload=upload, metrics=metrics)


def _clip(
    fields: Tensors, names: Sequence[str], reference: Mapping[str, Tensor], bound: float
) -> dict[str, Tensor]:
    """Bound the updates in place; their norms and which were longer, [k]."""
    updates = {name: fields[name] - reference[name] if name in reference else fields[name] for name in names}
    squared = torch.stack([update.double().square().flatten(1).sum(dim=1) for update in updates.values()])
    norm = squared.sum(dim=0).sqrt()
    factor = bound / norm.clamp(min=bound)
    for name, update in updates.items():
        shorter = update * factor.to(update.dtype).view(-1, *[1] * (update.dim() - 1))
        fields[name] = reference[name] + shorter if name in reference else shorter
    return {"privacy/update_norm": norm, "privacy/clipped_share": (norm > bound).double()}


def _add_noise(
    fields: Tensors, names: Sequence[str], scale: float, seed: int, clients: Sequence[int], round_number: int
) -> None:
    for name in names:
        value = fields[name]
        noise = np.empty(value.shape)
        for row, client in enumerate(clients):
            noise[row] = stream(seed, client, round_number, f"privacy/{name}").standard_normal(
                noise.shape[1:]
            )
        fields[name] = value + (scale * torch.from_numpy(noise)).to(value)


@cache
def epsilon(noise_multiplier: float, rounds: int, delta: float) -> float:
    """Epsilon of so many releases with Gaussian noise, by the RDP accountant of opacus."""
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(noise_multiplier, 1.0, rounds)]
    with warnings.catch_warnings():
        # That the best order is the first or last of ours: the bound holds, and is not the tightest.
        warnings.filterwarnings("ignore", message="Optimal order")
        return float(accountant.get_epsilon(delta, alphas=list(_ORDERS)))
