from __future__ import annotations

import torch

from fedatlas.platform.federation.messages import (
    Broadcast,
    Upload,
    concatenate,
    prefixed,
    size,
    undeclared,
    unprefixed,
)


def broadcast():
    return Broadcast(
        {
            "weights/a": torch.zeros(3, 2),
            "weights/b": torch.zeros(5),
            "anchors/anchors": torch.zeros(4).double(),
        },
        {"weights/own": torch.arange(8.0).reshape(4, 2), "rank/rank": torch.zeros(4, dtype=torch.int32)},
    )


def test_groups_are_added_and_taken_off():
    tensors = {"encoder.weight": torch.ones(2), "a/b": torch.ones(1)}
    fields = prefixed("weights", tensors)
    assert list(fields) == ["weights/encoder.weight", "weights/a/b"]
    assert unprefixed("weights", {**fields, "weightsother/x": torch.ones(1)}) == tensors


def test_broadcast_is_counted_once_per_client_and_by_group():
    assert broadcast().bytes_per_field(4) == {
        "weights": 4 * (6 + 5) * 4 + 8 * 4,
        "anchors": 4 * 4 * 8,
        "rank": 4 * 4,
    }
    assert Broadcast().bytes_per_field(4) == {}


def test_cohorts_receive_their_rows():
    part = broadcast().for_clients((3, 1))
    assert part.personal["weights/own"].tolist() == [[6, 7], [2, 3]]
    assert part.common["weights/a"].shape == (3, 2)


def test_bytes_do_not_depend_on_how_clients_are_grouped():
    whole = broadcast().bytes_per_field(4)
    parts = [broadcast().for_clients(group).bytes_per_field(2) for group in ((0, 1), (2, 3))]
    assert {name: sum(part[name] for part in parts) for name in whole} == whole


def test_uploads_are_concatenated_in_client_order():
    uploads = [Upload({"value/x": torch.tensor([[1.0], [2.0]])}), Upload({"value/x": torch.tensor([[3.0]])})]
    assert concatenate(uploads).fields["value/x"].tolist() == [[1], [2], [3]]
    assert concatenate(uploads).bytes_per_field() == {"value": 12}
    assert concatenate(uploads[:1]) is uploads[0]


def test_undeclared_groups_are_named_once():
    assert undeclared(["weights/a", "labels/x", "labels/y", "age/z"], {"weights"}) == ["age", "labels"]
    assert undeclared(["weights/a"], {"weights", "size"}) == []


def test_size_in_bytes():
    assert size(torch.zeros(3, 2, dtype=torch.float64)) == 48
    assert size(torch.zeros(0)) == 0
