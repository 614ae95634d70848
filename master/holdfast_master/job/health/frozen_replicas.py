"""Replicas that keep others waiting: found by their steps, reported, and restarted where hangs are.

Their ranks are in worlds of their own, so collectives cannot be compared as in `hangs`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from holdfast_master.job.incidents import incidents
from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.world import FrozenAt, Inquiry, World
from holdfast_master.policies import hang, hang_limit
from holdfast_master.policies import replicas as policy
from holdfast_master.policies.failure import Evidence, EvidenceKind
from holdfast_master.policies.replicas import FrozenReplica, ReplicaPace
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason

LEAST_SECONDS: Final = 30.0
"""Least time without a step before a replica is frozen, s: nothing is compiled or loaded in the
middle of a run for longer, and the others wait as long."""
EVIDENCE_SECONDS: Final = 6.0
"""For the evidence of all nodes; an agent takes 2 s, and those that are gone never answer."""
STEPS: Final = 20.0
"""The same in steps of usual length."""
EARLY_SECONDS: Final = 2.0
"""Least time without a step before ranks are asked if one of them is stopped or gone, s: a sign
that needs no longer wait. Replicas in step all wait for such a one."""
EARLY_STEPS: Final = 5.0
"""The same in steps of usual length."""
EARLY_APART: Final = 30.0
"""Between two such questions where the first blamed nobody, s: pauses that are no fault, as of a
data loader, may be frequent."""
_MEETING: Final = 2.0
"""Times that the others may take until they step without one that was put out: they meet anew."""
_WORK: Final = frozenset({wire.RankSection.EVAL, wire.RankSection.CHECKPOINT})


def look(job: JobContext, world: World) -> None:
    """Look whether a replica of the newest roster keeps the others waiting, or all stand still.

    One that has not completed a first step may yet: it is no measure of the others.
    """
    _take_in(job, world)
    members = _members(job, world)
    if job.worlds.barrier is not None or not all(_reporting(job, world, one) for one in members):
        return
    paces = [pace for one in members if (pace := _pace(job, world, one)) is not None]
    limit = max(LEAST_SECONDS, STEPS * world.step_seconds)
    if not paces:
        return
    _forget_blamed(job, world, limit)
    if policy.all_still(paces, _early(world)) is None:
        job.worlds.inquiry = None
    elif len(members) > 1:
        _inquire(job, world, members, is_late=policy.all_still(paces, limit) is not None)
    asked = job.worlds.inquiry
    if asked is not None and asked.judged and not asked.blamed and not asked.early:
        # Where replicas have steps of their own, who is behind may be one that waits, such as for
        # one that starts.
        found = policy.frozen(paces, limit) if len(paces) == len(members) else None
        if found is not None:
            asked.blamed = True
            _put_out(job, world, found)
    settings = job.hang_policy
    if settings is not None:
        stepped = {one.number for one in paces}
        starting = [one.number for one in members if one.number not in stepped]
        _look_longer(job, world, settings, paces, starting)


def _forget_blamed(job: JobContext, world: World, limit: float) -> None:
    """Be ready to ask again: whom a blamed replica kept waiting should have stepped by now."""
    asked = job.worlds.inquiry
    if asked is None or not asked.blamed:
        return
    enough = _MEETING * _early(world) if asked.early else limit
    if job.now - job.worlds.put_out_at >= enough:
        job.worlds.inquiry = None


def _early(world: World) -> float:
    """The time without a step after which ranks are asked for a sign that needs no longer wait."""
    if not world.step_seconds:
        return LEAST_SECONDS  # nothing is known of a usual step
    return max(EARLY_SECONDS, EARLY_STEPS * world.step_seconds)


def _inquire(
    job: JobContext, world: World, members: list[wire.WorldReplica], *, is_late: bool
) -> None:
    """Ask once early, and once more when all have stood still for as long as any cause needs."""
    asked = job.worlds.inquiry
    if is_late and (asked is None or (asked.early and asked.judged and not asked.blamed)):
        _ask(job, world, members, early=False)
    elif asked is None and job.now - job.worlds.asked_early_at >= EARLY_APART:
        job.worlds.asked_early_at = job.now
        _ask(job, world, members, early=True)


def _members(job: JobContext, world: World) -> list[wire.WorldReplica]:
    """The replicas of the newest roster that have not ended."""
    named = frozenset(job.state.named_replicas)
    members = [one for one in world.replicas if one.number in named]
    return [one for one in members if not world.finished.issuperset(world.members_of(one))]


def _look_longer(
    job: JobContext,
    world: World,
    settings: wire.HangPolicy,
    paces: list[ReplicaPace],
    starting: list[int],
) -> None:
    """Look for what needs a longer wait: a start that never ends, and that all stand still.

    Whoever waited for a replica that was put out has as long again to go on.
    """
    longest = max(settings.min_seconds, settings.step_time_factor * world.step_seconds)
    if starting:
        longest = max(longest, hang_limit.longest_work(settings).seconds)
    still = None if starting else policy.all_still(paces, longest)
    if still is None and not starting:
        job.worlds.frozen.pop(0, None)
    if job.now - job.worlds.put_out_at < longest:
        return
    if still is not None:
        _look_at_all(job, world, still)
    for found in policy.never_started(paces, starting, longest):
        _put_out(job, world, found)


def _put_out(job: JobContext, world: World, found: FrozenReplica) -> None:
    one = next(one for one in world.replicas if one.number == found.number)
    pace, last = _pace(job, world, one), job.state.roster
    job.worlds.put_out_at = job.now
    job.worlds.frozen[found.number] = FrozenAt(
        step=pace.step if pace is not None else 0, epoch=last.epoch if last else 0
    )
    _respond(job, world, found)


# ---------------------------------------------------------------------- all stand at one step: why


def _ask(job: JobContext, world: World, members: list[wire.WorldReplica], *, early: bool) -> None:
    """Ask all ranks what they do: one of them may be frozen in the sync that the others wait in."""
    asked = Inquiry(number=job.out.command("frozen", 0), early=early)
    job.worlds.inquiry = asked
    order = wire.CollectEvidence(command_id=asked.number, reason="no replica completes a step")
    for node in job.membership.present(rank for one in members for rank in world.members_of(one)):
        if node.session is not None:
            asked.awaited.add(node.rank)
            job.out.send(node, order, world.round_of(node.rank))
    job.timers.set(Timer.HANG_EVIDENCE, job.now + EVIDENCE_SECONDS)


def collected(job: JobContext, world: World, node: Node, message: wire.EvidenceCollected) -> None:
    """Take a node's evidence, if it is awaited, and judge once all is there."""
    asked = job.worlds.inquiry
    if asked is None or message.command_id != asked.number or node.rank not in asked.awaited:
        return
    asked.awaited.discard(node.rank)
    number = world.places[node.rank].replica.number
    asked.evidence.setdefault(number, []).extend(message.ranks)
    if not asked.awaited:
        judge(job, world)


