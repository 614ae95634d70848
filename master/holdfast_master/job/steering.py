"""What to do next, decided from the state alone, after every input that may have changed it.

Belongs here: the order in which the policies are asked. Does not belong here: the policies.

It is level-triggered on purpose: handlers note what they were told and do not act, so the order in
which messages arrive cannot lead to different ends.
"""

from __future__ import annotations

from holdfast_master.decide.failure import EvidenceKind
from holdfast_master.job import (
    adoption,
    candidacy,
    checkpoints,
    digests,
    ending,
    replacements,
    reports,
    rescale,
    responses,
    rounds,
    saving,
    stores,
)
from holdfast_master.job.desk import Desk
from holdfast_master.job.timers import Timer
from holdfast_master.job.transitions import ENDED
from holdfast_wire.messages import JobPhase

_MOST_TURNS = 16


def steer(desk: Desk) -> None:
    """Ask the policies until nothing changes any more."""
    for _ in range(_MOST_TURNS):
        if not desk.dirty or desk.stepped_down:
            break
        desk.dirty = False
        _turn(desk)
        checkpoints.settle(desk)
        saving.settle(desk)
    digests.keep_fresh(desk)


def _turn(desk: Desk) -> None:
    state = desk.state
    if state.phase in ENDED:
        return
    if state.stop is not None:
        ending.toward_end(desk, state.stop)
        return
    if state.spec is None:
        adoption.hold(desk)
        return
    rounds.count_window(desk)
    if state.spec.suspend:
        ending.toward_suspend(desk)
        return
    if state.phase is JobPhase.SUSPENDED:
        ending.resume(desk)
        return
    _run(desk)


def _run(desk: Desk) -> None:
    if desk.claims.settled and desk.claims.held:
        reports.hear_held(desk)
    responses.act(desk)
    candidacy.settle_surplus(desk)
    if desk.world is None and adoption.hold(desk):
        return
    if desk.world is None or desk.broken:
        rounds.form(desk)
    elif not desk.world.assigned:
        rescale.consider(desk)
        if not desk.broken:
            rounds.advance(desk)
    else:
        rescale.consider(desk)
    stores.keep(desk)
    _let_go(desk)


def _let_go(desk: Desk) -> None:
    """Release nodes that are drained or not wanted once no world needs them."""
    world = desk.world
    phase = desk.state.phase
    running = world is not None and world.assigned and not desk.broken
    if not running and phase is not JobPhase.WAITING:
        return
    nodes = desk.roster.nodes
    drained = [
        nodes[rank]
        for rank in sorted(desk.state.draining - desk.state.released)
        if rank in nodes and not (running and world is not None and rank in world.places)
    ]
    if drained and _settled(desk):
        replacements.release(desk, drained, "drained", free_pods=False)
        for node in drained:
            if node.replace_why or node.draining is EvidenceKind.PREEMPTED:
                why = node.replace_why or "it was taken away"
                replacements.ask(desk, node.rank, node.pod_uid, why)
            elif phase is JobPhase.WAITING:
                replacements.ask(desk, node.rank, node.pod_uid, "drained, and too few are left")
    trains = phase is JobPhase.TRAINING
    if trains or desk.release_overdue:
        _release_surplus(desk)


def _settled(desk: Desk) -> bool:
    """Whether the world without the drained nodes is decided, or cannot be."""
    return desk.state.phase is not JobPhase.WAITING or not desk.recovering


def _release_surplus(desk: Desk) -> None:
    world = desk.world
    places = world.places if world is not None and not desk.broken else {}
    surplus = [
        desk.roster.nodes[rank]
        for rank in sorted(desk.surplus - desk.state.released)
        if rank not in places and rank in desk.roster.nodes
    ]
    if surplus:
        text = f"{desk.spec.replicas} replicas and {desk.spec.standbys} standbys are wanted"
        replacements.release(desk, surplus, text, free_pods=True)
        desk.timers.cancel(Timer.RELEASE)
