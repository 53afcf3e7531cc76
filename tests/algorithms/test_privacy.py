"""Clipped, noisy and masked uploads over all methods: what is promised, and what is refused with a reason."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation.coordinator import Coordinator, Schedule
from fedatlas.platform.federation.privacy import Privacy, additive
from fedatlas.platform.federation.records import EPSILON
from fedatlas.platform.federation.runtime import InlineRuntime
from fedatlas.platform.federation.secure_aggregation import unmasked
from fedatlas.sweeps.checks import Dying

SUMS = (
    *("fedavg", "fedprox", "fedopt", "scaffold", "fednova", "fedper", "fedsage", "adafgl", "fedgmc"),
    *("fedstar", "sealb", "seal"),
)
"""Methods whose server only adds up."""
SECURE = Privacy(secure_aggregation=True)


def federation_for(name, make_federation, make_graph_federation, **arguments):
    make = make_federation if "node" in ALGORITHMS[name].levels else make_graph_federation
    return make(**arguments)


def same_states(first, second, tolerance):
    for name, value in first.items():
        if isinstance(value, dict):
            same_states(value, second[name], tolerance)
        elif isinstance(value, torch.Tensor):
            torch.testing.assert_close(value.double(), second[name].double(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("weights", ["uniform", "train_nodes", "nodes"])
def test_the_masked_sum_gives_the_plain_run(
    name, weights, make_federation, make_graph_federation, make_method, run
):
    """Over four rounds with clients of different sizes, one of them without training nodes."""
    federation = federation_for(name, make_federation, make_graph_federation)
    last = federation.graphs[3]
    federation = federation.changed(3, train=np.zeros_like(last.train), test=~last.validation)
    method = make_method(name, client_weights=weights, epochs=2)
    plain, secure = run(method, federation), run(method, federation, privacy=SECURE)
    same_states(plain.server, secure.server, 1e-6)
    same_states(plain.clients, secure.clients, 1e-6)
    assert secure.records[0].uplink["weights"] == plain.records[0].uplink["weights"]  # float64: 8 bytes both


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in SUMS])
def test_other_methods_are_refused_with_the_reason(name, make_method):
    method = make_method(name)
    if name == "local":
        SECURE.require(method, 4)  # nothing is sent
        return
    with pytest.raises(ConfigurationError, match=r"needs .* of each client by itself, not their sum"):
        SECURE.require(method, 4)


def test_a_class_with_its_own_aggregation_must_say_what_is_additive(make_method):
    """Otherwise it would inherit a promise that it does not keep."""
    kind = type(make_method("fedavg"))

    class Median(kind):
        def aggregate(self, server, upload, round_number):
            return server

    given = make_method("fedavg")
    assert additive(given) == {"weights", "size"}
    assert additive(Median(given.configuration, given.backbone)) == frozenset()


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "local"])
def test_noise_does_not_depend_on_placement(
    name, make_federation, make_graph_federation, make_method, run, assert_same_run
):
    """With masks where the method allows them; resumed and redone rounds draw the same noise."""
    federation = federation_for(name, make_federation, make_graph_federation)
    method = make_method(name)
    privacy = Privacy(1.0, 0.5, secure_aggregation=name in SUMS)
    together = run(method, federation, privacy=privacy)
    for per_cohort in (1, 3):
        assert_same_run(run(method, federation, per_cohort=per_cohort, privacy=privacy), together, 1e-5)
    lost = run(method, federation, runtime=Dying((1, 3)), privacy=privacy, checkpoint_every=2)
    assert_same_run(lost, run(method, federation, per_cohort=2, privacy=privacy))
    spent = [record.metrics[EPSILON] for record in together.records if EPSILON in record.metrics]
    assert len(spent) == 4
    assert spent == sorted(spent)


def uploads_of(method, federation, privacy, participation=None):
    """What arrives at the server in each of three rounds, with the broadcasts."""
    seen, sent = [], []

    class Listening(InlineRuntime):
        def round(self, broadcast, *arguments):
            reports = super().round(broadcast, *arguments)
            sent.append(broadcast)
            seen.append([report.upload for report in reports])
            return reports

    schedule = Schedule(3, participation=participation)
    coordinator = Coordinator(federation.job(method, privacy=privacy), Listening(), schedule)
    coordinator.start()
    for _ in range(3):
        coordinator.advance()
    return sent, seen


@pytest.mark.parametrize("name", ["fedavg", "fedopt", "scaffold", "fedpub", "fedaux", "fedgmc"])
def test_no_update_is_longer_than_the_bound(name, make_federation, make_method):
    method, bound = make_method(name, epochs=3, lr=0.1), 0.05
    sent, seen = uploads_of(method, make_federation(), Privacy(bound))
    for broadcast, uploads in zip(sent, seen, strict=True):
        reference, squared = method.reference(broadcast), 0
        for field, value in uploads[0].fields.items():
            if field.split("/")[0] in method.clipped():
                update = value - reference[field] if field in reference else value
                squared = squared + update.square().flatten(1).sum(dim=1)
        assert (squared.sqrt() <= bound * (1 + 1e-9)).all()
        assert (squared.sqrt() > 0.9 * bound).all()


def test_a_wide_bound_changes_nothing(make_federation, make_method, run):
    federation, method = make_federation(), make_method("fedavg")
    plain, wide = run(method, federation), run(method, federation, privacy=Privacy(1e6))
    same_states(plain.server, wide.server, 1e-12)
    assert wide.records[0].metrics["privacy/clipped_share"] == 0
    assert wide.records[0].metrics["privacy/update_norm"] > 0
    assert EPSILON not in wide.records[0].metrics


@pytest.mark.parametrize("target", ["upload", "sum"])
def test_noise_has_the_promised_deviation(target, make_federation, make_method):
    """Of an upload z C; of the sum over the four participants z C too, so each has half of it."""
    federation, method = make_federation(), make_method("fedavg", hidden=64, lr=1e-9)
    clip, z, field = 2.0, 1.5, "weights/encoder.0.weight"
    privacy = Privacy(clip, z, target, secure_aggregation=target == "sum")
    sent, seen = uploads_of(method, federation, privacy)
    received = sent[0].common[field]
    if target == "upload":
        noise = seen[0][0].fields[field] - received
        assert abs(float(torch.corrcoef(noise.flatten(1))[0, 1])) < 0.2
    else:
        noise = unmasked(seen[0][0], 4, torch.float64).fields[field] - 4 * received
    assert noise.std().item() == pytest.approx(z * clip, rel=0.1)


def test_masked_uploads_tell_nothing_and_differ_every_round(make_federation, make_method):
    """A masked field is uniform over the ring: its top bit is a fair coin, and no value repeats."""
    _, seen = uploads_of(make_method("fedavg", hidden=64), make_federation(), SECURE)
    first, second = (uploads[0].fields["weights/encoder.0.weight"] for uploads in seen[:2])
    assert first.dtype == torch.int64
    assert 0.35 < (first < 0).double().mean() < 0.65
    assert not (first == second).any()
    assert all(tensor.dtype == torch.int64 for tensor in seen[0][0].fields.values())


@pytest.mark.parametrize("share", [0.5, 0.75])
def test_masks_are_between_the_participants_only(share, make_federation, make_method, run, assert_same_run):
    federation, method = make_federation(), make_method("fedgmc")
    plain = run(method, federation, participation=share)
    secure = run(method, federation, participation=share, privacy=SECURE)
    same_states(plain.server, secure.server, 1e-6)
    again = run(method, federation, participation=share, privacy=SECURE, per_cohort=1)
    assert_same_run(again, secure, 1e-5)


def test_the_sum_of_one_is_refused(make_federation, make_method, run):
    with pytest.raises(ConfigurationError, match="at least two participants"):
        run(make_method("fedavg"), make_federation(), participation=0.25, privacy=SECURE)
