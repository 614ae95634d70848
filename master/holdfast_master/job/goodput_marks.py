"""Goodput that outlives the master: written down, and bridged to the next master's first second.

Belongs here: when accounts are written, what became of the time that nobody counted. Does not
belong here: counting (`ledger`), the classes (`decide.goodput`).
"""

from __future__ import annotations

from typing import Final

from holdfast_master.decide.goodput import Totals, entries, micros
from holdfast_master.job.desk import Desk
from holdfast_master.job.timers import Timer
from holdfast_master.job.transitions import ENDED
from holdfast_wire.messages import GoodputClass, GoodputMarked, NodeGoodput

_SMALL: Final = 1_000
"""Nodes up to which accounts are written at each event; those of a larger job wait for the timer,
so that an incident does not write megabytes."""
_LONGEST_GAP_SECONDS: Final = 3_600.0
"""More than this is a wall clock that jumped, not a master that was away."""


def due(desk: Desk) -> None:
    """Write the accounts down, and plan the next time."""
    write(desk)
    # A journal of a large job is not filled with accounts: ten times the nodes, a tenth as often.
    pause = max(desk.settings.goodput_mark_seconds, 0.06 * len(desk.roster.nodes))
    if desk.state.phase not in ENDED:
        desk.timers.set(Timer.MARK, desk.now + pause)


def write(desk: Desk) -> None:
    """Write the goodput of all present nodes down."""
    totals = desk.ledger.totals(desk.clock.micros)
    nodes = tuple(
        NodeGoodput(node_rank=rank, classes=entries(classes))
        for rank, classes in totals.items()
        if rank in desk.roster.nodes
    )
    if nodes:
        desk.record(GoodputMarked(nodes=nodes))


def write_if_small(desk: Desk) -> None:
    """Write it down now that it has changed its class, unless the job is too large for that."""
    if len(desk.roster.nodes) <= _SMALL:
        write(desk)


def bridge(desk: Desk) -> dict[int, Totals]:
    """The accounts as written, with the time since then: nobody counted, but nodes worked on.

    A member of a world that trained is taken to have trained, as agents do without a master; any
    other node to have waited.
    """
    state, now = desk.state, desk.clock.moment.unix
    trained = state.assigned is not None and state.training and not state.ended
    members = {m.node_rank for m in state.assigned.members} if state.assigned and trained else set()
    totals = {rank: dict(classes) for rank, classes in state.goodput.items()}
    for rank in state.nodes:
        gap = min(_LONGEST_GAP_SECONDS, max(0.0, now - state.counted_unix.get(rank, now)))
        productive = rank in members and rank not in state.finished
        kind = GoodputClass.PRODUCTIVE if productive else GoodputClass.WAITING
        classes = totals.setdefault(rank, {})
        classes[kind] = classes.get(kind, 0) + micros(gap)
    return totals
