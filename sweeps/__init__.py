"""The public Python interface: `from fedatlas.sweeps import run, tune, Study`."""

from fedatlas.sweeps.interface import Run, Study, run, tune

__all__ = ["Run", "Study", "run", "tune"]
