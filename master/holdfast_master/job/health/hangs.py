"""Hangs of the running world: the watch, the evidence of all ranks, what people are told.

Nobody waits for the time-out of a collective. Evidence comes before anything is ended.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Final

from holdfast_master.job.health import (
    frozen_replicas,
    hang_responses,
    slow_replicas,
    stragglers,
)
from holdfast_master.job.incidents import reported, strikes
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.health import Hang, HangWatch, Silence
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.phases import RUNNING
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.world import World
from holdfast_master.policies import hang, hang_limit, hang_response
from holdfast_master.policies.hang_limit import LearnedTimes, Phase, learn
from holdfast_master.policies.hang_response import HangVerdict
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason
from holdfast_wire.strikes import StrikeCause

LOOK_SECONDS: Final = 1.0
"""Between two looks at the running world; each costs a look at every rank."""
AGAIN_SECONDS: Final = 60.0
"""Between two looks at ranks that compute: a dump of stacks costs each some milliseconds."""


def watch(job: JobContext) -> None:
    """Begin to look, once a world runs."""
    job.timers.ensure(Timer.HANG, job.now + LOOK_SECONDS)


def due(job: JobContext) -> None:
    """Look at the running world, and look again later."""
    world = job.worlds.running()
    if world is None:
        return  # the next assignment begins anew
    job.timers.set(Timer.HANG, job.now + LOOK_SECONDS)
    policy = job.hang_policy
    if world.replicas:
        frozen_replicas.look(job, world)
        slow_replicas.look(job, world)
        return
    if policy is None:
        return
    job.health.begin(world.round)
    _look(job, world, policy)


def _look(job: JobContext, world: World, policy: wire.HangPolicy) -> None:
    own = job.health.hang_watch
    if not own.since and world.all_started():
        own.since = job.now
    _learn(job, world, own)
    paused = job.worlds.barrier is not None or job.state.phase not in RUNNING
    sections = [_section(item) for _, item in _ranks(job, world)]
    since = _since(job, world, own)
    if since is None:
        return
    phases = hang_limit.phases(sections, paused=paused)
    stands = since >= own.silent
    _learn_pause(job, world, since, phases)
    if paused and own.hang is not None and stands:
        return  # that the master has the ranks wait does not end a hang
    hang_responses.note_progress(job, world)
    reason = hang_limit.judge(phases, since, own.learned, policy)
    if not reason:
        _over(job, own, since)
    elif own.hang is None and job.now >= own.ask_after:
        own.hang = Hang(
            number=0,
            since=job.now,
            began=job.now - since,
            reason=reason,
            excused_until=job.now - since + hang_limit.longest_work(policy).seconds,
            unseen=set(sections) == {wire.RankSection.UNSPECIFIED}
            and not any(item.step for _, item in _ranks(job, world)),
        )
        _ask(job, world, own.hang)
    elif own.hang is not None and not own.hang.asking:
        _answer(job, world, own.hang)
        _look_again(job, world, own.hang)


def _answer(job: JobContext, world: World, found: Hang) -> None:
    """Answer a judged hang once, when a report of a step after the verdict shows that it lasts.

    The world may have gone on while evidence was awaited, and reports are seconds apart. Of a later
    look that shows something new, the next one has to show the same: ranks go on one by one.
    """
    reports = [(node.ranks_at, item.step_seconds) for node, item in _ranks(job, world)]
    newer = any(at > found.judged_at + step_seconds for at, step_seconds in reports)
    if newer and not found.answered and not found.unsure and not _waits(job, found):
        found.answered = hang_responses.respond(job, world, found)


def _waits(job: JobContext, found: Hang) -> bool:
    """Whether the ranks may still go on by themselves: that is told, and ended later.

    A loop of the script's own code may be work.
    """
    verdict = found.verdict
    if verdict is None or job.now < found.following_until:
        return True
    return (verdict.busy or verdict.may_be_work) and job.now < found.excused_until


def _look_again(job: JobContext, world: World, found: Hang) -> None:
    """Ask for evidence anew, where what is not answered yet, or left alone, may change."""
    verdict = found.verdict
    if verdict is None or job.now < found.judged_at + AGAIN_SECONDS:
        return
    left = found.left and not verdict.ended
    if left or verdict.may_change or not found.answered:
        _ask(job, world, found)


def _ranks(job: JobContext, world: World) -> Iterator[tuple[Node, wire.RankProgress]]:
    """Yield the newest reports of all ranks that still run."""
    for node, item in job.membership.reports(world.places):
        if item.local_rank not in world.done.get(node.rank, ()):
            yield node, item


def _section(item: wire.RankProgress) -> wire.RankSection:
    """The section that a rank has told; a script without the SDK tells none."""
    return item.section if item.has_sdk else wire.RankSection.UNSPECIFIED


def _since(job: JobContext, world: World, own: HangWatch) -> float | None:
    """The time since the newest progress of any rank, s; None: the world only starts.

    As far as ranks have told: a node that is not heard may have gone on.
    """
    if not own.since or len(world.finished) == len(world.places):
        return None
    if world.size == 1 and not own.step and not any(item.has_sdk for _, item in _ranks(job, world)):
        return None  # it waits for nobody, and its steps are not known
    ages = [item.since_step_seconds for _, item in _ranks(job, world) if item.step]
    return min([job.now - own.since, job.now - own.section_at, *ages])


def _learn(job: JobContext, world: World, own: HangWatch) -> None:
    """Learn from one rank of each world: all ranks wait for each other."""
    first = next((item for _, item in _ranks(job, world)), None)
    if first is None:
        return
    section = _section(first)
    if section is not own.section:
        own.learned = _after_section(own, job.now - own.section_at)
        own.section, own.section_at = section, job.now
    if first.step == own.step or not first.step_seconds:
        return
    times = first.step - max(own.step, first.first_step - 1, 0)
    own.step = first.step
    if first.step_source is wire.StepSource.COLLECTIVES:
        pauses = learn(own.learned.pauses, first.step_seconds, times)
        own.learned = dataclasses.replace(own.learned, pauses=pauses)
    elif section is wire.RankSection.TRAIN:
        steps = learn(own.learned.steps, first.step_seconds, times)
        own.learned = dataclasses.replace(own.learned, steps=steps)


def _learn_pause(job: JobContext, world: World, since: float, phases: frozenset[Phase]) -> None:
    """Note how long the world is silent, and learn from a silence that a step has ended."""
    own, policy = job.health.hang_watch, job.hang_policy
    newest = max((item.step for _, item in _ranks(job, world)), default=0)
    if since < own.silent and (own.pause is None or own.silent > own.pause.seconds):
        verdict = own.hang.verdict if own.hang is not None else None
        ordinary = verdict is None or verdict.may_be_ordinary
        own.pause = Silence(seconds=own.silent, phases=own.silent_in, ordinary=ordinary)
    if newest > own.newest and own.pause is not None:
        if own.newest and policy is not None:  # before a first step nothing is training
            own.learned = hang_limit.learn_pause(
                own.learned,
                own.pause.seconds,
                own.pause.phases,
                policy,
                ordinary=own.pause.ordinary,
            )
        own.pause = None
    own.silent_in |= phases
    if since < own.silent or newest > own.newest:
        own.silent_in = frozenset()
    own.silent, own.newest = since, max(own.newest, newest)


def _after_section(own: HangWatch, seconds: float) -> LearnedTimes:
    known = own.learned
    if own.section is wire.RankSection.EVAL:
        return dataclasses.replace(known, evaluations=learn(known.evaluations, seconds))
    if own.section is wire.RankSection.CHECKPOINT:
        return dataclasses.replace(known, checkpoints=learn(known.checkpoints, seconds))
    return known


# --------------------------------------------------------------------------------------- evidence


def _ask(job: JobContext, world: World, found: Hang) -> None:
    """Ask every member for its ranks' evidence, under a new number: late answers are no news."""
    own = job.health.hang_watch
    own.asked += 1
    found.number, found.asking = own.asked, True
    order = wire.CollectEvidence(command_id=found.number, reason=found.reason)
    for node in job.membership.present(world.places):
        if node.session is not None and node.rank not in world.finished:
            found.awaited.add(node.rank)
            job.out.send(node, order, world.round)
    job.timers.set(Timer.HANG_EVIDENCE, job.now + frozen_replicas.EVIDENCE_SECONDS)
    _settle(job, world, found)


