"""Taking up a job that an earlier master left.

Belongs here: what the working papers look like after the journal was read. Does not belong here:
reading it (`state` folds the facts), decisions.

Nothing here restarts anybody: known nodes are away until they say hello or their silence ends, and
the world is taken to run until a member says otherwise.
"""

from __future__ import annotations

from holdfast_master.decide import failure
from holdfast_master.decide.failure import Evidence, EvidenceKind
from holdfast_master.decide.goodput import from_entries
from holdfast_master.instructions import Finished
from holdfast_master.job import ending, goodput_marks, hellos, rescue, stopping
from holdfast_master.job.case import Case
from holdfast_master.job.desk import Desk
from holdfast_master.job.replacements import REPLACE
from holdfast_master.job.timers import Timer
from holdfast_master.job.transitions import ENDED, Trigger
from holdfast_master.job.world import World
from holdfast_wire.messages import GoodputClass, Incident, JobPhase, ReplaceDecision
from holdfast_wire.reasons import PhaseReason

_LONGEST_INCIDENT_SECONDS = 3_600.0
"""More than this is a wall clock that jumped, not a master that was away."""


def take_up(desk: Desk) -> None:
    """Set the working papers up from the durable state."""
    state = desk.state
    desk.ledger.bring(goodput_marks.bridge(desk))
    if state.phase in ENDED:
        if state.stop is not None:
            desk.put(Finished(state.stop.succeeded, state.stop.reason))
        return
    hellos.restore_nodes(desk)
    _restore_cases(desk)
    _restore_world(desk)
    _restore_replacements(desk)
    ending.watch_deadline(desk)
    if state.stop is not None and state.stop.now and ending.asked(state.stop):
        rescue.hurry(desk)
    if state.phase is JobPhase.STOPPING:
        desk.timers.set(Timer.END, desk.now + desk.settings.silence_seconds)
    desk.dirty = True


def _restore_world(desk: Desk) -> None:
    state = desk.state
    if state.assigned is None:
        desk.world = World(state.world) if state.world else None
        desk.broken = "a new master took over" if desk.world else ""
        return
    world = World(state.assigned, assigned=True, training=state.training)
    world.first_step = world.reached = world.marked = state.best_step if state.training else 0
    for rank in sorted(state.finished):
        world.finish_node(rank)
    desk.world = desk.assigned = world
    if state.training and not state.ended and state.phase is JobPhase.STARTING:
        # The journal's end was torn off between the fact and the phase that followed from it.
        desk.move(Trigger.STEPPED, PhaseReason.TRAINING, f"round {world.round} trains")
    waits = state.reason == PhaseReason.WAITING_FOR_NODES
    if state.ended:
        desk.broken = "the last world had ended when a new master took over"
        desk.recovering = not waits
    elif state.phase is JobPhase.SAVING:
        stopping.resume(desk, world)
    for rank in world.places:
        if not desk.broken and state.training:
            desk.turn(rank, GoodputClass.PRODUCTIVE)


def _restore_cases(desk: Desk) -> None:
    for fact in desk.state.incidents.values():
        if not fact.open:
            continue
        case = _case(desk, fact)
        if desk.state.trained_rounds.get(fact.to_round, False):
            desk.cooling.append(case)
            until = desk.now + desk.settings.evidence_seconds
            desk.timers.set(Timer.EVIDENCE, until, case.id)
        else:
            desk.case = case


def _case(desk: Desk, fact: Incident) -> Case:
    """An open incident as far as its record tells."""
    best = Evidence(
        kind=EvidenceKind(fact.cause),
        text=fact.text,
        at=desk.now,
        node_rank=int(fact.culprit_node) if fact.culprit_node else None,
        rank=int(fact.culprit_rank) if fact.culprit_rank else None,
    )
    ended = fact.from_round in desk.state.ended_steps
    case = Case(
        id=fact.id,
        best=best,
        opened_at=desk.now,
        opened_unix=fact.opened_unix,
        from_round=fact.from_round,
        broken={fact.from_round} if ended else set(),
        progressed=desk.state.progressed(fact.from_round),
        seen=list(fact.evidence),
        count=len(fact.evidence),
        detection=fact.detection_seconds,
        to_round=fact.to_round,
        reached=desk.state.ended_steps.get(fact.from_round, 0),
        steps_redone=fact.steps_redone,
    )
    _restore_times(desk, case, fact)
    desk.ledger.bring_cost(case.id, from_entries(fact.cost))
    case.response = failure.respond(best, desk.spec.failure_rules)
    case.involve(best)
    return case


def _restore_times(desk: Desk, case: Case, fact: Incident) -> None:
    """What is known keeps its distance from the opening; what is to come is counted from there."""
    passed = desk.clock.moment.unix - fact.opened_unix
    case.earlier = min(max(0.0, passed), _LONGEST_INCIDENT_SECONDS)
    opened = case.opened_at - case.earlier
    case.decided_at = opened + fact.decided_seconds if fact.to_round else None
    case.respawned_at = opened + fact.respawned_seconds if fact.respawned_seconds else None
    case.stepped_at = opened + fact.first_step_seconds if fact.first_step_seconds else None


def _restore_replacements(desk: Desk) -> None:
    for number, command in desk.state.commands.items():
        gone = desk.state.departed.get(command.node_rank)
        if command.kind == REPLACE and gone is not None:
            desk.operator.replacing[command.node_rank] = ReplaceDecision(
                decision_id=number,
                node_rank=command.node_rank,
                pod_uid=gone.pod_uid,
                reason="asked for by an earlier master",
            )
