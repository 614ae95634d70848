"""How far apart checkpoints are: computed from what saving costs, and changed on all ranks or none.

Belongs here: offering a schedule, hearing of it, confirming it. Does not belong here: the numbers
(`decide.interval`), from which step they hold (`decide.arming`), saves that somebody asks for
(`saving`).

A change has two parts. Ranks that were offered a schedule save, from its step on, what either asks
for. Once every node has said that its ranks heard of it before that step, the change is written
down and confirmed, and whoever hears that does without the old one. So at each step there is a
schedule by which all ranks save, whatever is late or lost. A rank that had passed the step makes it
a later one. How ranks stand is told by every heartbeat, so nothing of this waits for an answer.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from holdfast_master.decide import arming, failure_rate, interval
from holdfast_master.decide.failure_rate import Observed, Rates
from holdfast_master.decide.interval import Costs, Every
from holdfast_master.job import incidents, stopping
from holdfast_master.job.desk import Desk
from holdfast_master.job.roster import Node
from holdfast_master.job.schedule_book import Offered, ScheduleBook
from holdfast_master.job.timers import Timer
from holdfast_master.job.world import World
from holdfast_wire.messages import (
    CheckpointInterval,
    JobPhase,
    SavingReport,
    ScheduleConfirmed,
    SetSchedule,
)
from holdfast_wire.reasons import EventReason

FIRST: Final = Every(memory=1, storage=100)
"""What a job begins with before anything is measured: as a rank without a master."""
_MOST_TRIES: Final = 6
"""Doublings of the margin: an offer is repeated for as long as its world lives."""
_NEVER: Final = 1e-12
"""Failures in a second of a tier that the script does not use."""
_SCRIPT: Final = "the script says so"


def base(desk: Desk) -> Every:
    """What a world begins with: the spec's numbers, else what held last."""
    spec, last = desk.spec, desk.state.schedule
    known = FIRST if last is None else _every(last)
    return Every(
        memory=spec.memory_every or known.memory, storage=spec.storage_every or known.storage
    )


def _every(fact: ScheduleConfirmed) -> Every:
    return Every(memory=fact.memory_every, storage=fact.storage_every)


def heard(desk: Desk, node: Node, world: World, report: SavingReport | None) -> None:
    """What a member's ranks say of their saves, and of the schedule that they know."""
    node.saving = report
    if report is None:
        return
    book = _book(desk, world)
    desk.timers.ensure(Timer.SCHEDULE, desk.now + desk.settings.schedule_seconds)
    offer = book.offer
    if offer is None or report.seen_id != offer.number or node.rank in offer.seen:
        return
    offer.passed = max(offer.passed, report.seen_step)
    if report.seen_step > offer.step:
        _again(desk, world, offer)
        return
    offer.seen.add(node.rank)
    if len(offer.seen | world.finished) == len(world.places):
        _confirm(desk, world, offer)


def _book(desk: Desk, world: World) -> ScheduleBook:
    """The book of this world."""
    if desk.schedule.round == world.round:
        return desk.schedule
    fact, told = world.fact, desk.state.schedule
    now = Every(memory=fact.memory_every, storage=fact.storage_every)
    confirmed = told is not None and told.round == world.round
    desk.schedule = ScheduleBook(
        round=world.round,
        now=_every(told) if confirmed and told is not None else now,
        # Of a world that an earlier master made, only a journal would tell what was confirmed.
        unsure=world.bounds is None and not confirmed,
    )
    return desk.schedule


def due(desk: Desk) -> None:
    """Look whether another schedule would be better by now."""
    world = desk.running()
    if world is None or not any(node.saving for node in _members(desk, world)):
        return  # the next heartbeat of a world that follows sets the time anew
    desk.timers.set(Timer.SCHEDULE, desk.now + desk.settings.schedule_seconds)
    book = _book(desk, world)
    trains = desk.state.phase is JobPhase.TRAINING and desk.boundary is None
    if not trains or book.offer is not None or book.now is None or not world.fact.memory_every:
        return
    reports = _reports(desk, world)
    if not reports:
        return
    pins = reports[0]  # one script, and so the same on all
    costs = _costs(reports, pins)
    if costs is None:
        return
    now = _over(pins, book.now)
    wish = _over(pins, Every(memory=desk.spec.memory_every, storage=desk.spec.storage_every))
    book.verdict = interval.decide(costs, _rates(desk, world, pins), now, fixed=wish)
    if book.verdict.changed or book.unsure:
        offer = Offered(number=0, step=0, every=book.verdict.every)
        book.offer = offer
        _set(desk, world, offer)


# ------------------------------------------------------------------------------------ what is known


def _members(desk: Desk, world: World) -> list[Node]:
    nodes = desk.roster.nodes
    return [nodes[rank] for rank in world.places if rank in nodes]


def _reports(desk: Desk, world: World) -> list[SavingReport]:
    """What every member says; empty: not every rank follows."""
    found = [node.saving for node in _members(desk, world) if node.saving is not None]
    return found if len(found) == len(world.places) else []


def _over(pins: SavingReport, every: Every) -> Every:
    """Numbers with the script's own in their places."""
    memory, storage = pins.memory_every, pins.storage_every
    return Every(
        memory=every.memory if memory is None else memory,
        storage=every.storage if storage is None else storage,
    )


