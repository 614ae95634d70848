"""Decides the next step from the state alone, after every input that may have changed it.

It is level-triggered on purpose: handlers note what they were told and do not act, so the order in
which messages arrive cannot lead to different ends. A policy that has nothing to do in most looks
is asked here only where the state says that it may have.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast_master.job.checkpoints import commits, on_demand, restore
from holdfast_master.job.health import preflight
from holdfast_master.job.nodes import eligibility, replacement, rule_actions
from holdfast_master.job.requests import agent_messages, job_end
from holdfast_master.job.rescale import rescale
from holdfast_master.job.state.changes import NOT_OF_MEMBERS, Change
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.phases import ENDED
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.world import World
from holdfast_master.job.takeover import adoption
from holdfast_master.job.worlds import digests, roster, rounds, stores
from holdfast_master.policies.failure import EvidenceKind
from holdfast_master.policies.quantities import counted
from holdfast_wire.messages import JobPhase

_MOST_TURNS = 16


def steer(job: JobContext) -> None:
    """Ask the policies until nothing changes any more."""
    for _ in range(_MOST_TURNS):
        if not job.changes.waiting or job.stepped_down:
            break
        _turn(job, job.changes.take())
        _settle_checkpoints(job)
    if job.state.sequence != job.placed_sequence:
        digests.keep_fresh(job)


def _settle_checkpoints(job: JobContext) -> None:
    tracker = job.checkpoints.tracker
    if tracker.pending or job.timers.running(Timer.COMMIT):
        commits.grant(job)
    if tracker.waits or any(one.waits for one in job.checkpoints.starts.values()):
        restore.choose(job)
    if job.checkpoints.order is not None:
        on_demand.settle(job, job.checkpoints.order)


def _turn(job: JobContext, why: Sequence[Change]) -> None:
    state = job.state
    if state.phase in ENDED:
        return
    if state.stop is not None:
        job_end.toward_end(job, state.stop)
        return
    if state.spec is None:
        adoption.hold(job)
        return
    if job.worlds.running() is None:
        rounds.count_window(job)
    if state.spec.suspend:
        job_end.toward_suspend(job)
        return
    if state.phase is JobPhase.SUSPENDED:
        job_end.resume(job)
        return
    _run(job, why)


def _run(job: JobContext, why: Sequence[Change]) -> None:
    if job.claims.settled and job.claims.held:
        agent_messages.take_deferred(job)
    if any(incident.to_replace is not None for incident in job.incidents.open()):
        rule_actions.act(job)
    if job.membership.beyond:
        eligibility.settle_surplus(job)
    if job.worlds.newest is None and adoption.hold(job):
        return
    if job.preflight.has_work(job.state.spec):
        preflight.consider(job)
    newest = job.worlds.newest
    if newest is None or job.worlds.broken:
        rounds.form(job)
    else:
        if _may_rescale(job, newest):
            rescale.consider(job)
        if not newest.assigned and not job.worlds.broken:
            rounds.advance(job)
    stores.keep(job)
    if job.spec.nodes_per_replica and not NOT_OF_MEMBERS.issuperset(why):
        roster.settle(job)
    _let_go(job)


def _may_rescale(job: JobContext, world: World) -> bool:
    """Whether a world may get other members; one that does not train yet may only lose some.

    It loses them where nodes are to leave, or where fewer are wanted than it has. It gets some
    where nodes are ready outside of it, or were a moment ago. A change that has begun goes on.
    """
    if job.state.draining or len(world.places) > job.bounds.largest:
        return True
    nodes = job.membership
    changes = bool(nodes.spares or nodes.surplus) or nodes.spare_since is not None
    started = job.incidents.current is not None
    return job.state.phase is JobPhase.TRAINING and (changes or started)


def _let_go(job: JobContext) -> None:
    """Release nodes that are drained or not wanted once no world needs them."""
    world = job.worlds.newest
    phase = job.state.phase
    running = world is not None and world.assigned and not job.worlds.broken
    if not running and phase is not JobPhase.WAITING:
        return
    nodes = job.membership.nodes
    drained = [
        nodes[rank]
        for rank in sorted(job.state.draining - job.state.released)
        if rank in nodes and not (running and world is not None and rank in world.places)
    ]
    # Once the world without them is decided, or cannot be decided.
    if drained and (phase is not JobPhase.WAITING or not job.worlds.recovering):
        replacement.release(job, drained, "drained", free_pods=False)
        for node in drained:
            if node.replace_why or node.draining is EvidenceKind.PREEMPTED:
                why = node.replace_why or "it was taken away"
                replacement.ask(job, node.rank, node.pod_uid, why)
            elif phase is JobPhase.WAITING:
                replacement.ask(job, node.rank, node.pod_uid, "drained, and too few are left")
    if phase is JobPhase.TRAINING or job.membership.release_overdue:
        _release_surplus(job)


def _release_surplus(job: JobContext) -> None:
    world = job.worlds.newest
    places = world.places if world is not None and not job.worlds.broken else {}
    surplus = [
        job.membership.nodes[rank]
        for rank in sorted(job.membership.surplus - job.state.released)
        if rank not in places and rank in job.membership.nodes
    ]
    if surplus:
        replicas = counted(job.spec.replicas, "replica")
        standbys = counted(job.spec.standbys, "standby")
        text = f"{replicas} and {standbys} are wanted"
        replacement.release(job, surplus, text, free_pods=True)
        job.timers.cancel(Timer.RELEASE)
