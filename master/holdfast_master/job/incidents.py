"""Incidents: opened by the first evidence, blamed anew by better evidence.

Belongs here: which incident evidence belongs to, and breaking a world. Does not belong here: how
evidence is ranked (`decide.failure`), charging (`charges`), the next world (`rounds`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from holdfast_master.decide import arming
from holdfast_master.decide.arming import Sighting
from holdfast_master.decide.failure import Evidence
from holdfast_master.decide.goodput import micros
from holdfast_master.job import charges
from holdfast_master.job.case import Case
from holdfast_master.job.desk import Desk, Warn
from holdfast_master.job.roster import Node
from holdfast_master.job.timers import Timer
from holdfast_master.job.world import World
from holdfast_wire.messages import EventSeverity, GoodputClass, WorldEnded
from holdfast_wire.reasons import EventReason


def concerns(desk: Desk, node: Node, round_number: int) -> bool:
    """Whether a node's evidence about its processes of a round still counts.

    Not if another world runs under that number: masters without a journal count anew.
    """
    world = desk.member(node)
    if world is not None and world.round == round_number:
        return True
    return any(round_number in case.broken for case in desk.open_cases())


def report_process(desk: Desk, item: Evidence, round_number: int) -> None:
    """Evidence about the processes of a round.

    It is a failure of the running world, or blame for an earlier one. Evidence of rounds that no
    open incident is about is dropped.
    """
    world = desk.running()
    if world is not None and world.round == round_number and _is_of(world, item):
        _interrupt(desk, world, item, joins=_shaken(desk, world))
        return
    for case in reversed(desk.open_cases()):
        if round_number in case.broken:
            if not _is_echo(case, item):
                _add(desk, case, item)
            return


def _is_of(world: World, item: Evidence) -> bool:
    return item.node_rank is None or world.holds(item.node_rank, item.agent_id)


def _is_echo(case: Case, item: Evidence) -> bool:
    """Whether a process failed because the master itself had ended its round.

    Agents kill the ranks of a round one after another: some rank sees its peers go and raises
    before its own end comes. Where the change was wanted, nobody is to be blamed for that.
    """
    return case.planned and case.broken_at is not None and item.at >= case.broken_at


def report_loss(desk: Desk, item: Evidence, world: World, rank: int) -> None:
    """Evidence that a member of the newest world is gone."""
    if rank in world.saved:
        if desk.case is not None:
            _add(desk, desk.case, item)
        return
    if desk.running() is world:
        case = desk.case
        late = case is not None and rank not in world.started and rank not in case.lost
        _interrupt(desk, world, item, joins=late)
    elif desk.case is not None:
        _add(desk, desk.case, item)
    if not world.assigned:
        break_world(desk, item.text)
    if desk.case is not None:
        desk.case.lost.add(rank)


def report_gone(desk: Desk, item: Evidence, rank: int) -> None:
    """Evidence that a node is gone that the newest world does without.

    It was in the world that was interrupted: its end explains what the others met at that time.
    """
    for case in reversed(desk.open_cases()):
        near = abs(item.at - case.opened_at) <= desk.settings.terminal_seconds
        if rank in case.members and near and not case.planned:
            _add(desk, case, item)
            return


def report_late(desk: Desk, item: Evidence, rank: int) -> None:
    """Evidence about a node that is already gone: it happened when the node was lost.

    What is heard late of a node's earlier agent says nothing of what its next one met.
    """
    for case in reversed(desk.open_cases()):
        if case.agents.get(rank, item.agent_id) != item.agent_id:
            continue
        # A node that was told to leave and left is no news about a planned change.
        if rank in case.involved and not case.planned:
            _add(desk, case, dataclasses.replace(item, at=case.involved[rank]))
            return


def _shaken(desk: Desk, world: World) -> bool:
    """Whether a member has not started and may be dead: what fails now fails because of it."""
    unsure = desk.roster.away | desk.roster.quiet
    return any(rank in world.places and rank not in world.started for rank in unsure)


def _interrupt(desk: Desk, world: World, item: Evidence, *, joins: bool) -> None:
    """The running world has failed."""
    case = desk.case
    if case is not None and (joins or not case.broken):
        break_world(desk, item.text)
        case.progressed = desk.state.progressed(case.from_round)
        _add(desk, case, item)
        return
    for earlier in desk.open_cases():
        charges.close(desk, earlier)
    break_world(desk, item.text)
    open_case(desk, item, world)


def open_case(desk: Desk, item: Evidence, world: World, *, asked: bool = True) -> Case:
    """Open an incident about the newest world."""
    state = desk.state
    case = Case(
        id=f"i{desk.identity.epoch}.{state.incident_count + 1}",
        best=item,
        opened_at=desk.now,
        opened_unix=desk.clock.moment.unix,
        from_round=world.round,
        broken={world.round} if desk.broken else set(),
        broken_at=desk.now if desk.broken else None,
        asked=asked,
        progressed=state.progressed(world.round),
        seen=[item.text],
        count=1,
        detection=max(0.0, desk.now - item.at),
    )
    case.remember(world, _reached(desk, world, item))
    case.involve(item)
    desk.case = case
    desk.record(case.fact(opened=True, charged=None, cost=()))
    severity = EventSeverity.NORMAL if case.planned else Warn
    desk.event(
        EventReason.INCIDENT_OPENED, item.text, severity, node=item.node_rank, incident=case.id
    )
    if desk.broken:
        _count_cost(desk, case, world)
    charges.judge(desk, case)
    return case


def break_world(desk: Desk, why: str) -> None:
    """The newest world cannot go on; the next steering forms another."""
    world = desk.world
    if world is None or desk.broken:
        return
    desk.broken = why
    desk.boundary = None
    desk.dirty = True
    for timer in (Timer.STORE, Timer.START, Timer.ECHO, Timer.BOUNDARY, Timer.GROW):
        desk.timers.cancel(timer)
    if not world.assigned:
        return
    desk.recovering = True
    # Agents are told to stop, and users that they were heard: a successor must not take the world
    # for one that runs.
    desk.record(WorldEnded(round=world.round, step=world.reached, reason=why), durable=True)
    if desk.case is not None:
        desk.case.broken.add(world.round)
        desk.case.broken_at = desk.now
        desk.case.remember(world, _reached(desk, world, desk.case.best))
        _count_cost(desk, desk.case, world)


def _reached(desk: Desk, world: World, item: Evidence) -> int:
    """How far the ranks were: a process that ended said so; otherwise they went on a little."""
    stood = bool(world.saved) and world.all_saved()
    if item.rank is not None or not world.training or stood:
        return world.reached
    return arming.reach(sightings(desk, world), world.reached)


def sightings(desk: Desk, world: World) -> Iterator[Sighting]:
    """The last progress of every rank."""
    for rank in world.places:
        node = desk.roster.nodes.get(rank)
        for item in node.ranks if node is not None else ():
            yield Sighting(
                step=item.step,
                step_seconds=item.step_seconds or world.step_seconds,
                since_step_seconds=item.since_step_seconds,
                age=max(0.0, desk.now - node.ranks_at) if node is not None else 0.0,
            )


def _count_cost(desk: Desk, case: Case, world: World) -> None:
    """From now on the members' time is the incident's cost; so is the time before detection."""
    kind = cost_class(case)
    for rank, place in world.places.items():
        node = desk.roster.nodes.get(rank)
        if node is None or node.agent_id != place.member.agent_id or rank in world.finished:
            continue
        if case.detection and world.training:
            desk.ledger.reclassify(rank, micros(case.detection), kind, desk.clock.micros, case.id)
        desk.turn(rank, kind, case.id)


def cost_class(case: Case | None) -> GoodputClass:
    """What the time between two worlds counts as."""
    if case is None:
        return GoodputClass.WAITING
    return GoodputClass.RESCALE if case.planned or case.smooth else GoodputClass.RESTART


def _add(desk: Desk, case: Case, item: Evidence) -> None:
    before, given_up = case.best, case.given_up
    case.involve(item)
    if not case.add(item):
        if case.given_up != given_up:
            charges.judge(desk, case)
        return
    case.detection = max(case.detection, case.opened_at - item.at)
    if (before.kind, before.node_rank) != (item.kind, item.node_rank):
        desk.event(
            EventReason.INCIDENT_BLAMED,
            f"{item.text} (better evidence than before)",
            node=item.node_rank,
            incident=case.id,
        )
    desk.record(case.fact(opened=True, charged=None, cost=()))
    charges.judge(desk, case)
