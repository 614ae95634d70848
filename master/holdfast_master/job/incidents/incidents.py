"""Incidents: opened by evidence, blamed anew by better evidence, judged, charged, closed."""

from __future__ import annotations

import dataclasses

from holdfast_master.job.incidents import goodput_marks, rank_reports, reported, strikes
from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.incident import OpenIncident
from holdfast_master.job.state.membership import Membership, Node
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.world import World
from holdfast_master.policies import failure, node_history
from holdfast_master.policies.failure import Evidence
from holdfast_master.policies.goodput import micros
from holdfast_master.policies.quantities import counted, verb
from holdfast_wire.messages import (
    BudgetCharge,
    BudgetKind,
    EventSeverity,
    FailureAction,
    GoodputClass,
    WorldEnded,
)
from holdfast_wire.reasons import EndReason, EventReason
from holdfast_wire.strikes import StrikeCause


def concerns(job: JobContext, node: Node, round_number: int) -> bool:
    """Whether a node's evidence about its processes of a round still counts.

    Not if another world runs under that number: masters without a journal count anew.
    """
    if job.worlds.running_with(node, round_number) is not None:
        return True
    if job.worlds.in_replica(node.rank, node.agent_id, round_number) is not None:
        return True
    return any(round_number in incident.broken for incident in job.incidents.open())


def report_process(job: JobContext, item: Evidence, round_number: int) -> None:
    """Evidence about the processes of a round.

    It is a failure of the running world, or blame for an earlier one. Evidence of rounds that no
    open incident is about is dropped.
    """
    _disturb(job, item, round_number)
    world = job.worlds.running()
    if world is not None and _concerns(world, item, round_number):
        _interrupt(job, world, item, joins=_shaken(job.membership, world))
        return
    rank = item.node_rank
    meanwhile = rank is not None and job.worlds.in_replica(rank, item.agent_id, round_number)
    for incident in reversed(job.incidents.open()):
        if round_number in incident.broken or (meanwhile and incident is job.incidents.current):
            if not _is_ack(incident, item):
                _add(job, incident, item)
            return


def _disturb(job: JobContext, item: Evidence, round_number: int) -> None:
    """The processes that the evidence is about cannot go on; without a node, nobody's can."""
    for world in (job.worlds.newest, job.worlds.assigned):
        if world is not None and _concerns(world, item, round_number):
            world.disturb(item.node_rank)
    _break_unassigned(job, item.text)


def _concerns(world: World, item: Evidence, round_number: int) -> bool:
    """Whether the evidence is about processes of this world."""
    known = item.node_rank is None or world.holds(item.node_rank, item.agent_id)
    return known and world.is_about(item.node_rank, round_number)


def _break_unassigned(job: JobContext, text: str) -> None:
    """Break a world that was decided with a replica that does not go on."""
    newest = job.worlds.newest
    if newest is not None and newest.replicas and newest.disturbed and not newest.assigned:
        break_world(job, text)


def note_gone(job: JobContext, node: Node, text: str) -> None:
    """Processes of a node are gone while no world runs: its replica does not go on."""
    job.worlds.disturb(node.rank, node.agent_id)
    _break_unassigned(job, text)


def _is_ack(incident: OpenIncident, item: Evidence) -> bool:
    """Whether a process failed because the master itself had ended its round.

    Agents kill the ranks of a round one after another: some rank sees its peers go and raises
    before its own end comes. Where the change was wanted, nobody is to be blamed for that.
    """
    return incident.planned and incident.broken_at is not None and item.at >= incident.broken_at


def report_loss(job: JobContext, item: Evidence, world: World, rank: int) -> None:
    """Evidence that a member of the newest world is gone."""
    job.worlds.disturb(rank, item.agent_id)
    if rank in world.saved:
        if job.incidents.current is not None:
            _add(job, job.incidents.current, item)
        return
    if job.worlds.running() is world:
        incident = job.incidents.current
        late = incident is not None and rank not in world.started and rank not in incident.lost
        _interrupt(job, world, item, joins=late)
    elif job.incidents.current is not None:
        _add(job, job.incidents.current, item)
    if not world.assigned:
        break_world(job, item.text)
    if job.incidents.current is not None:
        job.incidents.current.lost.add(rank)


def report_store(job: JobContext, item: Evidence, world: World, rank: int) -> None:
    """Evidence that the store of the running world is gone, whose members wait for it.

    Its zygote may have broken the world before already: that is one incident, not two.
    """
    incident = job.incidents.current
    joins = incident is not None and len(incident.broken) == 1 and rank not in world.started
    _interrupt(job, world, item, joins=joins or _shaken(job.membership, world))


