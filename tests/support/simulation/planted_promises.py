"""Planted bugs in what a master owes its job and its users; see `planted`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast_master.decide.failure import Evidence, EvidenceKind
from holdfast_master.job import adoption, goodput_marks, incidents, losses
from holdfast_master.job.desk import Desk
from holdfast_master.job.roster import Node
from simulation.planted_agent import Patch


def _never_adopted() -> list[Patch]:
    """A master that finds a whole world ends it, and a fresh round follows."""

    def adopt(desk: Desk, _: Any) -> None:
        adoption._end(desk, "a fresh round follows")

    return [(adoption, "_adopt", adopt)]


def _restart_forgotten() -> list[Patch]:
    """Who asks for a restart is answered, and that is all."""
    right = incidents.report_process

    def report_process(desk: Desk, item: Evidence, number: int) -> None:
        if item.kind is not EvidenceKind.RESTART_ASKED:
            right(desk, item, number)

    return [(incidents, "report_process", report_process)]


def _drain_forgotten() -> list[Patch]:
    """Who asks for a drain is answered, and that is all."""
    right = losses.drain

    def drain(desk: Desk, node: Node, kind: EvidenceKind, text: str) -> None:
        if kind is not EvidenceKind.DRAINED:
            right(desk, node, kind, text)

    return [(losses, "drain", drain)]


def _drained_taken_back() -> list[Patch]:
    """A drained node that was away for long is a node like others when it is back."""
    return [(losses, "_went_early", lambda *_: None)]


def _ledger_forgotten() -> list[Patch]:
    """A new master counts node time from nought."""
    return [(goodput_marks, "bridge", lambda _: {})]


BUGS: tuple[tuple[str, str, Callable[[], list[Patch]]], ...] = (
    ("never adopted", "a new master restarts the world that it finds", _never_adopted),
    ("restart forgotten", "a granted restart is not done", _restart_forgotten),
    ("ledger forgotten", "goodput begins anew with each master", _ledger_forgotten),
    ("drain forgotten", "a granted drain is not done", _drain_forgotten),
    ("drained taken back", "a drain is forgotten while its node is away", _drained_taken_back),
)
"""Name, what is wrong, and how."""