def _costs(reports: list[SavingReport], pins: SavingReport) -> Costs | None:
    """What saving costs the world: its slowest node counts. None: too little was measured."""
    step = max(report.step_seconds for report in reports)
    memory = max(report.memory_seconds for report in reports)
    storage = max(report.storage_seconds for report in reports)
    if pins.memory_every == 0:
        memory = storage
    if not (step and memory):
        return None
    return Costs(
        step=step,
        memory=memory,
        storage=storage or None,
        durable=max(report.durable_seconds for report in reports),
    )


def _rates(desk: Desk, world: World, pins: SavingReport) -> Rates:
    state, since = desk.state, desk.state.trains_since
    more = 0.0 if since is None else max(0.0, desk.clock.job_seconds - since)
    seen = Observed(
        memory=state.memory_failures,
        storage=state.storage_failures,
        seconds=state.trained_seconds + more,
    )
    given = desk.settings.failure_seconds
    rates = failure_rate.learn(seen, nodes=len(world.places), given=given)
    if pins.memory_every == 0:
        # Every failure goes back to storage.
        whole = rates.memory + rates.storage
        rates = dataclasses.replace(rates, memory=_NEVER, storage=whole)
    return rates


# ------------------------------------------------------------------------------------- the exchange


def _set(desk: Desk, world: World, offer: Offered) -> None:
    latency = stopping.latency(desk)
    choice = arming.choose(
        incidents.sightings(desk, world),
        latency=latency,
        tries=min(offer.tries, _MOST_TRIES),
        not_before=max(world.reached, offer.passed),
    )
    offer.number = desk.command("schedule", 0)
    offer.step = choice.step
    offer.seen.clear()
    for node in _members(desk, world):
        _send_offer(desk, node, world, offer)
    desk.timers.set(Timer.SCHEDULE_SEEN, desk.now + choice.expected_seconds + 2 * latency + 0.5)


def _again(desk: Desk, world: World, offer: Offered) -> None:
    offer.tries += 1
    _set(desk, world, offer)


def seen_due(desk: Desk) -> None:
    """Not every node has said in time that its ranks know the offer."""
    world, offer = desk.running(), desk.schedule.offer
    if world is not None and offer is not None and desk.schedule.round == world.round:
        _again(desk, world, offer)


def _confirm(desk: Desk, world: World, offer: Offered) -> None:
    fact = ScheduleConfirmed(
        round=world.round,
        schedule_id=offer.number,
        step=offer.step,
        memory_every=offer.every.memory,
        storage_every=offer.every.storage,
    )
    desk.record(fact, durable=True)
    book = desk.schedule
    book.now, book.offer, book.unsure = offer.every, None, False
    desk.timers.cancel(Timer.SCHEDULE_SEEN)
    tiers = "; ".join(f"{one.tier}: {_words(one)}" for one in intervals(desk))
    desk.event(EventReason.CHECKPOINT_SCHEDULED, f"from step {offer.step} on {tiers}")
    for node in _members(desk, world):
        _send_confirmed(desk, node, world)


def send(desk: Desk, node: Node) -> None:
    """Tell a member that was away what holds, and what is offered."""
    world = desk.running()
    if world is None:
        return
    _send_confirmed(desk, node, world)
    book = desk.schedule
    if book.offer is not None and book.round == world.round:
        _send_offer(desk, node, world, book.offer)


def _send_confirmed(desk: Desk, node: Node, world: World) -> None:
    fact = desk.state.schedule
    if fact is not None and fact.round == world.round:
        message = SetSchedule(
            schedule_id=fact.schedule_id,
            step=fact.step,
            memory_every=fact.memory_every,
            storage_every=fact.storage_every,
            confirmed=True,
        )
        desk.send(node, message, world.round)


def _send_offer(desk: Desk, node: Node, world: World, offer: Offered) -> None:
    message = SetSchedule(
        schedule_id=offer.number,
        step=offer.step,
        memory_every=offer.every.memory,
        storage_every=offer.every.storage,
    )
    desk.send(node, message, world.round)


# --------------------------------------------------------------------------------------- for people


def intervals(desk: Desk) -> tuple[CheckpointInterval, ...]:
    """What holds now, tier by tier; empty: nobody follows."""
    world, book = desk.running(), desk.schedule
    reports = _reports(desk, world) if world is not None and world.round == book.round else []
    if not reports or book.now is None:
        return ()
    pins, verdict = reports[0], book.verdict
    now = _over(pins, book.now)
    return (
        _tier("memory", now.memory, pins.memory_every, verdict.memory_reason if verdict else ""),
        _tier(
            "storage", now.storage, pins.storage_every, verdict.storage_reason if verdict else ""
        ),
    )


def _tier(name: str, every: int, pin: int | None, reason: str) -> CheckpointInterval:
    why = reason or "as before: nothing has been measured yet"
    return CheckpointInterval(tier=name, every=every, reason=why if pin is None else _SCRIPT)


def _words(one: CheckpointInterval) -> str:
    often = f"every {one.every} steps" if one.every else "none of its own"
    return f"{often} ({one.reason})"
