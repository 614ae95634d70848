"""Checkpoints: what agents report of them, and what follows from it.

Belongs here: one handler for each message of memory and storage, the grant of a commit. Does not
belong here: what a world starts from (`origins`), which version counts (`decide.checkpoints`), what
is held where (`checkpoint_book`), when a boundary is armed (`stopping`).

Nothing is committed without a grant, and only one agent has it at a time: a later grant names the
attempt anew, and whoever takes that name leaves nothing to commit for the one before.
"""

from __future__ import annotations

from holdfast_master.decide import checkpoints as policy
from holdfast_master.job import origins, saving
from holdfast_master.job.checkpoint_book import Book, Pending
from holdfast_master.job.desk import Desk, Warn
from holdfast_master.job.roster import Node
from holdfast_master.job.round_nodes import holders, send_all
from holdfast_master.job.timers import Timer
from holdfast_master.job.wording import listing, short
from holdfast_wire.messages import (
    CheckpointCommitted,
    CheckpointHeld,
    CheckpointShard,
    CheckpointVersion,
    CommitStep,
    ReleaseBefore,
    StepAnnounced,
    StepCommitted,
)
from holdfast_wire.reasons import EventReason

_MOST_VERSIONS = 16
"""That a message may name: more are no agent's in its senses."""
_MOST_PENDING = 64
"""Steps on their way to storage at once; ranks wait for each of theirs, so two are many."""


# ------------------------------------------------------------------------------------------ memory


def held(desk: Desk, node: Node, number: int, message: CheckpointHeld) -> None:
    """What a node's ranks have in memory: once all have something newer, the older may go."""
    world = desk.assigned  # also one that has ended: it is what can still be saved
    if world is None or world.round != number or not world.holds(node.rank, node.agent_id):
        return
    book, size = desk.checkpoints, len(world.places)
    book.enter(number, holders(world), world.size)
    versions = frozenset(message.versions[:_MOST_VERSIONS])
    (book.whole.add if message.whole else book.whole.discard)(node.rank)
    changed = book.hold(node.rank, versions, size)
    desk.dirty |= bool(desk.broken)
    # Where there is one node, it sees for itself what is complete.
    if changed and size > 1 and desk.running() is world:
        order = ReleaseBefore(
            complete=book.complete, passed_over=tuple(sorted(book.passed_over, reverse=True))
        )
        send_all(desk, world, order)


# ----------------------------------------------------------------------------------------- storage


def shard(desk: Desk, node: Node, _: int, message: CheckpointShard) -> None:
    """A node's part of a step is durable, or will not be. Older worlds' parts count too."""
    version = message.version
    if version is None or not message.attempt:
        return
    book, key = desk.checkpoints, (version, message.attempt)
    if key in book.done:
        _announce_to(desk, node, version, book.done[key])
        return
    pending = book.pending.get(key)
    if pending is None:
        pending = book.pending[key] = Pending(
            version=version,
            attempt=message.attempt,
            world_size=message.world_size,
            root=message.root,
        )
        _limit(book)
    pending.nodes.add(node.rank)
    if message.error:
        _fail(desk, pending, f"node {node.rank}: {message.error}")
        return
    pending.ranks.update(rank for rank in message.ranks if rank < pending.world_size)
    if pending.coordinator == (node.rank, node.agent_id):
        _send_grant(desk, pending, node)  # it may not have heard of it
    desk.dirty = True


def _limit(book: Book) -> None:
    """Drop the oldest step that no agent has been granted: its world is gone."""
    waiting = [key for key, pending in book.pending.items() if pending.coordinator is None]
    if len(book.pending) > _MOST_PENDING and waiting:
        del book.pending[min(waiting)]


