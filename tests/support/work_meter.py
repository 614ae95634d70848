"""How much a master's core works, counted instead of timed.

Counts calls while the core has an input: of functions, of generators at each item, and of built-in
functions. What the simulation around the core does is not counted, and a busy machine has no part
in it.
"""

from __future__ import annotations

import sys
from types import FrameType

from holdfast_master.inputs import Input
from holdfast_master.instructions import Instruction
from simulated_job import SimulatedJob


class MeteredJob(SimulatedJob):
    """A simulated job whose core's work is counted; its invariants are not checked."""

    work = 0
    """Calls so far."""

    def take(self, event: Input) -> list[Instruction]:
        """Hand the core one input, and count."""
        if not self.master_up:
            return []
        before = sys.getprofile()
        sys.setprofile(self._count)
        try:
            batch = self.core.handle(event, self.moment())
        finally:
            sys.setprofile(before)
        self.do(batch)
        return batch

    def _count(self, _frame: FrameType, event: str, _argument: object) -> None:
        self.work += event in {"call", "c_call"}
