"""Incidents: opened by the first evidence, blamed anew by better evidence, charged once at the end.

Belongs here: which incident evidence belongs to, closing and charging. Does not belong here: how
evidence is ranked (`decide.failure`), when the next world is formed (`rounds`).
"""

from __future__ import annotations

import dataclasses

from holdfast_master.case import Case
from holdfast_master.decide import budgets, failure
from holdfast_master.decide.failure import Evidence, EvidenceKind
from holdfast_master.decide.goodput import micros
from holdfast_master.desk import Desk, Warn
from holdfast_master.timers import Timer
from holdfast_master.world import World
from holdfast_wire.messages import (
    BudgetCharge,
    BudgetKind,
    EventSeverity,
    FailureAction,
    GoodputClass,
    WorldEnded,
    WorldTraining,
)
from holdfast_wire.reasons import EndReason, EventReason


def report_process(desk: Desk, item: Evidence, round_number: int) -> None:
    """Evidence about the processes of a round.

    It is a failure of the running world, or blame for an earlier one. Evidence of rounds that no
    open incident is about is dropped.
    """
    world = desk.running()
    if world is not None and world.round == round_number:
        _interrupt(desk, world, item, joins=_shaken(desk, world))
        return
    for case in reversed(desk.open_cases()):
        if round_number in case.broken:
            _add(desk, case, item)
            return


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


def report_late(desk: Desk, item: Evidence, rank: int) -> None:
    """Evidence about a node that is already gone: it happened when the node was lost."""
    for case in reversed(desk.open_cases()):
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
        close(desk, earlier)
    break_world(desk, item.text)
    open_case(desk, item, world)


def open_case(desk: Desk, item: Evidence, world: World, *, asked: bool = True) -> Case:
    """Open an incident about the newest world."""
    state = desk.state
    case = Case(
        id=f"i{state.incident_count + 1}",
        best=item,
        opened_at=desk.now,
        opened_unix=desk.clock.moment.unix,
        from_round=world.round,
        broken={world.round} if desk.broken else set(),
        asked=asked,
        progressed=state.progressed(world.round),
        seen=[item.text],
        count=1,
        detection=max(0.0, desk.now - item.at),
    )
    case.remember(world)
    case.involve(item)
    desk.case = case
    desk.record(case.fact(opened=True, charged=None, cost=()))
    severity = EventSeverity.NORMAL if case.planned else Warn
    desk.event(
        EventReason.INCIDENT_OPENED, item.text, severity, node=item.node_rank, incident=case.id
    )
    if desk.broken:
        _count_cost(desk, case, world)
    _judge(desk, case)
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
    desk.record(WorldEnded(round=world.round, step=world.reached, reason=why))
    if desk.case is not None:
        desk.case.broken.add(world.round)
        desk.case.remember(world)
        _count_cost(desk, desk.case, world)


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
    case.involve(item)
    if not case.add(item):
        return
    case.detection = max(case.detection, case.opened_at - item.at)
    desk.event(
        EventReason.INCIDENT_BLAMED,
        f"{item.text} (better evidence than before)",
        node=item.node_rank,
        incident=case.id,
    )
    desk.record(case.fact(opened=True, charged=None, cost=()))
    _judge(desk, case)


def _judge(desk: Desk, case: Case) -> None:
    """What the rules and budgets say of the incident as it looks now."""
    case.response = failure.respond(case.best, desk.spec.failure_rules)
    charge = _charge(case)
    reason, text = "", ""
    if case.response.action is FailureAction.FAIL_JOB:
        reason, text = EndReason.FAIL_JOB_RULE, f"{case.response.reason}: {case.best.text}"
    elif charge.kind is not None:
        can = budgets.afford(balance(desk, charge.kind))
        if not can.ok:
            reason = budgets.END_REASONS[charge.kind]
            text = f"{can.reason}; the last was: {case.best.text}"
    if reason and not case.terminal:
        desk.timers.ensure(Timer.TERMINAL, desk.now + desk.settings.terminal_seconds, case.id)
    if not reason:
        desk.timers.cancel(Timer.TERMINAL, case.id)
    case.terminal, case.end_reason = text, reason
    desk.dirty = True


def judge_again(desk: Desk) -> None:
    """Rules or limits have changed: what do they say of the open incidents."""
    for case in desk.open_cases():
        _judge(desk, case)


def _charge(case: Case) -> failure.Charge:
    return failure.charge(
        case.best, case.response.action, progressed=case.progressed, asked=case.asked
    )


def balance(desk: Desk, kind: BudgetKind) -> budgets.Balance:
    """What is spent of a budget now."""
    return budgets.balance(
        kind,
        desk.spec.budgets,
        desk.state.charges,
        desk.clock.job_seconds,
        failure_cap=desk.roster.failure_cap,
    )