def grant_commits(desk: Desk) -> None:
    """Grant each step that is whole to an agent; to another one where that agent is gone."""
    nodes = desk.roster.nodes
    for pending in list(desk.checkpoints.pending.values()):
        if not pending.whole or _is_at_work(desk, pending):
            continue
        if len(pending.silent) >= desk.settings.commit_tries:
            names = listing(list({rank for rank, _ in pending.silent}))
            limit = desk.settings.commit_seconds
            _fail(desk, pending, f"nodes {names} did not commit it within {limit:g} s each")
            continue
        there = [rank for rank, node in nodes.items() if node.session is not None]
        hung = {rank for rank, _ in pending.silent}
        rank = policy.coordinator(pending.nodes, there, hung)
        if rank is None:
            pending.coordinator = None
            continue
        number = desk.command("commit", rank)
        pending.own = f"{pending.attempt}e{desk.identity.epoch}c{number}"
        pending.coordinator, pending.granted_at = (rank, nodes[rank].agent_id), desk.now
        _send_grant(desk, pending, nodes[rank])
    _watch_grants(desk)


def _is_at_work(desk: Desk, pending: Pending) -> bool:
    """Whether the agent that has the grant is there, and has not had it for too long."""
    if pending.coordinator is None:
        return False
    rank, agent_id = pending.coordinator
    node, limit = desk.roster.nodes.get(rank), desk.settings.commit_seconds
    if node is None or node.agent_id != agent_id:
        return False
    if desk.now < pending.granted_at + limit:
        return True
    pending.silent.append(pending.coordinator)
    text = f"node {rank} has not committed step {pending.version.step} within {limit:g} s"
    desk.event(EventReason.COMMIT_HANGS, text, Warn, node=rank)
    return False


def _watch_grants(desk: Desk) -> None:
    out = [one.granted_at for one in desk.checkpoints.pending.values() if one.coordinator]
    if out:
        desk.timers.set(Timer.COMMIT, min(out) + desk.settings.commit_seconds)
    else:
        desk.timers.cancel(Timer.COMMIT)


def _send_grant(desk: Desk, pending: Pending, node: Node) -> None:
    order = CommitStep(
        version=pending.version,
        world_size=pending.world_size,
        root=pending.root,
        attempt=pending.attempt,
        own=pending.own,
    )
    desk.send(node, order)


def committed(desk: Desk, node: Node, _: int, message: StepCommitted) -> None:
    """The coordinator has done what it was granted. It is on disk before anybody hears of it."""
    found = [
        pending
        for pending in desk.checkpoints.pending.values()
        if (pending.version, pending.own) == (message.version, message.own)
        and pending.coordinator == (node.rank, node.agent_id)
    ]
    for pending in found:
        if message.error:
            _fail(desk, pending, f"node {node.rank}: {message.error}")
            continue
        fact = CheckpointCommitted(
            version=pending.version, world_size=pending.world_size, root=pending.root
        )
        desk.record(fact, durable=True)
        _announce(desk, pending, "")
        saving.committed(desk, fact)


def _fail(desk: Desk, pending: Pending, error: str) -> None:
    text = f"step {pending.version.step} was not committed: {short(error)}"
    desk.event(EventReason.CHECKPOINT_FAILED, text, Warn)
    saving.failed(desk, pending.version, short(error))
    _announce(desk, pending, short(error))


def _announce(desk: Desk, pending: Pending, error: str) -> None:
    desk.checkpoints.end(pending, error)
    for rank in sorted(pending.nodes):
        node = desk.roster.nodes.get(rank)
        if node is not None:
            _announce_to(desk, node, pending.version, error)
    desk.dirty = True


def _announce_to(desk: Desk, node: Node, version: CheckpointVersion, error: str) -> None:
    desk.send(node, StepAnnounced(version=version, error=error))


def settle(desk: Desk) -> None:
    """What follows from what was reported; asked whenever something changed."""
    book = desk.checkpoints
    if book.pending or desk.timers.running(Timer.COMMIT):
        grant_commits(desk)
    if book.asked:
        origins.choose(desk)
