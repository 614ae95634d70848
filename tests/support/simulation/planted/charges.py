"""Planted bugs in what incidents cost; see `bugs`."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from holdfast_master.job.incidents import incidents
from holdfast_master.job.worlds import digests
from holdfast_master.policies import failure
from holdfast_master.policies.failure import Charge
from holdfast_wire.messages import BudgetKind, StateDigest
from simulation.planted.patches import Bugs

BUGS = Bugs()


@BUGS.wrong("nothing charged", "no incident is ever charged", incidents, "_pay")
def _unpaid(*_: Any) -> None:
    return None


def _charged_to(
    before: BudgetKind, after: BudgetKind | None, right: Any, *args: Any, **more: Any
) -> Charge:
    found: Charge = right(*args, **more)
    return Charge(after, found.reason) if found.kind is before else found


for _name, _what, _before, _after in (
    (
        "failures as rescales",
        "a failure spends the budget of rescales",
        BudgetKind.FAILURES,
        BudgetKind.RESCALES,
    ),
    (
        "preemptions as rescales",
        "a preemption spends the budget of rescales",
        BudgetKind.PREEMPTIONS,
        BudgetKind.RESCALES,
    ),
    ("rescales for nothing", "no rescale is charged", BudgetKind.RESCALES, None),
):
    BUGS.wrong(_name, _what, failure, "charge")(functools.partial(_charged_to, _before, _after))


@BUGS.wrong("digest charges lost", "a digest's charges are dropped", digests, "_replay")
def _chargeless(right: Any, context: Any, digest: StateDigest) -> None:
    right(context, dataclasses.replace(digest, charges=()))