def end_terminal(desk: Desk, incident: str) -> None:
    """No better evidence came in time: the incident ends the job."""
    for case in desk.open_cases():
        if case.id == incident and case.terminal:
            reason, text = case.end_reason, case.terminal
            close(desk, case)
            desk.request_end(succeeded=False, reason=reason, text=text)


def end_evidence(desk: Desk, incident: str) -> None:
    """Evidence has had its time."""
    for case in desk.open_cases():
        if case.id == incident:
            close(desk, case)


def close(desk: Desk, case: Case) -> None:
    """Charge the incident's culprit, once, and write down what it cost."""
    _forget(desk, case)
    charge = _charge(case)
    can = budgets.Affordable(ok=True, reason="")
    if charge.kind is not None:
        can = budgets.afford(balance(desk, charge.kind))
    cost = desk.ledger.cost(case.id, desk.clock.micros)
    desk.record(case.fact(opened=False, charged=charge.kind, cost=cost), durable=True)
    desk.ledger.forget(case.id)
    desk.event(EventReason.INCIDENT_CLOSED, _summary(case), incident=case.id)
    if charge.kind is None:
        return
    paid = BudgetCharge(kind=charge.kind, job_seconds=desk.clock.job_seconds, incident_id=case.id)
    desk.record(paid, durable=True)
    desk.event(EventReason.BUDGET_CHARGED, f"{charge.reason}: {can.reason}", incident=case.id)
    if not can.ok:
        desk.event(EventReason.BUDGET_EXHAUSTED, can.reason, Warn, incident=case.id)
        text = f"{can.reason}; the last was: {case.best.text}"
        reason = budgets.END_REASONS[charge.kind]
        desk.request_end(succeeded=False, reason=reason, text=text)


def _forget(desk: Desk, case: Case) -> None:
    desk.timers.cancel(Timer.TERMINAL, case.id)
    desk.timers.cancel(Timer.EVIDENCE, case.id)
    if desk.case is case:
        desk.case = None
    else:
        desk.cooling.remove(case)


def _summary(case: Case) -> str:
    parts = [case.best.text]
    if case.stepped_at is not None:
        parts.append(f"next step after {case.stepped_at - case.opened_at:.2f} s")
    if case.steps_redone:
        parts.append(f"{case.steps_redone} steps redone")
    return "; ".join(parts)


def close_all(desk: Desk) -> None:
    """The job ends: every open incident is closed and charged."""
    for case in desk.open_cases():
        close(desk, case)


def note_assigned(desk: Desk, round_number: int) -> None:
    """The world that follows the incident was decided."""
    if desk.case is not None:
        desk.case.to_round = round_number
        if desk.case.decided_at is None:
            desk.case.decided_at = desk.now
        desk.record(desk.case.fact(opened=True, charged=None, cost=()))


def note_trains(desk: Desk) -> None:
    """The world that follows the incident trains: evidence still counts for a while."""
    case = desk.case
    if case is None:
        return
    case.stepped_at = desk.now
    desk.case = None
    desk.cooling.append(case)
    if case.planned:
        close(desk, case)
        return
    desk.record(
        case.fact(opened=True, charged=None, cost=desk.ledger.cost(case.id, desk.clock.micros))
    )
    until = desk.now + desk.settings.evidence_seconds
    desk.timers.set(Timer.EVIDENCE, until, case.id)


def planned_kind(kinds: list[EvidenceKind]) -> EvidenceKind:
    """What a change is for which these members leave: the strongest reason of them."""
    return max(kinds, key=lambda kind: (failure.STRENGTH[kind], kind.value))


def failure_limit(desk: Desk) -> int:
    """Failures that the job may have, for TORCHELASTIC_MAX_RESTARTS."""
    limit = balance(desk, BudgetKind.FAILURES).limit
    return 0 if limit is None else limit


def training_fact(world: World) -> WorldTraining:
    """That all ranks of the world have completed this step."""
    return WorldTraining(round=world.round, step=world.marked)


def count_redone(desk: Desk, world: World) -> None:
    """Work that the members had done before the incident and must do again."""
    for case in desk.open_cases():
        if case.to_round != world.round or case.steps_redone:
            continue
        if not world.first_step:
            if case.reached == 0 and not case.smooth and world.degraded:
                text = "steps are unknown: the script goes on from its own checkpoint"
                desk.event(EventReason.ROLLED_BACK, text, incident=case.id)
            continue
        redone = max(0, case.reached - (world.first_step - 1))
        if redone == 0:
            continue
        case.steps_redone = redone
        lost = micros(redone * case.step_seconds)
        for member in case.members:
            desk.ledger.reclassify(
                member, lost, GoodputClass.ROLLED_BACK, desk.clock.micros, case.id
            )
        text = f"{redone} steps are done again, from step {world.first_step} on"
        desk.event(EventReason.ROLLED_BACK, text, incident=case.id)
