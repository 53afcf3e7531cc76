"""What a run leaves behind: one record per round, one result at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fedatlas.platform.federation.scores import worst_decile

EPSILON = "privacy/epsilon"
"""Figure of a round whose uploads carry noise: epsilon of all rounds so far."""


@dataclass(frozen=True)
class Preparation:
    """What a method exchanged before round 0.

    Attributes:
        uplink, downlink: bytes of all clients over all steps, by field group.
        seconds: wall time of all steps.
    """

    uplink: dict[str, int] = field(default_factory=dict)
    downlink: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def added(self, uplink: dict[str, int], downlink: dict[str, int], seconds: float) -> Preparation:
        """With one more step."""
        return Preparation(_sum(self.uplink, uplink), _sum(self.downlink, downlink), self.seconds + seconds)


def _sum(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}


@dataclass(frozen=True)
class RoundRecord:
    """One finished round.

    Attributes:
        round: 0-based number.
        validation, test: client-mean scores in [0, 1].
        client_validation, client_test: scores [M]; NaN where undefined.
        metrics: client means of local figures and the server's diagnostics.
        uplink, downlink: bytes of all clients, by field group.
        seconds: wall time by phase; ``round`` is the whole.
        preparation: of round 0, what was exchanged before it, if anything.
        mixing: how much client i takes from client j after the round, [M][M]; of some rounds of methods that
            give every client an average of its own.
        peak_bytes: memory of the largest process that hosts clients, so far; 0 if unknown.
    """

    round: int
    validation: float
    test: float
    client_validation: tuple[float, ...]
    client_test: tuple[float, ...]
    metrics: dict[str, float] = field(default_factory=dict)
    uplink: dict[str, int] = field(default_factory=dict)
    downlink: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    preparation: Preparation | None = None
    mixing: tuple[tuple[float, ...], ...] | None = None
    peak_bytes: int = 0

    def to_plain(self) -> dict[str, Any]:
        """Nested plain values, for checkpoints and messages."""
        return asdict(self)

    @staticmethod
    def from_plain(values: dict[str, Any]) -> RoundRecord:
        """Inverse of `to_plain`."""
        before, mixing = values["preparation"], values.get("mixing")
        return RoundRecord(
            **{
                **values,
                "client_validation": tuple(values["client_validation"]),
                "client_test": tuple(values["client_test"]),
                "preparation": None if before is None else Preparation(**before),
                "mixing": None if mixing is None else tuple(map(tuple, mixing)),
            }
        )

    def tracked(self) -> dict[str, float]:
        """Figures of the round under their tracking names (`val/`, `test/`, `comm/`, `time/`, ...)."""
        out = {"val/score": self.validation, "test/score": self.test}
        out["test/worst_decile"] = worst_decile(self.client_test)
        out.update(self.metrics)
        out["comm/uplink_bytes"] = float(sum(self.uplink.values()))
        out["comm/downlink_bytes"] = float(sum(self.downlink.values()))
        for group, count in self.uplink.items():
            out[f"comm/uplink_{group}_bytes"] = float(count)
        for group, count in self.downlink.items():
            out[f"comm/downlink_{group}_bytes"] = float(count)
        out.update({f"time/{phase}_seconds": value for phase, value in self.seconds.items()})
        if self.peak_bytes:
            out["memory/peak_mb"] = self.peak_bytes / 1e6
        if self.preparation is not None:
            out["comm/preparation_uplink_bytes"] = float(sum(self.preparation.uplink.values()))
            out["comm/preparation_downlink_bytes"] = float(sum(self.preparation.downlink.values()))
            out["time/preparation_seconds"] = self.preparation.seconds
        return out


@dataclass(frozen=True)
class RunResult:
    """Summary of a finished run. Scores are in [0, 1].

    Attributes:
        best_round: first round with the highest client-mean validation score; -1 if it is never defined.
        val_score, test_score: client means at the best round.
        last_test_score: client-mean test score of the last round.
        client_test_scores: scores [M] at the best round.
        worst_decile_test_score: mean of the worst tenth of the clients at the best round.
        own_best_test_score: client mean of the test score at each client's own best validation round;
            other papers select so, the tables here do not.
        undefined_test_clients: clients left out of the mean at the best round.
        seconds_per_round: median wall time of a round.
        uplink_bytes_per_round, downlink_bytes_per_round: all clients together, mean over the rounds in which
            anything travelled.
        preparation_seconds, preparation_uplink_bytes, preparation_downlink_bytes: before round 0, in all.
        peak_memory_bytes: of the largest process that hosts clients, with all that it had held before.
        epsilon: of all rounds, where uploads carry noise; see `fedatlas.platform.federation.privacy`.
    """

    best_round: int
    val_score: float
    test_score: float
    last_test_score: float
    client_test_scores: tuple[float, ...]
    worst_decile_test_score: float
    own_best_test_score: float
    undefined_test_clients: int
    seconds_per_round: float
    uplink_bytes_per_round: float
    downlink_bytes_per_round: float
    preparation_seconds: float = 0.0
    preparation_uplink_bytes: float = 0.0
    preparation_downlink_bytes: float = 0.0
    peak_memory_bytes: float = 0.0
    epsilon: float | None = None


def summarise(records: Sequence[RoundRecord]) -> RunResult:
    """Select the best-validation round and summarise a run.

    Args:
        records: at least one round, in order.
    """
    validation = np.array([record.validation for record in records])
    if np.isfinite(validation).any():
        best = int(np.nanargmax(validation))
        chosen = records[best]
    else:
        best, chosen = -1, records[-1]
    federated = [record for record in records if record.uplink or record.downlink] or records
    before = records[0].preparation or Preparation()
    return RunResult(
        best_round=best,
        val_score=chosen.validation,
        test_score=chosen.test,
        last_test_score=records[-1].test,
        client_test_scores=chosen.client_test,
        worst_decile_test_score=worst_decile(chosen.client_test),
        own_best_test_score=_own_best(records),
        undefined_test_clients=int(np.isnan(chosen.client_test).sum()),
        seconds_per_round=float(np.median([record.seconds.get("round", np.nan) for record in records])),
        uplink_bytes_per_round=float(np.mean([sum(record.uplink.values()) for record in federated])),
        downlink_bytes_per_round=float(np.mean([sum(record.downlink.values()) for record in federated])),
        preparation_seconds=before.seconds,
        preparation_uplink_bytes=float(sum(before.uplink.values())),
        preparation_downlink_bytes=float(sum(before.downlink.values())),
        peak_memory_bytes=float(max(record.peak_bytes for record in records)),
        epsilon=max((r.metrics[EPSILON] for r in records if EPSILON in r.metrics), default=None),
    )


def _own_best(records: Sequence[RoundRecord]) -> float:
    validation = np.array([record.client_validation for record in records])
    test = np.array([record.client_test for record in records])
    scores = [
        test[int(np.nanargmax(validation[:, m])), m]
        for m in range(validation.shape[1])
        if np.isfinite(validation[:, m]).any()
    ]
    finite = [score for score in scores if np.isfinite(score)]
    return float(np.mean(finite)) if finite else float("nan")
