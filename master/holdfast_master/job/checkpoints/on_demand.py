"""A checkpoint on demand: all ranks save after the same step and go on.

Nothing of it is in the journal: a user who waits asks the next master again. Of replicas one saves,
whatever becomes of the others meanwhile.
"""

from __future__ import annotations

from holdfast_master.inputs import UserCall
from holdfast_master.instructions import RefusalCode
from holdfast_master.job.rescale import barrier
from holdfast_master.job.state.checkpoints import CheckpointTracker
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.orders import SaveOrder
from holdfast_master.job.state.phases import BEGINNING
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.wording import short
from holdfast_master.job.state.world import World
from holdfast_master.policies.quantities import counted
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason

PATIENCE_SECONDS = 300.0
"""Default limit until a requested checkpoint is committed: a slow disk takes minutes."""
LONGEST_SECONDS = 3600.0
"""Longest timeout that a `TriggerCheckpoint` caller may ask for."""
SIGN_SECONDS = 10.0
"""After the step, until something shows that ranks save it: a copy that training does not wait for
is in memory by then."""


def asked(job: JobContext, event: UserCall, request: wire.TriggerCheckpointRequest) -> None:
    """A user wants a checkpoint of now."""
    seconds = request.timeout_seconds or PATIENCE_SECONDS
    world, number = job.worlds.saving(), event.request_id
    if not 0 < seconds <= LONGEST_SECONDS:
        text = f"timeout_seconds is {seconds:g}; it must be above 0 and at most {LONGEST_SECONDS:g}"
        job.out.refuse(number, "TIMEOUT_OUT_OF_BOUNDS", text, RefusalCode.INVALID_ARGUMENT)
        return
    if world is None or not _trains(job, world):
        phase = job.state.phase.name.lower()
        text = f"no round trains now ({phase}): {job.state.text}; ask again once one does"
        job.out.refuse(number, "NOT_TRAINING", text)
        return
    problem = _problem(job, world)
    if problem:
        job.out.refuse(number, "CANNOT_SAVE", problem)
        return
    because = f": {short(request.reason)}" if request.reason else ""
    reason = f"{event.who} asks for a checkpoint{because}"
    job.out.event(EventReason.CHECKPOINT_REQUESTED, reason)
    job.timers.set(Timer.REQUEST, job.now + seconds, number)
    order = job.checkpoints.order
    if order is None:
        order = job.checkpoints.order = SaveOrder(
            round=world.saver_round, replica=world.saver_replica, reason=reason
        )
    if world.reached >= order.step:  # of a new order that is 0
        _barrier(job, world, order)
    order.requests[number] = world.reached


def _trains(job: JobContext, world: World) -> bool:
    """Whether the savers train; other replicas may be lost, or start."""
    if not world.replicas or job.state.phase not in BEGINNING:
        return job.state.phase is wire.JobPhase.TRAINING
    return world.stepped.issuperset(world.savers)


def _problem(job: JobContext, world: World) -> str:
    """Return why the ranks of a world that trains cannot save together; empty: they can."""
    if not world.fact.keeps_checkpoints:
        return "an agent of this world keeps no checkpoints: it is a plain torchrun"
    if job.checkpoints.tracker.round == world.saver_round and job.checkpoints.tracker.memory_only:
        return (
            "the ranks named no directory: this job's checkpoints live in memory only; give "
            "holdfast.Checkpointer a directory that all nodes see"
        )
    for rank in world.savers:
        node = job.membership.nodes.get(rank)
        if node is None or node.hello is None:
            return f"node {rank} is away; ask again once it is back"
        if not node.hello.knows_goes_on:
            return f"the agent of node {rank} is of a release that cannot save and go on"
    return barrier.blind(job.membership, world)


def _barrier(job: JobContext, world: World, order: SaveOrder) -> None:
    choice = barrier.set_step(job, world, order, "save")
    text = f"all ranks save after step {choice.step}: {order.reason} ({choice.reason})"
    job.out.event(EventReason.CHECKPOINT_BARRIER_SET, text)
    for node in job.membership.present(world.savers):
        send(job, node)
    job.timers.set(Timer.SAVE_ACK, barrier.seen_by(job, choice))


def send(job: JobContext, node: Node) -> None:
    """Send the order's step to a member, again after it was away."""
    world, order = job.worlds.saving(), job.checkpoints.order
    if world is None or order is None or job.worlds.barrier is not None or node.rank in order.acked:
        return
    if not world.saves(node.rank):
        return
    message = wire.SetBarrier(
        barrier_id=order.number, step=order.step, reason=order.reason, goes_on=True
    )
    job.out.send(node, message, world.round_of(node.rank))


