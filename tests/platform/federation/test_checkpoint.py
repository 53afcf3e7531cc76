from __future__ import annotations

import pytest
import torch

from fedatlas.platform.errors import FedatlasError
from fedatlas.platform.federation import checkpoint as module
from fedatlas.platform.federation.checkpoint import Checkpoint
from fedatlas.platform.federation.records import RoundRecord


def example(value=1.0):
    return Checkpoint(
        next_round=2,
        server={"w": {"a": torch.full((2,), value)}, "step": 3},
        clients={"w": torch.eye(2, dtype=torch.float64)},
        records=(
            RoundRecord(
                0, 0.5, float("nan"), (0.5, float("nan")), (0.1, 0.2), {"loss/total": 1.0}, {"w": 8}, {}
            ),
            RoundRecord(1, 0.6, 0.7, (0.5, 0.7), (0.1, 0.2), seconds={"round": 0.1}),
        ),
    )


def assert_equal(first, second):
    assert first.next_round == second.next_round
    assert torch.equal(first.server["w"]["a"], second.server["w"]["a"])
    assert first.server["step"] == second.server["step"]
    assert torch.equal(first.clients["w"], second.clients["w"])
    assert repr(first.records) == repr(second.records)


def test_round_trip(tmp_path):
    path = tmp_path / "new folder" / "run.checkpoint"
    example().save(path)
    assert_equal(Checkpoint.load(path), example())
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_state_before_round_zero(tmp_path):
    Checkpoint(0, {}, None, ()).save(tmp_path / "c")
    loaded = Checkpoint.load(tmp_path / "c")
    assert (loaded.next_round, loaded.clients, loaded.records) == (0, None, ())


@pytest.mark.parametrize("kept", [0, 10, 400])
def test_a_torn_file_is_refused_with_the_remedy(tmp_path, kept):
    path = tmp_path / "c"
    example().save(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(FedatlasError, match=r"checkpoint .*c cannot be read .*delete it to start over"):
        Checkpoint.load(path)


def test_another_format_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FORMAT", 99)
    example().save(tmp_path / "c")
    monkeypatch.undo()
    with pytest.raises(FedatlasError, match="has format 99, this version reads 2"):
        Checkpoint.load(tmp_path / "c")


@pytest.mark.parametrize(
    "content", [[1, 2], {"other": 1}, {"format": 2}, {"format": 2, "next_round": 0}], ids=str
)
def test_a_file_that_is_something_else_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "c")
    with pytest.raises(FedatlasError, match="cannot be read"):
        Checkpoint.load(tmp_path / "c")


def test_code_in_a_file_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (exec, ("raise SystemExit('executed')",))

    torch.save({"format": 1, "server": Trap()}, tmp_path / "c")
    with pytest.raises(FedatlasError, match="UnpicklingError"):
        Checkpoint.load(tmp_path / "c")


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=repr)
def test_an_interrupted_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, error):
    path = tmp_path / "c"
    example(1.0).save(path)

    def half(content, file):
        file.write(b"half")
        raise error

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(type(error)):
        example(2.0).save(path)
    monkeypatch.undo()
    assert_equal(Checkpoint.load(path), example(1.0))
    assert [file.name for file in tmp_path.iterdir()] == ["c"]