def judge(job: JobContext, world: World) -> None:
    """Judge with what has come: each replica's ranks are a world of their own."""
    asked = job.worlds.inquiry
    if asked is None or asked.judged:
        return
    asked.judged = True
    asked.awaited.clear()
    job.timers.cancel(Timer.HANG_EVIDENCE)
    sizes = {place.replica.number: place.size for place in world.places.values()}
    verdicts = {
        number: hang.classify(ranks, world_size=sizes[number], ended=_ended(world, number))
        for number, ranks in asked.evidence.items()
        if number in sizes
    }
    asked.evidence.clear()
    members = _members(job, world)
    starting = {one.number for one in members if asked.early or _pace(job, world, one) is None}
    for found in policy.stuck_by_itself(verdicts, starting):
        asked.blamed = True
        job.worlds.asked_early_at = -math.inf
        _put_out(job, world, found)


def _take_in(job: JobContext, world: World) -> None:
    """Have replicas in the roster again that were out of it and have stepped since."""
    frozen = job.worlds.frozen
    for replica in world.replicas:
        if replica.number not in frozen:
            continue
        pace = _pace(job, world, replica)
        if pace is not None and pace.step > frozen[replica.number].step:
            come_back(job, world, replica)


def _ended(world: World, number: int) -> list[int]:
    """The ranks of a replica whose processes have ended well: they keep nobody waiting."""
    return [
        world.places[node].base_rank + local
        for node in world.by_replica[number]
        for local in world.done.get(node, ())
    ]


