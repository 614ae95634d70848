"""The barrier: all ranks save and stop after the same step, for a rescale, a suspension, an end."""

from __future__ import annotations

from holdfast_master.job.incidents import incidents, rank_reports
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.membership import Membership, Node
from holdfast_master.job.state.orders import Barrier, StepOrder
from holdfast_master.job.state.phases import Trigger
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.world import World
from holdfast_master.policies import barrier as policy
from holdfast_master.policies.barrier import BarrierStep
from holdfast_master.policies.quantities import counted
from holdfast_wire.messages import BarrierAck, BarrierReached, GoodputClass, JobPhase, SetBarrier
from holdfast_wire.reasons import EventReason, PhaseReason


def stop(job: JobContext, world: World, reason: str, patience: float) -> None:
    """Have all ranks save and stop after the same step, or end the world if they cannot."""
    problem = blind(job.membership, world) or _hopeless(job, world)
    if problem:
        miss(job, f"{reason}; {problem}")
        return
    job.worlds.barrier = Barrier(reason=reason, patience=patience)
    _barrier(job, world, job.worlds.barrier)


def _hopeless(job: JobContext, world: World) -> str:
    """The reason not to try at all; empty: a barrier may be reached.

    A drain and a rescale try: ranks that hang cost them the barrier's time, and ranks that were at
    work save. A job that a person ends is not kept for a step that no rank comes to.
    """
    hang = job.health.hang_watch.hang if job.health.hangs(world.round) else None
    verdict = hang.verdict if hang is not None else None
    if job.state.stop is None or verdict is None or verdict.may_be_work or verdict.busy:
        return ""
    return "the ranks hang and come to no other step"


def blind(membership: Membership, world: World) -> str:
    """The reason why the ranks cannot be stopped together; empty: they can."""
    if world.degraded:
        return "no rank reports steps"
    for node, item in membership.reports(world.savers):
        if not item.has_sdk:
            return f"node {node.rank} runs a process without the SDK"
    return ""


def _barrier(job: JobContext, world: World, barrier: Barrier) -> None:
    choice = set_step(job, world, barrier, "barrier")
    text = f"all ranks save and stop after step {choice.step}: {barrier.reason}"
    job.move(Trigger.BARRIER_SET, PhaseReason.BARRIER, text)
    job.out.event(EventReason.BARRIER_SET, f"{text} ({choice.reason})")
    for node in job.membership.present(world.savers):
        send_barrier(job, node)
    job.timers.set(Timer.ACK, seen_by(job, choice))
    job.timers.set(Timer.BARRIER, job.now + choice.expected_seconds + barrier.patience)


def set_step(job: JobContext, world: World, order: StepOrder, command: str) -> BarrierStep:
    """Give an order a new number, and a step that no rank has begun when it sees the order."""
    choice = _choose(job, world, order)
    order.number, order.step = job.out.command(command, 0), choice.step
    order.acked.clear()
    return choice


def _choose(job: JobContext, world: World, order: StepOrder) -> BarrierStep:
    return policy.choose(
        rank_reports.sightings(job, world),
        latency=_latency(job),
        tries=order.tries,
        not_before=max(world.reached, order.passed),
    )


def _latency(job: JobContext) -> float:
    """The latency to a rank's page and back with the next heartbeat, s."""
    return job.settings.latency_seconds + job.membership.heartbeat


def seen_by(job: JobContext, choice: BarrierStep) -> float:
    """The time by which every rank should have seen an order, patient clock, s."""
    return job.now + choice.expected_seconds + 2 * _latency(job) + 0.5


def resume(job: JobContext, world: World) -> None:
    """An earlier master's barrier: its ranks save and stop all the same, if all know the step."""
    if not all(job.membership.agent(rank, agent) for rank, agent in world.holders):
        incidents.break_world(job, "a new master took over: had those saved that are gone?")
        return
    settings, stop, incident = job.settings, job.state.stop, job.incidents.current
    reason = job.state.text if incident is None else incident.best.text
    shrinks = len(world.places) > job.wanted
    patience = job.spec.scale_down_grace_seconds if shrinks else settings.barrier_seconds
    patience = patience if stop is None else job.end.grace / 2
    job.worlds.barrier = Barrier(reason=reason, patience=patience)
    job.timers.set(Timer.BARRIER, job.now + settings.silence_seconds + patience)


def take_up(job: JobContext, world: World) -> None:
    """Members say that an earlier master had set a barrier; this one has no record of it."""
    if job.state.phase is not JobPhase.TRAINING:
        return
    text = "ranks are to save and stop, as an earlier master wanted"
    job.move(Trigger.BARRIER_SET, PhaseReason.BARRIER, text)
    job.out.event(EventReason.BARRIER_SET, text)
    resume(job, world)
    _await_acks(job)


def _await_acks(job: JobContext) -> None:
    job.timers.set(Timer.ACK, job.now + 2 * _latency(job))


