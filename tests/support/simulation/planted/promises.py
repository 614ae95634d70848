"""Planted bugs in what a master owes its job and its users; see `bugs`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast_master.job.incidents import goodput_marks, incidents
from holdfast_master.job.nodes import liveness
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.membership import Node
from holdfast_master.job.takeover import adoption
from holdfast_master.policies.failure import Evidence, EvidenceKind
from simulation.planted.agent import Patch


def _never_adopted() -> list[Patch]:
    """A master that finds a whole world ends it, and a fresh round follows."""

    def adopt(context: JobContext, *_: Any) -> None:
        adoption._end(context, "a fresh round follows")

    return [(adoption, "_adopt", adopt)]


def _restart_forgotten() -> list[Patch]:
    """A master answers a request for a restart and does nothing else."""
    right = incidents.report_process

    def report_process(context: JobContext, item: Evidence, number: int) -> None:
        if item.kind is not EvidenceKind.RESTART_ASKED:
            right(context, item, number)

    return [(incidents, "report_process", report_process)]


def _drain_forgotten() -> list[Patch]:
    """A master answers a request for a drain and does nothing else."""
    right = liveness.drain

    def drain(context: JobContext, node: Node, kind: EvidenceKind, text: str) -> None:
        if kind is not EvidenceKind.DRAINED:
            right(context, node, kind, text)

    return [(liveness, "drain", drain)]


def _drained_taken_back() -> list[Patch]:
    """A drained node that was away for long is a node like others when it is back."""
    return [(liveness, "_went_early", lambda *_: None)]


def _ledger_forgotten() -> list[Patch]:
    """A new master counts node time from nought."""
    return [(goodput_marks, "bridge", lambda *_: {})]


BUGS: tuple[tuple[str, str, Callable[[], list[Patch]]], ...] = (
    ("never adopted", "a new master restarts the world that it finds", _never_adopted),
    ("restart forgotten", "a granted restart is not done", _restart_forgotten),
    ("ledger forgotten", "goodput begins anew with each master", _ledger_forgotten),
    ("drain forgotten", "a granted drain is not done", _drain_forgotten),
    ("drained taken back", "a drain is forgotten while its node is away", _drained_taken_back),
)
"""Name, what is wrong, and how."""
