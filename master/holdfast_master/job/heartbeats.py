"""Heartbeats: what the ranks do, noted at a constant cost each.

Belongs here: progress, pace, samples, the goodput class of a training node. Does not belong here:
silence (`losses`), anything that looks at all nodes.
"""

from __future__ import annotations

from holdfast_master.decide import goodput
from holdfast_master.decide.goodput import Activity
from holdfast_master.job import schedules, starting
from holdfast_master.job.desk import Desk, Warn
from holdfast_master.job.roster import Node
from holdfast_master.job.world import World
from holdfast_wire.messages import (
    BudgetKind,
    GoodputClass,
    Heartbeat,
    RankProgress,
    WorldTraining,
)
from holdfast_wire.reasons import EventReason

_FOREVER = 1e9
_STALL_SECONDS = 10.0
_STALL_STEPS = 20.0
_COUNTED = frozenset({GoodputClass.PRODUCTIVE, GoodputClass.CHECKPOINT, GoodputClass.HANG})


def heard(desk: Desk, node: Node, _: int, message: Heartbeat) -> None:
    """Note what the ranks of a member do."""
    world = desk.member(node)
    if world is None or not message.ranks:
        return
    number = world.round
    ranks = tuple([item for item in message.ranks if item.round == number and _is_sane(item)])
    if not ranks:
        return
    _note_samples(desk, node, ranks)
    node.note(ranks)
    node.ranks_at = desk.now
    for item in ranks:
        world.reached = max(world.reached, item.step)
        world.learn_pace(item.step_seconds)
        world.sdk_ranks += item.has_sdk
    schedules.heard(desk, node, world, message.saving)
    _note_start(desk, node, world)
    _note_progress(desk, world)
    if world.training and desk.ledger.kind(node.rank) in _COUNTED:
        _classify(desk, node, world)


def _is_sane(item: RankProgress) -> bool:
    """Whether the times are times: a page can be torn or written by anybody's script."""
    return 0 <= item.step_seconds < _FOREVER and 0 <= item.since_step_seconds < _FOREVER


def _note_start(desk: Desk, node: Node, world: World) -> None:
    """What RoundStarted would have said, should it have been lost with its stream."""
    if len(node.ranks) < node.local_world_size or node.rank in world.stepped:
        return
    starting.started(desk, world, node.rank)
    first = min(item.first_step for item in node.ranks)
    if first:
        starting.stepped(desk, world, node.rank, first)


def _note_samples(desk: Desk, node: Node, ranks: tuple[RankProgress, ...]) -> None:
    samples = sum([item.samples for item in ranks])
    span = desk.now - node.ranks_at
    if node.ranks and samples >= node.samples and span > 0:
        rate = (samples - node.samples) / span
        old = node.samples_per_second
        node.samples_per_second = old + 0.3 * (rate - old) if old else rate
    else:
        node.samples_per_second = 0.0
    node.samples = samples


def _note_progress(desk: Desk, world: World) -> None:
    """A step beyond the last failure's is written down: no-progress charges end there."""
    failed = desk.state.failed_step
    if failed is None or not world.training or not world.marked <= failed < world.reached:
        return
    world.marked = world.reached
    if any(charge.kind is BudgetKind.NO_PROGRESS for charge in desk.state.charges):
        desk.record(WorldTraining(round=world.round, step=world.reached))


def _classify(desk: Desk, node: Node, world: World) -> None:
    activity = Activity(
        sections=frozenset([item.section for item in node.ranks]),
        since_step_seconds=max([item.since_step_seconds for item in node.ranks]),
        usual_step_seconds=world.step_seconds,
    )
    kind = goodput.classify(activity, stall_seconds=_STALL_SECONDS, stall_steps=_STALL_STEPS)
    desk.turn(node.rank, kind)
    stalled = kind is GoodputClass.HANG
    if stalled and not node.stalled:
        text = f"node {node.rank} completed no step for {activity.since_step_seconds:.0f} s"
        desk.event(EventReason.STEP_STALLED, text, Warn, node=node.rank)
    node.stalled = stalled
