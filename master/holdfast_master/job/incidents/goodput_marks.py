"""Goodput that outlives the master: written down, and bridged to the next master's first second."""

from __future__ import annotations

from typing import Final

from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.phases import ENDED
from holdfast_master.job.state.timers import Timer
from holdfast_master.policies.goodput import Totals, entries, micros
from holdfast_wire.messages import GoodputClass, GoodputMarked, NodeGoodput

_SMALL: Final = 1_000
"""Nodes up to which accounts are written at each event; those of a larger job wait for the timer,
so that an incident does not write megabytes."""
_LONGEST_GAP_SECONDS: Final = 3_600.0
"""More than this is a wall clock that jumped, not a master that was away."""


def due(job: JobContext) -> None:
    """Write the accounts down, and plan the next time."""
    write(job)
    # A journal of a large job is not filled with accounts: ten times the nodes, a tenth as often.
    pause = max(job.settings.goodput_mark_seconds, 0.06 * len(job.membership.nodes))
    if job.state.phase not in ENDED:
        job.timers.set(Timer.MARK, job.now + pause)


def write(job: JobContext) -> None:
    """Write the goodput of all present nodes down."""
    totals = job.ledger.totals(job.clock.micros)
    nodes = tuple(
        NodeGoodput(node_rank=rank, classes=entries(classes))
        for rank, classes in totals.items()
        if rank in job.membership.nodes
    )
    if nodes:
        job.out.record(GoodputMarked(nodes=nodes))


def write_if_small(job: JobContext) -> None:
    """Write it down now that it has changed its class, unless the job is too large for that."""
    if len(job.membership.nodes) <= _SMALL:
        write(job)


def bring(job: JobContext, rank: int, totals: Totals) -> None:
    """Take over what a node's account held under an earlier master, and write it down."""
    if totals:
        job.ledger.bring({rank: totals})
        job.out.record(GoodputMarked(nodes=(NodeGoodput(node_rank=rank, classes=entries(totals)),)))


def bridge(job: JobContext) -> dict[int, Totals]:
    """The accounts as written, with the time since then: nobody counted, but nodes worked on.

    A member of a world that trained is taken to have trained, as agents do without a master; any
    other node to have waited.
    """
    state, now = job.state, job.clock.moment.unix
    trained = state.training and not state.ended
    members = {m.node_rank for m in state.assigned.members} if state.assigned and trained else set()
    totals = {rank: dict(classes) for rank, classes in state.goodput.items()}
    for rank in state.nodes:
        gap = min(_LONGEST_GAP_SECONDS, max(0.0, now - state.counted_unix.get(rank, now)))
        productive = rank in members and rank not in state.finished
        kind = GoodputClass.PRODUCTIVE if productive else GoodputClass.WAITING
        classes = totals.setdefault(rank, {})
        classes[kind] = classes.get(kind, 0) + micros(gap)
    return totals
