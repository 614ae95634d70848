"""Commits: reports of agents about memory and storage, and the grant of a commit.

Nothing is committed without a grant, and only one agent has it at a time. A later grant names the
attempt anew; the agent that takes that name leaves nothing to commit for the one before.
"""

from __future__ import annotations

from holdfast_master.job.checkpoints import on_demand
from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.checkpoints import PendingStep
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.counts import SaveOutcome
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.outgoing_batch import OutgoingBatch
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.wording import nodes_named, short
from holdfast_master.policies import checkpoints as policy
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason

_MOST_VERSIONS = 16
"""Versions that a message may name; a correct agent names fewer."""
_MOST_PENDING = 64
"""Steps on their way to storage at once. Two are many while a master is there; when it was away,
agents report all that their ranks have saved since."""
_MOST_GRANTED = 8
"""Commits under way at once. An agent carries out one after another, and repeats the outcomes of as
many to a new master; the steps that wait can still be passed over for newer ones."""


# ------------------------------------------------------------------------------------------ memory


def held(job: JobContext, node: Node, number: int, message: wire.MemoryCheckpoints) -> None:
    """Note the versions in a node's memory: once all nodes have a newer one, the older may go."""
    world = job.worlds.assigned  # also one that has ended: it is what can still be saved
    if world is None or not world.has(node):
        return
    if world.round_of(node.rank) != number or not world.saves(node.rank):
        return
    tracker, size = job.checkpoints.tracker, len(world.savers)
    tracker.enter(number, world.holders, world.saver_size)
    versions = frozenset(message.versions[:_MOST_VERSIONS])
    holder = (node.rank, node.agent_id)
    (tracker.memory_only.add if message.memory_only else tracker.memory_only.discard)(holder)
    (tracker.whole.add if message.whole else tracker.whole.discard)(node.rank)
    before = tracker.complete
    changed = tracker.hold(node.rank, versions, size)
    if tracker.complete is not before:
        job.counts.saves[wire.Tier.MEMORY, SaveOutcome.COMPLETE] += 1
    if job.worlds.broken:
        job.touch(Change.MEMORY_REPORTED)
    # Where there is one node, it sees for itself what is complete.
    if changed and size > 1 and job.worlds.running() is world:
        order = wire.ReleaseCheckpoints(
            complete=tracker.complete, passed_over=tuple(sorted(tracker.passed_over, reverse=True))
        )
        for saver in job.membership.present(world.savers):
            job.out.send(saver, order, number)


# ----------------------------------------------------------------------------------------- storage


def shard(job: JobContext, node: Node, _: int, message: wire.ShardsPersisted) -> None:
    """A node's part of a step is durable, or will not be. Older worlds' parts count too."""
    version = message.version
    if version is None or not message.attempt:
        return
    tracker, key = job.checkpoints.tracker, (version, message.attempt)
    if key in tracker.done:
        _announce_to(job.out, node, version, tracker.done[key])
        return
    pending = tracker.pending.get(key)
    if pending is None:
        pending = tracker.pending[key] = PendingStep(
            version=version,
            attempt=message.attempt,
            world_size=message.world_size,
            root=message.root,
        )
    pending.nodes.add(node.rank)
    if message.error:
        _fail(job, pending, f"node {node.rank}: {message.error}")
        return
    pending.bytes[node.rank] = max(0, message.bytes)
    pending.ranks.update(rank for rank in message.ranks if rank < pending.world_size)
    if pending.coordinator == (node.rank, node.agent_id):
        _send_grant(job.out, pending, node)  # it may not have heard of it
    _limit(job)
    job.touch(Change.SHARDS_REPORTED)


def _limit(job: JobContext) -> None:
    """Give up the oldest step that no agent has been granted: its world is gone, or it is late."""
    tracker = job.checkpoints.tracker
    waiting = [key for key, pending in tracker.pending.items() if pending.coordinator is None]
    if len(tracker.pending) > _MOST_PENDING and waiting:
        _give_up(job, tracker.pending[min(waiting)], "newer steps waited to be committed too")


def grant(job: JobContext) -> None:
    """Grant each step that is whole to an agent; to another one where that agent is gone."""
    steps = [one for one in job.checkpoints.tracker.pending.values() if one.whole]
    waiting = [one for one in steps if not _is_at_work(job, one)]
    for pending in waiting[: max(0, _MOST_GRANTED - (len(steps) - len(waiting)))]:
        _grant(job, pending)
    _watch_grants(job)


