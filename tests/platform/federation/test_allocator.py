"""Freed memory stays with the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from fedatlas.platform.federation.allocator import keep_freed_memory
keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(5_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
found = [faults() for _ in range(60)]
print(found[0], sum(found[-10:]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_tensors_of_a_size_that_was_freed_before_meet_no_new_pages():
    output = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    first, last = map(int, output.stdout.split())
    assert first > 1000
    # glibc splits the first chunks that it reuses for aligned memory.
    assert last < first
