"""Replicas that synchronise: the outer roster, and their choice of the interval.

A new epoch is in the journal before any agent hears of it. What units are given to whom, and the
choice how to agree, the ranks decide, all alike after the same step: they wait for no answer.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Final

from holdfast_master.job.health import frozen_replicas
from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.world import World
from holdfast_master.job.worlds import replicas
from holdfast_master.policies import replicas as policy
from holdfast_master.policies.replicas import NewRoster, ReplicaStatus, SameRoster
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason

PARTING_SECONDS: Final = 10.0
"""How long a replica whose ranks have all ended well stays in the roster, s: the others may still
be in the sync that was its last, and a roster without it would have them do that sync again. Who
could not meet in an epoch is in no sync with it: then it is out at once."""

_MOST_NAMED: Final = 20
"""Replicas that an event names."""


def settle(job: JobContext) -> None:
    """Decide whether other replicas are to synchronise from now on."""
    world = job.worlds.assigned
    job.worlds.awaits_ready = set()
    if world is None or not world.replicas:
        return
    last = job.state.roster
    unmet = last is not None and job.worlds.unmet_epoch == last.epoch
    again = "its members could not meet" if unmet else job.worlds.meet_anew
    if job.worlds.strange_roster:
        again = "ranks were told a roster that is not in the journal"
    if unmet:
        job.worlds.parted = dict.fromkeys(job.worlds.parted, -math.inf)
    standings = list(_standings(job, world))
    verdict = policy.roster(
        standings,
        job.state.named_replicas,
        job.now,
        ready_since=_ready_since(job, standings),
        window=job.spec.join_window_seconds,
        again=again,
    )
    if isinstance(verdict, SameRoster):
        if verdict.until is not None:
            job.timers.set(Timer.ROSTER, verdict.until)
            job.worlds.awaits_ready = set(_not_ready(job, world, standings))
        return
    _publish(job, world, verdict, anew=bool(again))


def _publish(job: JobContext, world: World, verdict: NewRoster, *, anew: bool) -> None:
    """Write the next epoch down, and tell its members."""
    last = job.state.roster
    epoch = max(job.worlds.newest_epoch_seen, last.epoch if last is not None else 0) + 1
    since = dict(zip(last.replicas, last.since, strict=True)) if last is not None else {}
    chosen = [one for one in world.replicas if one.number in verdict.replicas]
    # Another epoch meets in another store: the last one may be what kept the members apart.
    place = chosen[epoch % len(chosen)]
    fact = wire.OuterRoster(
        epoch=epoch,
        replicas=verdict.replicas,
        store_host=place.store_host,
        store_port=place.store_port,
        since=policy.memberships(verdict.replicas, since, epoch, anew=anew),
    )
    job.out.record(fact, durable=True)
    job.data.forget_told(fact)
    job.worlds.ready_since, job.worlds.strange_roster = None, False
    job.worlds.meet_anew = ""
    job.timers.cancel(Timer.ROSTER)
    job.out.event(EventReason.ROSTER_CHANGED, f"epoch {epoch}: {verdict.reason}")
    for replica in chosen:
        message = _message(replica, fact, verdict.reason)
        for node in job.membership.present(world.members_of(replica)):
            job.out.send(node, message, replica.round)


def note_alone(job: JobContext, world: World) -> None:
    """Report the replicas of a world that trains which have asked for no roster."""
    alone = [one.number for one in _standings(job, world) if not one.ready]
    if alone:
        numbers = ", ".join(map(str, alone[:_MOST_NAMED]))
        text = (
            f"replicas without a roster train alone: {numbers}; spec.replicaPolicy needs a script "
            "that calls members_of_environment() of holdfast.replicas or holdfast.local_sgd before "
            "its first step"
        )
        job.out.warn(EventReason.REPLICA_ALONE, text)


def _standings(job: JobContext, world: World) -> Iterator[ReplicaStatus]:
    going, known = {one.number for one in replicas.going(job)}, job.state.named_replicas
    for replica in world.replicas:
        ranks = world.members_of(replica)
        nodes = [job.membership.nodes.get(rank) for rank in ranks]
        confirmed = all(node is not None and node.ready_replica == replica.number for node in nodes)
        intact = replica.number in going and replica.number not in job.worlds.frozen
        if world.finished.issuperset(ranks):  # its nodes may be gone, too
            intact = not _has_parted(job, replica)
        yield ReplicaStatus(replica.number, intact, confirmed or replica.number in known)


def _not_ready(job: JobContext, world: World, standings: Iterable[ReplicaStatus]) -> Iterator[int]:
    """The node ranks that replicas which are ready wait for."""
    waited_for = {one.number for one in standings if one.intact and not one.ready}
    for replica in world.replicas:
        if replica.number in waited_for:
            nodes = job.membership.present(world.members_of(replica))
            yield from (one.rank for one in nodes if one.ready_replica != replica.number)


def _has_parted(job: JobContext, replica: wire.WorldReplica) -> bool:
    """Whether all ranks of a replica ended well, some time ago."""
    until = job.worlds.parted.setdefault(replica.number, job.now) + PARTING_SECONDS
    if job.now >= until:
        return True
    job.timers.set(Timer.PARTING, until, replica.number)
    return False


def _ready_since(job: JobContext, standings: list[ReplicaStatus]) -> float | None:
    """The time since which a replica is ready, while the newest roster has none that is."""
    if not any(one.intact and one.ready for one in standings):
        job.worlds.ready_since = None
    elif job.worlds.ready_since is None:
        job.worlds.ready_since = job.now
    return job.worlds.ready_since


def _message(
    replica: wire.WorldReplica, roster: wire.OuterRoster, reason: str
) -> wire.WorldAssignment:
    return wire.WorldAssignment(
        assignment_id=replica.round,
        mode=wire.AssignmentMode.RECONFIGURE,
        replica=replica.number,
        roster=roster,
        reason=reason,
    )


def send(job: JobContext, node: Node) -> None:
    """Tell a member that was away of the newest roster, if its replica is in it."""
    world, last = job.worlds.assigned, job.state.roster
    if world is None or last is None or not world.replicas or node.rank not in world.places:
        return
    if job.worlds.strange_roster:
        return  # a newer one is on its way to all
    replica = world.places[node.rank].replica
    if replica.number in last.replicas:
        message = _message(replica, last, "the node was away")
        job.out.send(node, message, replica.round)


def note_known(job: JobContext, assignment: wire.WorldAssignment | None) -> None:
    """Note the roster that an agent's ranks were told, and whether it is of another history.

    The journal has lost its end, or an earlier master that lives has made epochs, too.
    """
    given, last = assignment.roster if assignment is not None else None, job.state.roster
    if given is None:
        return
    job.worlds.newest_epoch_seen = max(job.worlds.newest_epoch_seen, given.epoch)
    if last is not None and not policy.follows(given, last):
        job.worlds.strange_roster = True
        job.touch(Change.REPLICA_READY)


def ready(job: JobContext, node: Node, number: int, message: wire.ReplicaReady) -> None:
    """All ranks of a node wait to be named in a roster."""
    world = job.worlds.assigned
    if world is None or not world.has(node):
        return
    replica = world.places[node.rank].replica
    if (replica.number, replica.round) == (message.replica, number):
        node.ready_replica = replica.number
        job.worlds.awaits_ready.discard(node.rank)
        # Each of thousands becomes ready: the last one is looked at, or all at the window's end.
        if not job.worlds.awaits_ready:
            job.touch(Change.REPLICA_READY)


def failed(job: JobContext, node: Node, _: int, message: wire.RosterFailed) -> None:
    """Ranks of a node could not meet the others of an epoch, though nobody is known to be lost.

    One that was put out since it stood still, and says so, is there again.
    """
    last, world = job.state.roster, job.worlds.assigned
    is_member = world is not None and world.has(node)
    if world is not None and is_member:
        replica = world.places[node.rank].replica
        frozen = job.worlds.frozen.get(replica.number)
        if frozen is not None and message.epoch >= frozen.epoch:
            frozen_replicas.come_back(job, world, replica)
    if last is not None and message.epoch > last.epoch:
        job.worlds.newest_epoch_seen = max(job.worlds.newest_epoch_seen, message.epoch)
        if is_member:
            job.worlds.strange_roster = True
            job.touch(Change.ROSTER_FAILED)
    if last is None or message.epoch != last.epoch or job.worlds.unmet_epoch == last.epoch:
        return
    job.worlds.unmet_epoch = last.epoch
    names = ", ".join(map(str, itertools.islice(last.replicas, _MOST_NAMED)))
    text = f"node {node.rank} could not meet replicas {names} of epoch {last.epoch}"
    job.out.warn(EventReason.ROSTER_FAILED, text, node=node.rank)
    job.touch(Change.ROSTER_FAILED)


def sync_chosen(job: JobContext, node: Node, number: int, message: wire.SyncChosen) -> None:
    """Take a choice how often replicas agree; a report that is made again changes nothing."""
    world, last = job.worlds.assigned, job.state.sync
    if world is None or not world.has(node):
        return
    if not world.is_about(node.rank, number) or (last and _is_known(message, last, world)):
        return
    fact = dataclasses.replace(message, round=number)
    job.out.record(fact)
    reason = EventReason.SYNC_SWITCHED if fact.made else EventReason.SYNC_PROPOSED
    job.out.event(reason, _text(fact), node=node.rank)


def _is_known(message: wire.SyncChosen, last: wire.SyncChosen, world: World) -> bool:
    """Whether a choice is no news.

    Of replicas that come and go another one may tell it where the first rank is lost: a lower step
    is an older choice of theirs, and what they propose they find again and again. In a world of one
    a lower step may be a script that has gone back.
    """
    repeats = not (message.made or last.made) and message.interval == last.interval
    if world.replicas and (message.step <= last.step or repeats):
        return True
    return dataclasses.replace(message, round=last.round) == last


def _text(fact: wire.SyncChosen) -> str:
    verb = "agree" if fact.made else "would agree"
    return (
        f"replicas {verb} {_often(fact.interval)} from step {fact.step} on, not "
        f"{_often(fact.interval_before)}: {fact.reason}"
    )


def _often(interval: int) -> str:
    return "in each step" if interval <= 1 else f"after each {interval} steps"
