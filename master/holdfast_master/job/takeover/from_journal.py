"""Takes up a job that an earlier master left.

Nothing here restarts anybody: known nodes are away until they say hello or their silence ends, and
the world is taken to run until a member says otherwise.
"""

from __future__ import annotations

from holdfast_master.instructions import Finished
from holdfast_master.job.data import shards
from holdfast_master.job.incidents import goodput_marks
from holdfast_master.job.nodes.replacement import REPLACE
from holdfast_master.job.requests import job_end
from holdfast_master.job.rescale import barrier
from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.incident import OpenIncident
from holdfast_master.job.state.phases import ENDED, Trigger
from holdfast_master.job.state.timers import JobClock, Timer
from holdfast_master.job.state.world import World
from holdfast_master.job.takeover import hello
from holdfast_master.job.worlds import flush
from holdfast_master.policies import failure
from holdfast_master.policies.failure import Evidence, EvidenceKind
from holdfast_master.policies.goodput import from_entries
from holdfast_wire.messages import GoodputClass, Incident, JobPhase, ReplaceDecision
from holdfast_wire.reasons import PhaseReason

_LONGEST_INCIDENT_SECONDS = 3_600.0
"""More than this is a wall clock that jumped, not a master that was away."""


def take_up(job: JobContext) -> None:
    """Set the parts of the context up from the durable state."""
    state = job.state
    job.ledger.bring(goodput_marks.bridge(job))
    if state.phase in ENDED:
        if state.stop is not None:
            job.out.put(Finished(state.stop.succeeded, state.stop.reason))
        return
    hello.restore_nodes(job)
    _restore_incidents(job)
    _restore_world(job)
    _restore_replacements(job)
    shards.await_leaving(job)
    job_end.watch_deadline(job)
    if state.stop is not None and state.stop.now and job_end.asked(state.stop):
        flush.hurry(job)
    if state.phase is JobPhase.STOPPING:
        job.timers.set(Timer.END, job.now + job.settings.silence_seconds)
    job.touch(Change.JOURNAL_READ)


def _restore_world(job: JobContext) -> None:
    state = job.state
    if state.assigned is None:
        job.worlds.newest = World(state.world) if state.world else None
        job.worlds.broken = "a new master took over" if job.worlds.newest else ""
        return
    world = World(state.assigned, assigned=True, training=state.training)
    world.first_step = world.reached = world.marked = state.best_step if state.training else 0
    for rank in sorted(state.finished):
        world.finish_node(rank)
    job.worlds.adopt(world)
    if state.training and not state.ended and state.phase is JobPhase.STARTING:
        # The journal's end was torn off between the fact and the phase that followed from it.
        job.move(Trigger.STEPPED, PhaseReason.TRAINING, f"round {world.round} trains")
    waits = state.reason == PhaseReason.WAITING_FOR_NODES
    if state.ended:
        job.worlds.broken = "the last world had ended when a new master took over"
        job.worlds.recovering = not waits
    elif state.phase is JobPhase.SAVING:
        barrier.resume(job, world)
    for rank in world.places:
        if not job.worlds.broken and state.training:
            job.turn(rank, GoodputClass.PRODUCTIVE)


def _restore_incidents(job: JobContext) -> None:
    for fact in job.state.incidents.values():
        if not fact.open:
            continue
        if fact.reported_only:  # a hang
            job.health.open_incident = fact.id
            continue
        incident = _open_incident(job, fact)
        if job.state.trained_rounds.get(fact.to_round, False):
            job.incidents.cooling.append(incident)
            until = job.now + job.settings.evidence_seconds
            job.timers.set(Timer.EVIDENCE, until, incident.id)
        else:
            job.incidents.current = incident


def _open_incident(job: JobContext, fact: Incident) -> OpenIncident:
    """An open incident as far as its record tells."""
    best = _evidence(fact, job.now)
    ended = fact.from_round in job.state.ended_steps
    incident = OpenIncident(
        id=fact.id,
        best=best,
        opened_at=job.now,
        opened_unix=fact.opened_unix,
        from_round=fact.from_round,
        broken={fact.from_round} if ended else set(),
        progressed=job.state.progressed(fact.from_round),
        seen=list(fact.evidence),
        count=len(fact.evidence),
        detection=fact.detection_seconds,
        to_round=fact.to_round,
        reached=job.state.ended_steps.get(fact.from_round, 0),
        steps_redone=fact.steps_redone,
        unseen=fact.first_step_unseen,
        guessed=fact.first_step_guessed,
        lost_replicas=set(fact.lost_replicas),
        going_replicas=fact.going_replicas if fact.lost_replicas else None,
    )
    _restore_times(job.clock, incident, fact)
    job.ledger.bring_cost(incident.id, from_entries(fact.cost))
    incident.response = failure.respond(best, job.spec.failure_rules)
    incident.involve(best)
    return incident


def _evidence(fact: Incident, now: float) -> Evidence:
    return Evidence(
        kind=EvidenceKind(fact.cause),
        text=fact.text,
        at=now,
        node_rank=int(fact.culprit_node) if fact.culprit_node else None,
        rank=int(fact.culprit_rank) if fact.culprit_rank else None,
        memory_limit=fact.memory_limit_bytes,
    )


def _restore_times(clock: JobClock, incident: OpenIncident, fact: Incident) -> None:
    """Restore an incident's times: each keeps its distance from the opening."""
    passed = clock.moment.unix - fact.opened_unix
    incident.earlier = min(max(0.0, passed), _LONGEST_INCIDENT_SECONDS)
    opened = incident.opened_at - incident.earlier
    incident.decided_at = opened + fact.decided_seconds if fact.to_round else None
    incident.respawned_at = opened + fact.respawned_seconds if fact.respawned_seconds else None
    incident.stepped_at = opened + fact.first_step_seconds if fact.first_step_seconds else None


def _restore_replacements(job: JobContext) -> None:
    for number, command in job.state.commands.items():
        gone = job.state.departed.get(command.node_rank)
        if command.kind == REPLACE and gone is not None:
            job.operator.replacing[command.node_rank] = ReplaceDecision(
                decision_id=number,
                node_rank=command.node_rank,
                pod_uid=gone.pod_uid,
                reason="asked for by an earlier master",
            )