def send_barrier(job: JobContext, node: Node) -> None:
    """Send the barrier's step to a member, again after it was away."""
    world, barrier = job.worlds.running(), job.worlds.barrier
    if world is None or barrier is None or node.rank in world.saved:
        return
    if not world.saves(node.rank):
        return  # replicas have steps of their own: one saves, and all stop once it has
    if not barrier.number:
        _await_acks(job)
        return
    message = SetBarrier(barrier_id=barrier.number, step=barrier.step, reason=barrier.reason)
    job.out.send(node, message, world.round_of(node.rank))


def acked(job: JobContext, node: Node, message: BarrierAck) -> None:
    """A member's ranks have seen a barrier."""
    world, barrier = job.worlds.member(node), job.worlds.barrier
    if world is None or barrier is None:
        return
    if not barrier.number:
        barrier.found[node.rank] = message.barrier_id
        barrier.passed = max(barrier.passed, message.seen_at_step)
        return
    if message.barrier_id != barrier.number:
        return
    barrier.acked.add(node.rank)
    barrier.passed = max(barrier.passed, message.seen_at_step)
    if message.seen_at_step >= barrier.step:
        late = f"node {node.rank} saw the barrier at step {message.seen_at_step}"
        _again(job, world, barrier, late)
    elif world.covers(barrier.acked | world.saved.keys()):
        job.timers.cancel(Timer.ACK)


def ack_due(job: JobContext) -> None:
    """Not every member has seen the barrier in time."""
    world, barrier = job.worlds.running(), job.worlds.barrier
    if world is None or barrier is None:
        return
    running = set(world.savers) - world.saved.keys() - world.finished
    nodes = [job.membership.nodes.get(rank) for rank in running]
    back = all(node is not None and node.session is not None for node in nodes)
    # A node that is away has an earlier master's barrier, or gets a new one when it is back.
    if barrier.number or (back and barrier.is_apart(running)):
        _again(job, world, barrier, "not every node saw the barrier in time")
    elif back:
        # Its step is not known here; a barrier of this moment would be for a later one.
        latest = _choose(job, world, barrier)
        job.timers.set(Timer.BARRIER, job.now + latest.expected_seconds + barrier.patience)


def _again(job: JobContext, world: World, barrier: Barrier, late: str) -> None:
    if world.saved:
        # Some have stopped already: who has not heard of an earlier master's barrier by now never
        # will. Under a barrier of this master the others stop too, or the deadline comes.
        if not barrier.number:
            miss(job, f"{late}, and {len(world.saved)} have saved and stopped")
        return
    problem = blind(job.membership, world)
    if problem:  # not known when the barrier began: the master may have been new
        miss(job, f"{late}; {problem}")
        return
    barrier.tries += 1
    if barrier.tries >= job.settings.barrier_tries:
        miss(job, f"{late}, {counted(barrier.tries, 'time')}")
        return
    _barrier(job, world, barrier)


def saved(job: JobContext, node: Node, message: BarrierReached) -> None:
    """All ranks of a member saved and stopped."""
    world = job.worlds.member(node)
    if world is None:
        return
    if world.training and node.rank not in world.saved and job.worlds.barrier is None:
        # Nobody asked for it: its processes are gone all the same.
        world.unexplained[node.rank] = set(range(node.local_world_size))
        job.timers.ensure(Timer.MISSING, job.now + job.settings.terminal_seconds, node.rank)
        return
    job.timers.cancel(Timer.MISSING, subject=node.rank)
    if not world.training or node.rank in world.saved:
        return
    world.saved[node.rank] = message.step
    job.turn(node.rank, GoodputClass.RESCALE, job.incidents.current_id)
    check_complete(job, world)


def check_complete(job: JobContext, world: World) -> None:
    """End the world once every member has saved and stopped, or finished."""
    if not (world.saved and world.all_saved()):
        return
    steps = sorted(set(world.saved.values()))
    world.reached = steps[-1]
    reason = job.worlds.barrier.reason if job.worlds.barrier else "all ranks saved and stopped"
    if len(steps) == 1:
        if job.incidents.current is not None:
            job.incidents.current.smooth = True
        job.out.event(
            EventReason.BARRIER_REACHED, f"all ranks stopped at the barrier, after step {steps[0]}"
        )
    else:
        text = f"the ranks stopped at different steps, {steps[0]} to {steps[-1]}"
        job.out.warn(EventReason.BARRIER_MISSED, text)
    world.disturb(None)
    incidents.break_world(job, reason)


def barrier_due(job: JobContext) -> None:
    """The ranks have not stopped together in time."""
    world, barrier = job.worlds.running(), job.worlds.barrier
    if world is not None and barrier is not None:
        missing = len(set(world.savers) - world.saved.keys() - world.finished)
        miss(job, f"{counted(missing, 'node')} did not reach step {barrier.step} in time")


def miss(job: JobContext, text: str) -> None:
    """The ranks cannot be stopped together: they are restarted from their own checkpoint."""
    job.out.warn(EventReason.BARRIER_MISSED, text)
    if job.worlds.newest is not None:
        job.worlds.newest.disturb(None)
    incidents.break_world(job, text)
