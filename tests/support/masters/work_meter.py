"""Work of a master's core, counted instead of timed.

Counts calls while the core has an input: of functions, of generators at each item, and of built-in
functions. What the simulation around the core does is not counted, and a busy machine has no part
in it.
"""

from __future__ import annotations

import sys
from types import FrameType

from holdfast_master.core import Core
from holdfast_master.inputs import Input, Moment
from holdfast_master.instructions import Instruction
from simulation.steered.job import SteeredJob


class MeteredJob(SteeredJob):
    """A simulated job whose core's work is counted; its invariants are not checked."""

    validates = False
    work = 0
    """Calls so far."""

    def decide(self, core: Core, event: Input, moment: Moment) -> list[Instruction]:
        """Hand a core one input, and count."""
        before = sys.getprofile()
        sys.setprofile(self._count)
        try:
            return core.handle(event, moment)
        finally:
            sys.setprofile(before)

    def _count(self, _frame: FrameType, event: str, _argument: object) -> None:
        self.work += event in {"call", "c_call"}
