from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from fedatlas.platform.federation.records import RoundRecord, summarise

NAN = float("nan")


def record(number, validation, test=0.5, clients=((0.5, 0.5), (0.5, 0.5)), **fields):
    return RoundRecord(number, validation, test, *clients, **fields)


def test_the_first_round_with_the_best_validation_is_selected():
    records = [
        record(0, 0.5, 0.9),
        record(1, 0.7, 0.6, clients=((0.6, 0.8), (0.2, 1.0))),
        record(2, NAN, 0.95),
        record(3, 0.7, 0.8),
        record(4, 0.6, 0.7),
    ]
    result = summarise(records)
    assert result.best_round == 1
    assert (result.val_score, result.test_score) == (0.7, 0.6)
    assert result.last_test_score == 0.7
    assert result.client_test_scores == (0.2, 1.0)
    assert result.worst_decile_test_score == 0.2


def test_a_run_without_validation_scores_reports_its_last_round():
    result = summarise([record(0, NAN, 0.3), record(1, NAN, 0.4)])
    assert result.best_round == -1
    assert result.test_score == 0.4
    assert np.isnan(result.val_score)


def test_own_best_rounds_are_chosen_per_client():
    records = [
        record(0, 0.5, clients=((0.1, 0.9, NAN), (0.2, 0.7, 0.1))),
        record(1, 0.6, clients=((0.4, 0.9, NAN), (0.3, 0.8, 0.2))),
        record(2, 0.4, clients=((NAN, 0.2, NAN), (0.9, 0.1, 0.3))),
    ]
    # Client 0 is best in round 1, client 1 first in round 0, client 2 never has a validation score.
    assert summarise(records).own_best_test_score == pytest.approx((0.3 + 0.7) / 2)


def test_clients_without_a_test_score_are_counted():
    result = summarise([record(0, 0.5, clients=((0.5, 0.5, 0.5), (NAN, 0.5, NAN)))])
    assert result.undefined_test_clients == 2
    assert result.worst_decile_test_score == 0.5


def test_time_is_a_median_and_bytes_are_means():
    records = [
        record(r, 0.5, uplink={"a": 10 * r, "b": 1}, downlink={"a": 2 * r}, seconds={"round": seconds})
        for r, seconds in enumerate([9.0, 1.0, 2.0])
    ]
    result = summarise(records)
    assert result.seconds_per_round == 2.0
    assert result.uplink_bytes_per_round == 11.0
    assert result.downlink_bytes_per_round == 2.0


def full():
    return record(
        3,
        0.5,
        0.6,
        ((0.4, 0.6), (0.5, 0.7)),
        metrics={"loss/total": 1.5},
        uplink={"weights": 100, "size": 8},
        downlink={"weights": 90},
        seconds={"round": 0.25, "train": 0.2},
    )


def test_plain_form_is_lossless_and_plain():
    plain = full().to_plain()
    assert RoundRecord.from_plain(plain) == full()
    assert RoundRecord.from_plain(json.loads(json.dumps(plain))) == full()


def test_tracked_names():
    assert full().tracked() == {
        "val/score": 0.5,
        "test/score": 0.6,
        "test/worst_decile": 0.5,
        "loss/total": 1.5,
        "comm/uplink_bytes": 108.0,
        "comm/downlink_bytes": 90.0,
        "comm/uplink_weights_bytes": 100.0,
        "comm/uplink_size_bytes": 8.0,
        "comm/downlink_weights_bytes": 90.0,
        "time/round_seconds": 0.25,
        "time/train_seconds": 0.2,
    }
    assert replace(full(), client_test=(NAN,)).tracked()["test/worst_decile"] != 0