def acked(job: JobContext, node: Node, message: wire.BarrierAck) -> None:
    """A member's ranks have seen a barrier at which they go on; an earlier one does not count."""
    world, order = job.worlds.saving(), job.checkpoints.order
    if world is None or order is None or message.barrier_id != order.number:
        return
    order.acked.add(node.rank)
    order.passed = max(order.passed, message.seen_at_step)
    if message.seen_at_step > order.step:
        _again(job, world, order, f"node {node.rank} saw it at step {message.seen_at_step}")
    elif world.covers(order.acked):
        job.timers.cancel(Timer.SAVE_ACK)
        job.timers.ensure(Timer.SAVE_SIGN, job.now + SIGN_SECONDS)


def ack_due(job: JobContext) -> None:
    """Not every member has seen the order in time."""
    world, order = job.worlds.saving(), job.checkpoints.order
    if world is not None and order is not None and job.worlds.barrier is None:
        _again(job, world, order, "not every node saw it in time")


def _again(job: JobContext, world: World, order: SaveOrder, late: str) -> None:
    if job.worlds.barrier is not None:
        return  # its barrier took the place of this one, and its save will do
    order.tries += 1
    if order.tries < job.settings.barrier_tries:
        _barrier(job, world, order)
        return
    text = f"step {order.step} was set too late, {counted(order.tries, 'time')}: {late}"
    _refuse_all(job, order, "MISSED", text)


def sign_due(job: JobContext) -> None:
    """Whoever asks is told at once where no rank has begun to save."""
    world, order = job.worlds.saving(), job.checkpoints.order
    if world is None or order is None or job.worlds.barrier is not None:
        return
    nodes = job.membership.present(world.savers)
    if any(node.saving for node in nodes) or _is_known(job.checkpoints.tracker, order.step):
        return  # the script has a Checkpointer: its storage may be slow
    if min((node.step for node in nodes), default=0) <= order.step:
        job.timers.set(Timer.SAVE_SIGN, job.now + SIGN_SECONDS)
        return
    text = (
        f"all ranks have passed step {order.step}, and none saves it: the script must save with "
        "holdfast.Checkpointer where job.step() answers SAVE"
    )
    _refuse_all(job, order, "CANNOT_SAVE", text, RefusalCode.FAILED_PRECONDITION)


def _is_known(tracker: CheckpointTracker, step: int) -> bool:
    """Whether a node has a part of a step from `step` on, in memory or being stored."""
    stored = (version for version, _ in (*tracker.pending, *tracker.done))
    return any(version.step >= step for version in (*tracker.counts, *stored))


def committed(job: JobContext, order: SaveOrder, fact: wire.CheckpointCommitted) -> None:
    """A step is on storage: whoever asked before it was done has what he wanted."""
    version = fact.version
    if version is None:
        return
    answer = wire.TriggerCheckpointResponse(
        step=version.step, path=f"{fact.root.rstrip('/')}/step_{version.step}"
    )
    for number in [one for one, since in order.requests.items() if since < version.step]:
        del order.requests[number]
        job.timers.cancel(Timer.REQUEST, subject=number)
        job.out.reply(number, answer)
    if not order.requests:
        _end(job, order)


def failed(job: JobContext, order: SaveOrder, version: wire.CheckpointVersion, error: str) -> None:
    """A step will not be on storage."""
    if version.step == order.step:
        _refuse_all(job, order, "CHECKPOINT_FAILED", f"step {version.step}: {error}")


def settle(job: JobContext, order: SaveOrder) -> None:
    """An order ends with the processes that it was given to at the latest."""
    world = job.worlds.saving()
    savers = (world.saver_replica, world.saver_round) if world is not None else None
    if savers == (order.replica, order.round):
        return
    text = f"round {order.round} ended before step {order.step} was on storage; ask again"
    _refuse_all(job, order, "ROUND_ENDED", text)


def request_due(job: JobContext, request_id: int) -> None:
    """A user has waited long enough."""
    order = job.checkpoints.order
    if order is None or request_id not in order.requests:
        return
    del order.requests[request_id]
    text = f"step {order.step} is not on storage yet; `holdfast events` tells when it is"
    if job.state.checkpoint is None:
        text = (
            f"step {order.step} was not saved in time; does the script save with "
            "holdfast.Checkpointer, to a path?"
        )
    job.out.refuse(request_id, "SAVE_SLOW", text, RefusalCode.DEADLINE_EXCEEDED)
    if not order.requests:
        _end(job, order)


def _refuse_all(
    job: JobContext,
    order: SaveOrder,
    reason: str,
    text: str,
    code: RefusalCode = RefusalCode.ABORTED,
) -> None:
    for number in _end(job, order):
        job.out.refuse(number, reason, text, code)


def _end(job: JobContext, order: SaveOrder) -> list[int]:
    """Forget the order; return who waits for it."""
    job.checkpoints.order = None
    job.timers.cancel(Timer.SAVE_ACK, Timer.SAVE_SIGN)
    for number in order.requests:
        job.timers.cancel(Timer.REQUEST, subject=number)
    return list(order.requests)
