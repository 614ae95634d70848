"""Invariants of a master's state of checkpoints: memory is not thrown away, grants end.

Belongs here: checks of a master against itself. Does not belong here: what the storage has seen
(`storage`), and what the agents do (`keeper`).
"""

from __future__ import annotations

from holdfast_master.job.state.context import JobContext
from holdfast_wire.messages import JobPhase, PhaseChanged
from simulation.oracle.invariants import require


def memory_kept(context: JobContext) -> None:
    """Agents are not sent away while they hold a newer step than storage does, all together.

    But for those who were given time to write it, whom somebody wants gone at once, or who
    cannot: a rank's part of it was lost, and what a world could start from alone is no checkpoint.
    """
    world, book, stop = context.worlds.assigned, context.checkpoints.tracker, context.state.stop
    memory, fact = book.memory, context.state.checkpoint
    if stop is None or stop.succeeded or memory is None or world is None:
        return
    nodes = context.membership.nodes
    there = all(
        rank in nodes
        and nodes[rank].agent_id == agent
        and not nodes[rank].over
        and rank not in context.state.released
        for rank, agent in memory.holders
    )
    stored = fact is not None and fact.version is not None and fact.version >= memory.version
    excused = memory.version in book.failed or (world.round, True) in book.rescued or memory.partial
    text = f"all are sent away, and only memory has {memory.version}"
    require(stored or excused or not there, "memory_kept", text)


def grants_answered(context: JobContext) -> None:
    """Nobody waits for an agent that has a grant and does not answer."""
    limit = context.settings.commit_seconds + 1.0
    for pending in context.checkpoints.tracker.pending.values():
        if pending.coordinator is not None:
            since = context.now - pending.granted_at
            text = f"{pending.coordinator} has the grant of {pending.version} since {since:.1f} s"
            require(since <= limit, "grant_answered", text)


def ends_begin(context: JobContext, fact: object) -> None:
    """Look at what a record says: the agents are about to be sent away."""
    if isinstance(fact, PhaseChanged) and fact.phase is JobPhase.STOPPING:
        memory_kept(context)
