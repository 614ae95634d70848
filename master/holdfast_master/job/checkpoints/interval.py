"""Checkpoint intervals: computed from costs, changed on all ranks or on none.

A change has two parts. Ranks that were offered a schedule save, from its step on, what either asks
for. Once every node has said that its ranks heard of it before that step, the change is written
down and confirmed, and whoever hears that does without the old one. So at each step there is a
schedule by which all ranks save, whatever is late or lost. A rank that had passed the step makes it
a later one. How ranks stand is told by every heartbeat, so nothing of this waits for an answer.

A schedule is of the ranks that save. Of replicas those are the first one's, which may go on in many
worlds; where another one comes to be the first, its ranks have heard of no change so far.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Final

from holdfast_master.job.rescale import barrier
from holdfast_master.job.state.checkpoints import SaveSchedule
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.membership import Membership, Node
from holdfast_master.job.state.orders import OfferedSchedule
from holdfast_master.job.state.outgoing_batch import OutgoingBatch
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.world import World
from holdfast_master.policies import failure_rate, interval
from holdfast_master.policies.failure_rate import Observed, Rates
from holdfast_master.policies.interval import Cost, Costs, Every
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason
from holdfast_wire.tiers import TIERS, by_tier, costs_by_tier, to_intervals, word

_MOST_TRIES: Final = 6
"""Doublings of the margin: an offer is repeated for as long as its world lives."""
_NEVER: Final = 1e-12
"""Failures in a second of a tier that the script does not use."""
_SCRIPT: Final = "the script says so"


def received(job: JobContext, node: Node, world: World, report: wire.SavingReport | None) -> None:
    """Note the report of a member's ranks on their saves and on the schedule that they know."""
    node.saving = report
    if report is None or not world.saves(node.rank):
        return
    schedule = _schedule(job, world)
    job.timers.ensure(Timer.SCHEDULE, job.now + job.settings.schedule_seconds)
    offer = schedule.offer
    if offer is None or report.seen_id != offer.number or node.rank in offer.acked:
        return
    offer.passed = max(offer.passed, report.seen_step)
    if report.seen_step > offer.step:
        _again(job, world, offer)
        return
    offer.acked.add(node.rank)
    if world.covers(offer.acked):
        _confirm(job, world, offer)


def _schedule(job: JobContext, world: World) -> SaveSchedule:
    """The schedule of the ranks that save in this world."""
    if job.checkpoints.schedule.is_of(world):
        return job.checkpoints.schedule
    fact, last = world.fact, job.state.schedule
    now = by_tier(fact.intervals)
    confirmed = last is not None and last.round == world.saver_round
    # Of a world that an earlier master made, only a journal would tell what was confirmed; of a
    # replica that went on before it saved, nobody knows what it began with.
    known = world.bounds is not None and world.saver_round == world.round
    job.checkpoints.schedule = SaveSchedule(
        round=world.saver_round,
        replica=world.saver_replica,
        now=by_tier(last.intervals) if confirmed and last is not None else now,
        unsure=not (known or confirmed),
    )
    return job.checkpoints.schedule


def due(job: JobContext) -> None:
    """Look whether another schedule would be better by now."""
    world = job.worlds.running()
    if world is None or not any(node.saving for node in job.membership.present(world.savers)):
        return  # the next heartbeat of a world that follows sets the time anew
    job.timers.set(Timer.SCHEDULE, job.now + job.settings.schedule_seconds)
    schedule = _schedule(job, world)
    trains = job.state.phase is wire.JobPhase.TRAINING and job.worlds.barrier is None
    if not trains or schedule.offer is not None or schedule.now is None or not world.fact.intervals:
        return
    reports = _reports(job.membership, world)
    if not reports:
        return
    pins = reports[0]  # one script, and so the same on all
    measured = _costs(reports, pins)
    if measured is None:
        return
    now = _over(pins, schedule.now)
    wish = _over(pins, interval.wished(job.spec))
    schedule.verdict = interval.decide(measured, _rates(job, world, pins), now, fixed=wish)
    if schedule.verdict.changed or schedule.unsure:
        offer = OfferedSchedule(every=schedule.verdict.every)
        schedule.offer = offer
        _set(job, world, offer)


# ------------------------------------------------------------------------------------ what is known


def measured_costs(job: JobContext) -> Costs | None:
    """The cost of saves in the running world; None: too little was measured."""
    world = job.worlds.running()
    reports = _reports(job.membership, world) if world is not None else []
    return _costs(reports, reports[0]) if reports else None


def _reports(membership: Membership, world: World) -> list[wire.SavingReport]:
    """The reports of all members; empty: not every rank follows a schedule."""
    found = [node.saving for node in membership.present(world.savers) if node.saving is not None]
    return found if len(found) == len(world.savers) else []


def _own(pins: wire.SavingReport, tier: wire.Tier) -> int | None:
    """The script's own number for a tier; None: it leaves it to the master."""
    return costs_by_tier(pins)[tier].every


def _over(pins: wire.SavingReport, every: Every) -> Every:
    """Numbers with the script's own in their places."""
    own = {tier: _own(pins, tier) for tier in every}
    return {tier: steps if (pin := own[tier]) is None else pin for tier, steps in every.items()}


def _left_out(pins: wire.SavingReport) -> list[tuple[wire.Tier, wire.Tier]]:
    """Each tier that the script never saves to alone, with the one behind it."""
    return [pair for pair in itertools.pairwise(TIERS) if _own(pins, pair[0]) == 0]