def report_gone(job: JobContext, item: Evidence, rank: int) -> None:
    """Evidence that a node is gone that the newest world does without.

    It was in the world that was interrupted: its end explains what the others met at that time.
    """
    for incident in reversed(job.incidents.open()):
        near = abs(item.at - incident.opened_at) <= job.settings.terminal_seconds
        if rank in incident.members and near and not incident.planned:
            _add(job, incident, item)
            return


def report_late(job: JobContext, item: Evidence, rank: int) -> None:
    """Evidence about a node that is already gone: it happened when the node was lost.

    What is heard late of a node's earlier agent says nothing of what its next one met.
    """
    for incident in reversed(job.incidents.open()):
        if incident.agents.get(rank, item.agent_id) != item.agent_id:
            continue
        # A node that was told to leave and left is no news about a planned change.
        if rank in incident.involved and not incident.planned:
            _add(job, incident, dataclasses.replace(item, at=incident.involved[rank]))
            return


def _shaken(membership: Membership, world: World) -> bool:
    """Whether a member has not started and may be dead: it would explain other failures."""
    unsure = membership.away | membership.quiet
    return any(rank in world.places and rank not in world.started for rank in unsure)


def _interrupt(job: JobContext, world: World, item: Evidence, *, joins: bool) -> None:
    """The running world has failed."""
    incident = job.incidents.current
    if incident is not None and (joins or not incident.broken):
        break_world(job, item.text)
        incident.progressed = job.state.progressed(incident.from_round)
        _add(job, incident, item)
        return
    for earlier in job.incidents.open():
        close(job, earlier)
    break_world(job, item.text)
    open_incident(job, item, world)


def open_incident(
    job: JobContext, item: Evidence, world: World, *, asked: bool = True
) -> OpenIncident:
    """Open an incident about the newest world."""
    state = job.state
    incident = OpenIncident(
        id=f"i{job.identity.epoch}.{state.incident_count + 1}",
        best=item,
        opened_at=job.now,
        opened_unix=job.clock.moment.unix,
        from_round=world.round,
        broken=_rounds(world) if job.worlds.broken else set(),
        broken_at=job.now if job.worlds.broken else None,
        asked=asked,
        progressed=state.progressed(world.round),
        seen=[item.text],
        count=1,
        detection=max(0.0, job.now - item.at),
    )
    incident.remember(world, rank_reports.reached(job, world, item))
    incident.involve(item)
    if job.worlds.broken:
        incident.note_replicas(world)
    job.incidents.current = incident
    job.out.record(incident.fact())
    severity = EventSeverity.NORMAL if incident.planned else EventSeverity.WARNING
    text = "; ".join(filter(None, (item.text, _reach(incident))))
    job.out.event(
        EventReason.INCIDENT_OPENED, text, severity, node=item.node_rank, incident=incident.id
    )
    if job.worlds.broken:
        _count_cost(job, incident, world)
    judge(job, incident)
    return incident


def break_world(job: JobContext, why: str) -> None:
    """The newest world cannot go on; the next reconcile forms another."""
    world = job.worlds.newest
    if world is None or job.worlds.broken:
        return
    if job.worlds.barrier is not None and world.replicas:
        # They save and stop at its step, whatever becomes of the reason for it.
        world.disturbed.update(world.savers)
    job.worlds.end(why)
    job.touch(Change.WORLD_BROKEN)
    job.timers.cancel(Timer.STORE, Timer.START, Timer.ACK, Timer.BARRIER, Timer.GROW)
    if not world.assigned:
        return
    job.worlds.recovering = True
    # Agents are told to stop, and users that they were heard: a successor must not take the world
    # for one that runs.
    stepless = rank_reports.is_stepless(job, world)
    ended = WorldEnded(round=world.round, step=world.reached, reason=why, stepless=stepless)
    job.out.record(ended, durable=True)
    reported.close(job)
    incident = job.incidents.current
    if incident is not None:
        incident.note_replicas(world)
        incident.broken |= _rounds(world)
        incident.broken_at = job.now
        reached = rank_reports.reached(job, world, incident.best)
        incident.remember(world, reached)
        _count_cost(job, incident, world)


def _rounds(world: World) -> set[int]:
    """The rounds in which processes were started that a world's end concerns."""
    own = (world.round_of(rank) for rank in world.disturbed if rank in world.places)
    return {world.round, *own} if world.replicas else {world.round}


def note_assigned(job: JobContext, round_number: int) -> None:
    """The world that follows the incident was decided."""
    incident = job.incidents.current
    if incident is not None:
        incident.to_round = round_number
        if incident.decided_at is None:
            incident.decided_at = job.now
        job.out.record(incident.fact())