def _grant(job: JobContext, pending: PendingStep) -> None:
    if len(pending.silent) >= job.settings.commit_tries:
        names = nodes_named(list({rank for rank, _ in pending.silent}))
        limit = job.settings.commit_seconds
        _fail(job, pending, f"{names} did not commit it within {limit:g} s each")
        return
    nodes = job.membership.nodes
    there = [rank for rank, node in nodes.items() if node.session is not None]
    hung = {rank for rank, _ in pending.silent}
    rank = policy.coordinator(pending.nodes, there, hung)
    if rank is None:
        pending.coordinator = None
        return
    number = job.out.command("commit", rank)
    pending.own = f"{pending.attempt}e{job.identity.epoch}c{number}"
    pending.coordinator, pending.granted_at = (rank, nodes[rank].agent_id), job.now
    _send_grant(job.out, pending, nodes[rank])


def _is_at_work(job: JobContext, pending: PendingStep) -> bool:
    """Whether the agent that has the grant is there, and has not had it for too long."""
    if pending.coordinator is None:
        return False
    rank, agent_id = pending.coordinator
    limit = job.settings.commit_seconds
    if job.membership.agent(rank, agent_id) is None:
        return False
    if job.now < pending.granted_at + limit:
        return True
    pending.silent.append(pending.coordinator)
    text = f"node {rank} has not committed step {pending.version.step} within {limit:g} s"
    job.out.warn(EventReason.COMMIT_HANGS, text, node=rank)
    return False


def _watch_grants(job: JobContext) -> None:
    out = [one.granted_at for one in job.checkpoints.tracker.pending.values() if one.coordinator]
    if out:
        job.timers.set(Timer.COMMIT, min(out) + job.settings.commit_seconds)
    else:
        job.timers.cancel(Timer.COMMIT)


def _send_grant(out: OutgoingBatch, pending: PendingStep, node: Node) -> None:
    order = wire.CommitGrant(
        version=pending.version,
        world_size=pending.world_size,
        root=pending.root,
        attempt=pending.attempt,
        own=pending.own,
    )
    out.send(node, order)


def committed(job: JobContext, node: Node, _: int, message: wire.CommitResult) -> None:
    """The coordinator has done what it was granted. It is on disk before anybody hears of it."""
    found = [
        pending
        for pending in job.checkpoints.tracker.pending.values()
        if (pending.version, pending.own) == (message.version, message.own)
        and pending.coordinator == (node.rank, node.agent_id)
    ]
    for pending in found:
        if message.error:
            _fail(job, pending, f"node {node.rank}: {message.error}")
            continue
        fact = wire.CheckpointCommitted(
            version=pending.version, world_size=pending.world_size, root=pending.root
        )
        job.out.record(fact, durable=True)
        job.counts.stored_bytes = sum(pending.bytes.values())
        _announce(job, pending, "")
        if job.checkpoints.order is not None:
            on_demand.committed(job, job.checkpoints.order, fact)


def _fail(job: JobContext, pending: PendingStep, error: str) -> None:
    text = f"step {pending.version.step} was not committed: {short(error)}"
    job.out.warn(EventReason.CHECKPOINT_FAILED, text)
    _give_up(job, pending, short(error))


def _give_up(job: JobContext, pending: PendingStep, error: str) -> None:
    if job.checkpoints.order is not None:
        on_demand.failed(job, job.checkpoints.order, pending.version, error)
    _announce(job, pending, error)


def _announce(job: JobContext, pending: PendingStep, error: str) -> None:
    job.checkpoints.tracker.end(pending, error)
    outcome = SaveOutcome.FAILED if error else SaveOutcome.COMPLETE
    job.counts.saves[wire.Tier.STORAGE, outcome] += 1
    for node in job.membership.present(sorted(pending.nodes)):
        _announce_to(job.out, node, pending.version, error)
    job.touch(Change.COMMIT_ENDED)


def _announce_to(
    out: OutgoingBatch, node: Node, version: wire.CheckpointVersion, error: str
) -> None:
    out.send(node, wire.CommitAnnounced(version=version, error=error))
