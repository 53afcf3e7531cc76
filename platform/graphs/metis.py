"""METIS k-way partitioning in a process of its own.

METIS draws from the C library's one generator, which every thread of a process shares: in a process with
other threads (a Ray worker, for one) the same seed gave different partitions. A fresh process with nothing
else in it gives the same partition every time.

    python -m fedatlas.platform.graphs.metis    reads a problem from stdin and writes its parts to stdout
"""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np


def k_way(starts: np.ndarray, targets: np.ndarray, parts: int, seed: int) -> np.ndarray:
    """Part of each node, int64 [n].

    Args:
        starts, targets: CSR adjacency, [n + 1] and [2e].
        parts: number of parts.
        seed: METIS seed; 0 takes METIS's own default.

    Raises:
        RuntimeError: METIS failed, with what it said.
    """
    problem = io.BytesIO()
    np.savez(problem, starts=starts, targets=targets, parts=parts, seed=seed)
    done = subprocess.run(
        [sys.executable, "-m", "fedatlas.platform.graphs.metis"],
        input=problem.getvalue(),
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"METIS failed: {done.stderr.decode(errors='replace').strip()[-500:]}")
    result: np.ndarray = np.load(io.BytesIO(done.stdout), allow_pickle=False)
    return result


def solve(starts: np.ndarray, targets: np.ndarray, parts: int, seed: int) -> np.ndarray:
    """METIS itself, in this process: right only where no other thread draws random numbers."""
    import pymetis

    index = pymetis.zero_copy_dtype()
    adjacency = pymetis.CSRAdjacency(starts.astype(index), targets.astype(index))
    # Seed 0 stands for METIS's own default, so that a plain call of pymetis gives the same parts; the C
    # library would take 0 and 1 for the same seed anyway.
    options = pymetis.Options(seed=seed) if seed > 0 else pymetis.Options()
    # Left to itself pymetis bisects recursively up to 8 parts: another algorithm for 5 clients than for 20.
    result = pymetis.part_graph(parts, adjacency, recursive=False, options=options)
    return np.asarray(result.vertex_part, dtype=np.int64)


def main() -> None:
    """Solve the problem on stdin."""
    with np.load(io.BytesIO(sys.stdin.buffer.read()), allow_pickle=False) as problem:
        owner = solve(problem["starts"], problem["targets"], int(problem["parts"]), int(problem["seed"]))
    answer = io.BytesIO()
    np.save(answer, owner)
    sys.stdout.buffer.write(answer.getvalue())


if __name__ == "__main__":
    main()