def _count_cost(job: JobContext, incident: OpenIncident, world: World) -> None:
    """Charge the members' time to the incident from now on, and the time before detection."""
    kind = cost_class(incident)
    going = world.undisturbed()
    for rank, place in world.places.items():
        gone = job.membership.agent(rank, place.member.agent_id) is None
        if gone or rank in going or rank in world.finished:
            continue
        if incident.detection and world.training:
            job.ledger.reclassify(
                rank, micros(incident.detection), kind, job.clock.micros, incident.id
            )
        job.turn(rank, kind, incident.id)


def cost_class(incident: OpenIncident | None) -> GoodputClass:
    """The goodput class of the time between two worlds."""
    if incident is None:
        return GoodputClass.WAITING
    return GoodputClass.RESCALE if incident.planned or incident.smooth else GoodputClass.RESTART


def _add(job: JobContext, incident: OpenIncident, item: Evidence) -> None:
    before, given_up = incident.best, incident.given_up
    incident.involve(item)
    if job.worlds.assigned is not None:
        incident.note_replicas(job.worlds.assigned)  # its end may have come before
    if not incident.add(item):
        if incident.given_up != given_up:
            judge(job, incident)
        return
    incident.detection = max(incident.detection, incident.opened_at - item.at)
    if (before.kind, before.node_rank) != (item.kind, item.node_rank):
        job.out.event(
            EventReason.INCIDENT_BLAMED,
            f"{item.text} (better evidence than before)",
            node=item.node_rank,
            incident=incident.id,
        )
    job.out.record(incident.fact())
    judge(job, incident)


_FAILED = frozenset({BudgetKind.FAILURES, BudgetKind.NO_PROGRESS})
_MOST_NAMED = 20
"""Replicas that an event names."""


def judge(job: JobContext, incident: OpenIncident) -> None:
    """Apply the rules and budgets to the incident as it looks now."""
    incident.response = failure.respond(incident.best, job.spec.failure_rules)
    charge = charge_of(job, incident)
    reason, text = "", ""
    if incident.response.action is FailureAction.FAIL_JOB:
        reason, text = EndReason.FAIL_JOB_RULE, f"{incident.response.reason}: {incident.best.text}"
    elif incident.given_up and incident.kind not in failure.TAKEN:
        # As under torch's own rendezvous, which such a torchrun closes for all. But a node that was
        # taken away is nobody's failure, and its job goes on with those that are left or come back.
        reason = EndReason.FAILURE_BUDGET_EXHAUSTED
        text = f"{incident.given_up} (--max-restarts); the last was: {incident.best.text}"
    elif charge.kind is not None:
        can = failure.afford(balance(job, charge.kind))
        if not can.ok:
            reason = failure.END_REASONS[charge.kind]
            text = f"{can.reason}; the last was: {incident.best.text}"
    if reason and not incident.terminal:
        job.timers.ensure(Timer.TERMINAL, job.now + job.settings.terminal_seconds, incident.id)
    if not reason:
        job.timers.cancel(Timer.TERMINAL, subject=incident.id)
    incident.terminal, incident.end_reason = text, reason
    job.touch(Change.INCIDENT_JUDGED)


def judge_again(job: JobContext) -> None:
    """Rules or limits have changed: what do they say of the open incidents."""
    for incident in job.incidents.open():
        judge(job, incident)


def charge_of(job: JobContext, incident: OpenIncident) -> failure.Charge:
    """The budget that the incident spends as it looks now.

    Where restarts without progress have no account of their own, they are failures like others.
    """
    apart = failure.has_own_account(job.spec.budgets, job.membership.failure_cap)
    return failure.charge(
        incident.best,
        incident.response.action,
        progressed=incident.progressed or not apart,
        asked=incident.asked,
    )


def is_failure(job: JobContext, incident: OpenIncident) -> bool:
    """Whether something failed: the incident was neither wanted nor a node taken away."""
    return charge_of(job, incident).kind in _FAILED


def balance(job: JobContext, kind: BudgetKind) -> failure.Balance:
    """The balance of a budget now."""
    return failure.balance(
        kind,
        job.spec.budgets,
        job.state.charges,
        job.clock.job_seconds,
        failure_cap=job.membership.failure_cap,
    )


def end_terminal(job: JobContext, incident_id: str) -> None:
    """No better evidence came in time: the incident ends the job."""
    for incident in job.incidents.open():
        if incident.id == incident_id and incident.terminal:
            close(job, incident)