def collected(job: JobContext, node: Node, _: int, message: wire.EvidenceCollected) -> None:
    """Take a node's evidence, if it is awaited."""
    world = job.worlds.member(node)
    if world is not None and world.replicas:
        frozen_replicas.collected(job, world, node, message)
        return
    found = _asked_about(job, world)
    if world is None or found is None or message.command_id != found.number:
        return
    if node.rank in found.awaited:
        found.awaited.discard(node.rank)
        found.evidence.extend(message.ranks)
        _settle(job, world, found)


def evidence_due(job: JobContext) -> None:
    """Judge with what has come."""
    world = job.worlds.running()
    if world is not None and world.replicas:
        frozen_replicas.judge(job, world)
        return
    found = _asked_about(job, world)
    if world is not None and found is not None:
        found.awaited.clear()
        _settle(job, world, found)


def _asked_about(job: JobContext, world: World | None) -> Hang | None:
    """The hang of this world; one of the world before has other ranks on other nodes."""
    if world is None or world.round != job.health.round:
        return None
    return job.health.hang_watch.hang


def _settle(job: JobContext, world: World, found: Hang) -> None:
    if found.awaited or not found.asking:
        return
    job.timers.cancel(Timer.HANG_EVIDENCE)
    found.asking, before = False, found.verdict
    verdict = hang.classify(found.evidence, world_size=world.size, ended=world.ended_ranks)
    policy = job.hang_policy
    limit = hang_limit.longest_work(policy).seconds if policy is not None else math.inf
    if before is None and _is_excused(found, verdict, job.now, limit):
        own = job.health.hang_watch
        own.hang, own.ask_after = None, job.now + AGAIN_SECONDS
        return
    found.judged_at = job.now
    # What is missing now is no reason to forget what was seen.
    if before is None or verdict.ranks or not verdict.silent:
        found.verdict, found.answered = verdict, False
        found.unsure = before is not None and not verdict.confirms(before)
        if before is not None:
            seconds = hang_response.following_seconds(verdict, before, job.now - found.began)
            until = found.began + min(seconds, limit)
            found.following_until = max(found.following_until, until)
        if before is None or found.unsure or verdict.kind is not before.kind:
            _report(job, world, found, verdict)
    found.evidence.clear()  # stacks of all ranks: nobody reads them again


