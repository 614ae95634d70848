"""Responses to hangs, where `spec.health.hang.mode` is Act.

A hang is a failure like others: its incident has the cause Hung, budgets and failure rules count,
and the next round begins as after every failure. A master that is killed before the incident is in
the journal leaves the world as it is, and its successor finds the hang anew.
"""

from __future__ import annotations

import dataclasses

from holdfast_master.job.health import stragglers
from holdfast_master.job.incidents import incidents, strikes
from holdfast_master.job.nodes import liveness, replacement, rule_actions
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.health import Hang
from holdfast_master.job.state.phases import RUNNING
from holdfast_master.job.state.world import World
from holdfast_master.policies import hang_response
from holdfast_master.policies.failure import Evidence, EvidenceKind
from holdfast_master.policies.hang_response import (
    AnsweredHang,
    HangAction,
    HangResponse,
    HangVerdict,
)
from holdfast_wire.messages import HealthMode
from holdfast_wire.reasons import Cause, EventReason


def respond(job: JobContext, world: World, hang: Hang) -> bool:
    """Do the smallest thing that helps against a hang whose evidence has been judged.

    Returns whether it was answered; False: a later look asks again.
    """
    policy, verdict = job.hang_policy, hang.verdict
    if verdict is None or policy is None or policy.mode is not HealthMode.ACT or not _is_free(job):
        return True
    # A rank may have ended well since the verdict.
    verdict = dataclasses.replace(verdict, ended=world.ended_ranks)
    past = [one.until(hang.began) for one in job.health.answered]
    nodes, hosts = world.nodes_by_rank(), _hosts(job, world)
    found = hang_response.decide(
        verdict,
        nodes,
        tried=_tried(job, world),
        hosts=hosts,
        past=past,
        waited_seconds=job.now - hang.since,
        excused_seconds=hang.excused_until - job.now,
    )
    if found.action is HangAction.WAIT:
        return False
    if found.action is HangAction.NOTHING:
        if not hang.left:
            job.out.warn(EventReason.HANG_LEFT, f"the hang is left alone: {found.reason}")
        hang.left = True
        return True
    job.health.answered = [*past, _answered(job, world, hang, verdict)]
    for rank in found.nodes:
        _dismiss(job, rank, verdict.kind.value, found)
    _end(job, world, verdict, found.reason)
    return True


def _answered(job: JobContext, world: World, hang: Hang, verdict: HangVerdict) -> AnsweredHang:
    nodes, hosts = world.nodes_by_rank(), _hosts(job, world)
    ranks = tuple(one.rank for one in verdict.ranks)
    return AnsweredHang(
        kind=verdict.kind,
        ranks=ranks,
        hosts=tuple(sorted({hosts[nodes[rank]] for rank in ranks if rank in nodes})),
        began=hang.began,
        round=world.round,
        reached=world.reached,
    )


def _end(job: JobContext, world: World, verdict: HangVerdict, answer: str) -> None:
    """End the world by an incident."""
    blamed = stragglers.only_node(world, (one.rank for one in verdict.ranks))
    node = job.membership.nodes.get(blamed) if blamed is not None else None
    reported = job.health.open_incident
    stacks = f"; incident {reported} has the stacks" if reported else ""
    item = Evidence(
        kind=EvidenceKind.HUNG,
        text=f"hang: {verdict.reason}; {answer}{stacks}",
        # It began with the last progress: that explains what its ranks met until now.
        at=job.now - job.health.hang_watch.silent,
        node_rank=None if node is None else node.rank,
        agent_id="" if node is None else node.agent_id,
        rank=None if node is None else verdict.ranks[0].rank,
    )
    incidents.report_process(job, item, world.round)


def note_progress(job: JobContext, world: World) -> None:
    """Note what the last response has cost, once the world is further than the one that hung."""
    last = next(iter(job.health.answered[-1:]), None)
    if last is None or last.cost_seconds or world.round <= last.round:
        return
    steps = (item.step for _, item in job.membership.reports(world.places))
    if max(steps, default=0) > last.reached:
        job.health.answered[-1] = last.until(job.now)


def _hosts(job: JobContext, world: World) -> dict[int, str]:
    """The host of each member, or where none is known what tells it from its successor."""
    return {
        rank: strikes.host_of(job, rank) or place.member.agent_id
        for rank, place in world.places.items()
    }


def _is_free(job: JobContext) -> bool:
    """Whether nothing else is about to end the world."""
    ends = job.state.stop is not None or job.spec.suspend or job.worlds.barrier is not None
    return job.state.phase in RUNNING and not ends


def _tried(job: JobContext, world: World) -> bool:
    """Whether this world follows such a hang with nobody to blame, and got no further."""
    return any(
        incident.cause == Cause.HUNG
        and not incident.culprit_node
        and incident.to_round == world.round
        and world.reached <= job.state.ended_steps.get(incident.from_round, 0)
        for incident in job.state.incidents.values()
    )


def _dismiss(job: JobContext, rank: int, cause: str, found: HangResponse) -> None:
    """Have a node leave for good, and ask for another pod."""
    node = job.membership.nodes.get(rank)
    if node is None:
        return
    why = f"a rank of it hung ({cause})"
    leaves = found.action is HangAction.LEAVE_NODES
    host = rule_actions.exclude(job, rank, why, others_leave=False) if leaves else ""
    if not replacement.ask(job, rank, node.pod_uid, why, avoid_node=host) and not leaves:
        return  # nobody makes pods here: its ranks are started in place
    node.condemned = True
    liveness.drain(job, node, EvidenceKind.DRAINED, f"node {rank} leaves: {why}")
