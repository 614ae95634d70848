"""Planted bugs in what incidents cost; see `bugs`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from holdfast_master.job.incidents import incidents
from holdfast_master.job.worlds import digests
from holdfast_master.policies import failure
from holdfast_master.policies.failure import Charge
from holdfast_wire.messages import BudgetKind, StateDigest
from simulation.planted.agent import Patch


def _charged_to(before: BudgetKind, after: BudgetKind | None) -> Callable[[], list[Patch]]:
    def patches() -> list[Patch]:
        right = failure.charge

        def charge(*args: Any, **more: Any) -> Charge:
            found = right(*args, **more)
            return Charge(after, found.reason) if found.kind is before else found

        return [(failure, "charge", charge)]

    return patches


def _nothing_charged() -> list[Patch]:
    return [(incidents, "_pay", lambda *_: None)]


def _digest_charges_lost() -> list[Patch]:
    """A master without a journal takes everything from a digest but the charges."""
    right = digests._replay

    def replay(context: Any, digest: StateDigest) -> None:
        right(context, dataclasses.replace(digest, charges=()))

    return [(digests, "_replay", replay)]


BUGS: tuple[tuple[str, str, Callable[[], list[Patch]]], ...] = (
    ("nothing charged", "no incident is ever charged", _nothing_charged),
    (
        "failures as rescales",
        "a failure spends the budget of rescales",
        _charged_to(BudgetKind.FAILURES, BudgetKind.RESCALES),
    ),
    (
        "preemptions as rescales",
        "a preemption spends the budget of rescales",
        _charged_to(BudgetKind.PREEMPTIONS, BudgetKind.RESCALES),
    ),
    ("rescales for nothing", "no rescale is charged", _charged_to(BudgetKind.RESCALES, None)),
    ("digest charges lost", "a digest's charges are dropped", _digest_charges_lost),
)
"""Name, what is wrong, and how."""