def _report(job: JobContext, world: World, found: Hang, verdict: HangVerdict) -> None:
    """Keep the evidence of a verdict; people hear of a hang once."""
    # Ranks that contradict each other on two nodes: nothing tells whose fault it is.
    node = stragglers.only_node(world, (one.rank for one in verdict.ranks))
    text = f"{verdict.reason} ({found.reason})"
    known = job.health.open_incident
    incident = reported.found(job, world, found, verdict, node)
    if incident != known:  # else an earlier look, or an earlier master, has said so
        job.out.warn(EventReason.HANG_FOUND, text, node=node, incident=incident)
        if node is not None:
            strikes.strike(job, node, StrikeCause.HANG, text)


def _is_excused(found: Hang, verdict: HangVerdict, now: float, limit: float) -> bool:
    """Whether the odd ranks may be at work that nobody has told: look again later.

    A world without known steps stands still only where ranks wait for others, and have not issued
    a collective for as long as a first step may take.
    """
    if found.unseen and not (verdict.waits and verdict.idle_seconds > limit):
        return True
    return verdict.may_be_work and now < found.excused_until


def _over(job: JobContext, own: HangWatch, since: float) -> None:
    """The world goes on: what hung is over, or was none."""
    own.ask_after = -math.inf
    found, own.hang = own.hang, None
    settled = found is not None and found.verdict is not None
    # What an earlier master found is over with the first progress that this one sees.
    if job.health.open_incident and (settled or since < job.now - own.since):
        incident = job.health.open_incident
        lasted = reported.close(job, went_on=True, since=since)
        text = f"the ranks go on, {lasted:.0f} s after the step before the hang"
        job.out.event(EventReason.HANG_OVER, text, incident=incident)
