"""The public Python interface: `from fedatlas.sweeps import run, Study`."""

from fedatlas.sweeps.interface import Run, Study, run

__all__ = ["Run", "Study", "run"]
