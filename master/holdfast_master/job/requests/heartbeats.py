"""Heartbeats: what the ranks do, noted at a constant cost each."""

from __future__ import annotations

from holdfast_master.job.checkpoints import interval
from holdfast_master.job.health import hangs
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.counts import Counts
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.world import World
from holdfast_master.job.worlds import start
from holdfast_master.policies import goodput, guessed_steps
from holdfast_master.policies.goodput import Activity
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason

_FOREVER = 1e9
_STALL_SECONDS = 10.0
_STALL_STEPS = 20.0
_COUNTED = frozenset(
    {wire.GoodputClass.PRODUCTIVE, wire.GoodputClass.CHECKPOINT, wire.GoodputClass.HANG}
)


def received(job: JobContext, node: Node, _: int, message: wire.Heartbeat) -> None:
    """Note what the ranks of a member do."""
    world = job.worlds.member(node)
    if world is None or not message.ranks:
        _note_saver(job, node, message)
        return
    number = world.round_of(node.rank)
    ranks = tuple([item for item in message.ranks if item.round == number and _is_sane(item)])
    if not ranks:
        return
    now = job.now
    _note_samples(job.counts, now, node, ranks)
    node.note(ranks)
    node.ranks_at = now
    saves = world.saves(node.rank)  # replicas have steps of their own: the first one's count
    for item in ranks:
        if saves:
            world.reached = max(world.reached, guessed_steps.reported_step(item))
        world.learn_pace(item.step_seconds)
        world.sdk_ranks += item.has_sdk
    if world.degraded and world.sdk_ranks:
        world.sdk_since = min(world.sdk_since, now)
    interval.received(job, node, world, message.saving)
    hangs.watch(job)
    _note_start(job, node, world)
    start.guessed(job, node, world)
    _note_progress(job, world)
    if world.training and job.ledger.kind(node.rank) in _COUNTED:
        _classify(job, node, world)


def _note_saver(job: JobContext, node: Node, message: wire.Heartbeat) -> None:
    """Note the steps of the replica that saves while other replicas are made: users ask for one."""
    world = job.worlds.saving()
    if world is None or not world.has(node) or not world.saves(node.rank):
        return
    own = [item for item in message.ranks if item.round == world.round_of(node.rank)]
    steps = [guessed_steps.reported_step(item) for item in own if _is_sane(item)]
    world.reached = max([world.reached, *steps])


def _is_sane(item: wire.RankProgress) -> bool:
    """Whether the times are plausible: a page can be torn or written by any script."""
    return 0 <= item.step_seconds < _FOREVER and 0 <= item.since_step_seconds < _FOREVER


def _note_start(job: JobContext, node: Node, world: World) -> None:
    """Note the start of a node whose RoundStarted may have been lost with its stream."""
    if len(node.ranks) < node.local_world_size or node.rank in world.stepped:
        return
    start.started(job, world, node.rank)
    first = min(item.first_step for item in node.ranks)
    if first:
        start.stepped(job, world, node.rank, first)


def _note_samples(
    counts: Counts, now: float, node: Node, ranks: tuple[wire.RankProgress, ...]
) -> None:
    samples = sum([item.samples for item in ranks])
    span = now - node.ranks_at
    if node.ranks and samples >= node.samples and span > 0:
        counts.samples += samples - node.samples
        rate = (samples - node.samples) / span
        old = node.samples_per_second
        node.samples_per_second = old + 0.3 * (rate - old) if old else rate
    else:
        node.samples_per_second = 0.0
    node.samples = samples


def _note_progress(job: JobContext, world: World) -> None:
    """A step beyond the last failure's is written down: no-progress charges end there."""
    failed = job.state.failed_step
    if failed is None or not world.training or not world.marked <= failed < world.reached:
        return
    world.marked = world.reached
    if any(charge.kind is wire.BudgetKind.NO_PROGRESS for charge in job.state.charges):
        job.out.record(wire.WorldTraining(round=world.round, step=world.reached))


def _classify(job: JobContext, node: Node, world: World) -> None:
    # A guess says nothing of what lies between two steps.
    ages = [0.0 if guessed_steps.is_guess(one) else one.since_step_seconds for one in node.ranks]
    activity = Activity(
        sections=frozenset([item.section for item in node.ranks]),
        since_step_seconds=max(ages),
        usual_step_seconds=world.step_seconds,
    )
    kind = goodput.classify(activity, stall_seconds=_STALL_SECONDS, stall_steps=_STALL_STEPS)
    hangs = job.health.hangs(world.round)
    job.turn(node.rank, wire.GoodputClass.HANG if hangs else kind)
    stalled = kind is wire.GoodputClass.HANG
    if stalled and not node.stalled:
        number = world.places[node.rank].replica.number
        whose = f" of replica {number}" if number else ""
        seconds = activity.since_step_seconds
        text = f"node {node.rank}{whose} completed no step for {seconds:.0f} s"
        job.out.warn(EventReason.STEP_STALLED, text, node=node.rank)
    node.stalled = stalled