def come_back(job: JobContext, world: World, replica: wire.WorldReplica) -> None:
    """Have a replica that was out of the roster, and goes on, in it again.

    Where the others have ended the training meanwhile, it would go on alone, and its weights would
    be the newest checkpoint. So it begins anew from theirs, which is no failure.
    """
    del job.worlds.frozen[replica.number]
    if not _have_ended(job, world, replica):
        job.touch(Change.REPLICA_READY)
        return
    nodes = world.members_of(replica)
    text = (
        f"replica {replica.number} goes on after the others have ended the training: it begins "
        "anew from their last checkpoint"
    )
    _begin_anew(job, world, nodes, nodes[0], EvidenceKind.RESTART_ASKED, text)


def _have_ended(job: JobContext, world: World, but: wire.WorldReplica) -> bool:
    """Whether all others that could be in the roster have ended well, with a checkpoint."""
    ends = job.state.stop is not None or job.spec.suspend
    others = [one for one in world.replicas if one is not but]
    ended = [one for one in others if world.finished.issuperset(world.members_of(one))]
    left = [one for one in others if one not in ended and one.number not in job.worlds.frozen]
    return bool(ended) and not left and not ends and job.state.checkpoint is not None


def _look_at_all(job: JobContext, world: World, found: FrozenReplica) -> None:
    """Answer where no replica of the roster makes progress: at first they meet anew.

    Nobody is to blame where a network between them was cut. Their connections wait for as long
    again as the cut has lasted, and new ones do not. While they cannot meet, they try again and
    again: other processes could not meet either.
    """
    last, known = job.state.roster, job.worlds.frozen.get(0)
    if known is None and last is not None and len(last.replicas) > 1:
        job.worlds.frozen[0] = FrozenAt(epoch=last.epoch + 1)
        job.worlds.meet_anew = found.reason
        job.worlds.put_out_at = job.now
        job.out.warn(EventReason.REPLICA_FROZEN, f"{found.reason}; they meet anew")
        job.touch(Change.ROSTER_FAILED)
    elif known is None or job.worlds.unmet_epoch < known.epoch:
        job.worlds.frozen[0] = FrozenAt()
        _respond(job, world, found)


def _pace(job: JobContext, world: World, replica: wire.WorldReplica) -> ReplicaPace | None:
    """The progress of a replica; None: a rank of it has completed no step, or is unheard."""
    nodes = _reporting(job, world, replica)
    ranks = [(item, job.now - node.ranks_at) for node in nodes for item in node.ranks]
    if not ranks or any(not item.step for item, _ in ranks):
        return None
    return ReplicaPace(
        number=replica.number,
        step=min(item.step for item, _ in ranks),
        still=min(item.since_step_seconds + age for item, age in ranks),
        working=any(item.section in _WORK for item, _ in ranks),
    )


def _reporting(job: JobContext, world: World, replica: wire.WorldReplica) -> list[Node]:
    """The nodes whose ranks run; empty: one of them has not told what its ranks do."""
    ranks = [rank for rank in world.members_of(replica) if rank not in world.finished]
    nodes = job.membership.present(ranks)
    reported = all(len(node.ranks) >= node.local_world_size for node in nodes)
    return nodes if reported and len(nodes) == len(ranks) else []


def _respond(job: JobContext, world: World, found: FrozenReplica) -> None:
    """Put a replica out of the roster, and restart it where the spec has hangs acted on."""
    ends = job.state.stop is not None or job.spec.suspend
    settings = job.hang_policy
    acts = settings is not None and settings.mode is wire.HealthMode.ACT and not ends
    left = "it is left alone" if found.number == 0 else "the others go on without it until it steps"
    text = f"{found.reason}; {'it is restarted' if acts else left}"
    places = world.places.items()
    nodes = [rank for rank, place in places if found.number in (0, place.replica.number)]
    one = nodes[0] if len(nodes) == 1 else None
    job.out.warn(EventReason.REPLICA_FROZEN, text, node=one)
    job.touch(Change.REPLICA_READY)
    if not acts:
        return
    blamed = None if found.number == 0 else nodes[0]
    _begin_anew(job, world, nodes, blamed, EvidenceKind.HUNG, text)


def _begin_anew(
    job: JobContext,
    world: World,
    nodes: Sequence[int],
    blamed: int | None,
    kind: EvidenceKind,
    text: str,
) -> None:
    """Have these nodes' ranks begin anew, by an incident of the blamed one; None: of nobody."""
    for rank in nodes:
        world.disturb(rank)
    item = Evidence(
        kind=kind,
        text=text,
        at=job.now,
        node_rank=blamed,
        agent_id="" if blamed is None else world.places[blamed].member.agent_id,
    )
    incidents.report_process(job, item, world.round)