def _costs(reports: list[wire.SavingReport], pins: wire.SavingReport) -> Costs | None:
    """The cost of a save: the slowest node counts. None: too little was measured."""
    step = max(report.step_seconds for report in reports)
    known = [costs_by_tier(report) for report in reports]
    stops = {tier: max(one[tier].stop_seconds for one in known) for tier in TIERS}
    for tier, farther in reversed(_left_out(pins)):
        stops[tier] = stops[farther]
    if not (step and stops[TIERS[0]]):
        return None
    durable = {tier: max(one[tier].durable_seconds for one in known) for tier in TIERS}
    return Costs(
        step=step,
        tiers={tier: Cost(stop=stops[tier] or None, durable=durable[tier]) for tier in TIERS},
    )


def _rates(job: JobContext, world: World, pins: wire.SavingReport) -> Rates:
    state, since = job.state, job.state.trains_since
    more = 0.0 if since is None else max(0.0, job.clock.job_seconds - since)
    seen = Observed(failures=state.tier_failures, seconds=state.trained_seconds + more)
    given = job.settings.failure_seconds
    rates = failure_rate.learn(seen, nodes=len(world.savers), given=given)
    by_tier = dict(rates.by_tier)
    for tier, farther in _left_out(pins):
        # Every failure goes back to a farther tier.
        by_tier[tier], by_tier[farther] = _NEVER, by_tier[tier] + by_tier[farther]
    return dataclasses.replace(rates, by_tier=by_tier)


# ------------------------------------------------------------------------------------- the exchange


def _set(job: JobContext, world: World, offer: OfferedSchedule) -> None:
    choice = barrier.set_step(job, world, offer, "schedule")
    fact = _as_fact(world, offer)
    for node in job.membership.present(world.savers):
        _send(job.out, node, world, fact, confirmed=False)
    job.timers.set(Timer.SCHEDULE_SEEN, barrier.seen_by(job, choice))


def _again(job: JobContext, world: World, offer: OfferedSchedule) -> None:
    offer.tries = min(offer.tries + 1, _MOST_TRIES)
    _set(job, world, offer)


def seen_due(job: JobContext) -> None:
    """Not every node has said in time that its ranks know the offer."""
    world, offer = job.worlds.running(), job.checkpoints.schedule.offer
    if world is not None and offer is not None and job.checkpoints.schedule.is_of(world):
        _again(job, world, offer)


def _confirm(job: JobContext, world: World, offer: OfferedSchedule) -> None:
    fact = _as_fact(world, offer)
    job.out.record(fact, durable=True)
    schedule = job.checkpoints.schedule
    schedule.now, schedule.offer, schedule.unsure = offer.every, None, False
    job.timers.cancel(Timer.SCHEDULE_SEEN)
    tiers = "; ".join(f"{word(one.tier)}: {_words(one)}" for one in intervals(job))
    job.out.event(EventReason.CHECKPOINT_SCHEDULED, f"from step {offer.step} on {tiers}")
    for node in job.membership.present(world.savers):
        _send(job.out, node, world, fact, confirmed=True)


def _as_fact(world: World, offer: OfferedSchedule) -> wire.ScheduleConfirmed:
    """The fact that an offer will be once all savers have heard of it."""
    return wire.ScheduleConfirmed(
        round=world.saver_round,
        schedule_id=offer.number,
        step=offer.step,
        intervals=to_intervals(offer.every),
    )


def send(job: JobContext, node: Node) -> None:
    """Tell a member that was away what holds, and what is offered."""
    world = job.worlds.saving()
    if world is None or not world.saves(node.rank):
        return
    schedule, last = job.checkpoints.schedule, job.state.schedule
    if last is not None and last.round == world.saver_round:
        _send(job.out, node, world, last, confirmed=True)
    if schedule.offer is not None and schedule.is_of(world):
        _send(job.out, node, world, _as_fact(world, schedule.offer), confirmed=False)


def _send(
    out: OutgoingBatch, node: Node, world: World, fact: wire.ScheduleConfirmed, *, confirmed: bool
) -> None:
    message = wire.SetSchedule(
        schedule_id=fact.schedule_id,
        step=fact.step,
        intervals=fact.intervals,
        confirmed=confirmed,
    )
    out.send(node, message, world.round_of(node.rank))


# --------------------------------------------------------------------------------------- for people


def intervals(job: JobContext) -> tuple[wire.CheckpointInterval, ...]:
    """The interval in force of each tier; empty: no rank follows a schedule."""
    world, schedule = job.worlds.running(), job.checkpoints.schedule
    reports = _reports(job.membership, world) if world is not None and schedule.is_of(world) else []
    if not reports or schedule.now is None:
        return ()
    pins, verdict = reports[0], schedule.verdict
    now = _over(pins, schedule.now)
    reasons = verdict.reasons if verdict is not None else {}
    return tuple(_tier(tier, now[tier], pins, reasons.get(tier, "")) for tier in TIERS)


def _tier(
    tier: wire.Tier, every: int, pins: wire.SavingReport, reason: str
) -> wire.CheckpointInterval:
    why = reason or "unchanged until this round has measured a save"
    own = _own(pins, tier)
    return wire.CheckpointInterval(tier=tier, every=every, reason=why if own is None else _SCRIPT)


def _words(one: wire.CheckpointInterval) -> str:
    steps = "step" if one.every == 1 else f"{one.every} steps"
    often = f"every {steps}" if one.every else "none of its own"
    return f"{often} ({one.reason})"