def end_evidence(job: JobContext, incident_id: str) -> None:
    """Evidence has had its time."""
    world = job.worlds.running()
    for incident in job.incidents.open():
        if incident.id != incident_id:
            continue
        if incident.unseen and world is not None and rank_reports.are_awaited(job, world):
            job.timers.set(Timer.EVIDENCE, job.now + job.settings.evidence_seconds, incident.id)
        else:
            close(job, incident)


def failure_limit(job: JobContext) -> int:
    """Failures that the job may have, for TORCHELASTIC_MAX_RESTARTS."""
    limit = balance(job, BudgetKind.FAILURES).limit
    return 0 if limit is None else limit


def close(job: JobContext, incident: OpenIncident) -> None:
    """Charge the incident's culprit, once, and write down what it cost."""
    job.timers.cancel(Timer.TERMINAL, Timer.EVIDENCE, subject=incident.id)
    job.incidents.forget(incident)
    charge = charge_of(job, incident)
    if charge.kind in _FAILED:
        job.incidents.fruitless = 0 if incident.progressed else job.incidents.fruitless + 1
    cost = job.ledger.cost(incident.id, job.clock.micros)
    job.out.record(incident.fact(opened=False, charged=charge.kind, cost=cost), durable=True)
    job.ledger.forget(incident.id)
    if node_history.is_strike(incident.best.kind) and incident.best.node_rank is not None:
        strikes.strike(job, incident.best.node_rank, StrikeCause.FAILURE, incident.best.text)
    goodput_marks.write_if_small(job)
    job.out.event(EventReason.INCIDENT_CLOSED, _summary(incident), incident=incident.id)
    if charge.kind is not None:
        _pay(job, incident, charge.kind, charge.reason)
    if incident.terminal:
        job.request_end(succeeded=False, reason=incident.end_reason, text=incident.terminal)


def _pay(job: JobContext, incident: OpenIncident, kind: BudgetKind, why: str) -> None:
    can = failure.afford(balance(job, kind))
    paid = BudgetCharge(kind=kind, job_seconds=job.clock.job_seconds, incident_id=incident.id)
    job.out.record(paid, durable=True)
    job.out.event(EventReason.BUDGET_CHARGED, f"{why}: {can.reason}", incident=incident.id)
    if not can.ok:
        job.out.warn(EventReason.BUDGET_EXHAUSTED, can.reason, incident=incident.id)
        incident.end_reason = failure.END_REASONS[kind]
        incident.terminal = f"{can.reason}; the last was: {incident.best.text}"


def close_all(job: JobContext) -> None:
    """The job ends: every open incident is closed and charged."""
    reported.close(job)
    for incident in job.incidents.open():
        close(job, incident)


def _reach(incident: OpenIncident) -> str:
    """Say of replicas which ones it ends, and whether others train on; empty: there are none."""
    lost, going = sorted(incident.lost_replicas), incident.going_replicas
    if going is None or not lost:
        return ""
    more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
    named = ", ".join(map(str, lost[:_MOST_NAMED])) + more
    ended = f"{verb(len(lost), 'replica', 'replicas')} {named} {verb(len(lost), 'is', 'are')} lost"
    others = f"{counted(going, 'other replica')} {verb(going, 'trains', 'train')} on"
    return f"{ended}, {others if going else 'and no other one trains'}"


def _summary(incident: OpenIncident) -> str:
    parts = [incident.best.text]
    if incident.stepped_at is not None:
        guess = "~" if incident.guessed else ""
        whose = "its own next step" if incident.others_train else "next step"
        parts.append(f"{whose} after {guess}{incident.since(incident.stepped_at):.2f} s")
        if incident.others_train:
            parts.append(_reach(incident))
    elif incident.unseen:
        parts.append("no rank reports its next step")
    if incident.steps_redone:
        parts.append(f"{counted(incident.steps_redone, 'step')} redone")
    return "; ".join(parts)


def backoff_reason(job: JobContext) -> str:
    """Return why the next round waits; empty: it may begin."""
    incident = job.incidents.current
    if incident is None or incident.progressed or not is_failure(job, incident):
        return ""
    # Failures without progress before this one, also those that an earlier master charged.
    before = max(job.incidents.fruitless, balance(job, BudgetKind.NO_PROGRESS).used)
    pause = failure.pause(before + 1, job.settings)
    # Of an incident that an earlier master opened the time is not known: its pause begins anew.
    broken_at = incident.opened_at if incident.broken_at is None else incident.broken_at
    until = broken_at + pause.seconds
    if job.now >= until:
        return ""
    job.timers.set(Timer.BACKOFF, until)
    return f"{pause.reason}; the last failure was: {incident.best.text}"
