"""Planted bugs in what a master owes its job and its users; see `bugs`."""

from __future__ import annotations

from typing import Any

from holdfast_master.job.incidents import goodput_marks, incidents
from holdfast_master.job.nodes import liveness
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.membership import Node
from holdfast_master.job.takeover import adoption
from holdfast_master.policies.failure import Evidence, EvidenceKind
from simulation.planted.patches import Bugs

BUGS = Bugs()


@BUGS.wrong("never adopted", "a new master restarts the world that it finds", adoption, "_adopt")
def _ended(_: Any, context: JobContext, *__: Any) -> None:
    adoption._end(context, "a fresh round follows")


@BUGS.wrong("restart forgotten", "a granted restart is not done", incidents, "report_process")
def _unless_asked(right: Any, context: JobContext, item: Evidence, number: int) -> None:
    if item.kind is not EvidenceKind.RESTART_ASKED:
        right(context, item, number)


@BUGS.wrong("ledger forgotten", "goodput begins anew with each master", goodput_marks, "bridge")
def _no_ledger(*_: Any) -> dict[int, Any]:
    return {}


@BUGS.wrong("drain forgotten", "a granted drain is not done", liveness, "drain")
def _unless_drained(
    right: Any, context: JobContext, node: Node, kind: EvidenceKind, text: str
) -> None:
    if kind is not EvidenceKind.DRAINED:
        right(context, node, kind, text)


@BUGS.wrong(
    "drained taken back", "a drain is forgotten while its node is away", liveness, "_went_early"
)
def _taken_back(*_: Any) -> None:
    return None
