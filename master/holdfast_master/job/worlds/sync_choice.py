"""Choices of replicas how to agree (local SGD with switching), written down and told.

Belongs here: which report is news, and the event with its reason. Does not belong here: the choice.
The ranks make it, all alike after the same step, and so need no answer of a master to go on.
"""

from __future__ import annotations

import dataclasses

from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.nodes import Node
from holdfast_master.job.state.world import World
from holdfast_wire.messages import SyncChosen
from holdfast_wire.reasons import EventReason


def chosen(job: JobContext, node: Node, number: int, message: SyncChosen) -> None:
    """Ranks of a node have chosen; a report that is made again changes nothing."""
    world, last = job.worlds.assigned, job.state.sync
    if world is None or not world.holds(node.rank, node.agent_id):
        return
    if not world.is_about(node.rank, number) or (last and _is_known(message, last, world)):
        return
    fact = dataclasses.replace(message, round=number)
    job.out.record(fact)
    reason = EventReason.SYNC_SWITCHED if fact.made else EventReason.SYNC_PROPOSED
    job.out.event(reason, _text(fact), node=node.rank)


def _is_known(message: SyncChosen, last: SyncChosen, world: World) -> bool:
    """Return whether a choice is no news.

    Of replicas that come and go another one may tell it where the first rank is lost: a lower step
    is an older choice of theirs, and what they propose they find again and again. In a world of one
    a lower step may be a script that has gone back.
    """
    repeats = not (message.made or last.made) and message.interval == last.interval
    if world.replicas and (message.step <= last.step or repeats):
        return True
    return dataclasses.replace(message, round=last.round) == last


def _text(fact: SyncChosen) -> str:
    verb = "agree" if fact.made else "would agree"
    return (
        f"replicas {verb} {_often(fact.interval)} from step {fact.step} on, not "
        f"{_often(fact.interval_before)}: {fact.reason}"
    )


def _often(interval: int) -> str:
    return "in each step" if interval <= 1 else f"after each {interval} steps"
