"""A file is there whole or as it was before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedatlas.platform.files import remove_partial, write_text_whole, written_whole


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "below" / "file.txt"
    write_text_whole(path, "old")
    with written_whole(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text_whole(path, "old")

    def fail(temporary: Path) -> None:
        temporary.write_text("ne")
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"), written_whole(path) as temporary:
        fail(temporary)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_leaves_is_not_the_file_and_can_be_removed(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text_whole(path, "old")
    program = (
        "import os, sys; from pathlib import Path; from fedatlas.platform.files import written_whole\n"
        "with written_whole(Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_text('ne'); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    other = tmp_path / ".other.1.partial"
    other.touch()
    assert len(list(tmp_path.iterdir())) == 3
    remove_partial(tmp_path, "file.txt")
    assert sorted(tmp_path.iterdir()) == [other, path]
    remove_partial(tmp_path)
    assert list(tmp_path.iterdir()) == [path]
