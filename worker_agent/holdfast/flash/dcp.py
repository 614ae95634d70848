"""`async_save` with the signature of `torch.distributed.checkpoint`'s, on the flash checkpoint.

A drop-in for scripts that stay with DCP: what lies on storage is an ordinary DCP checkpoint that
`dcp.load` reads. The state goes through an arena of this process's own and a keeper that writes it,
also under an agent: nothing here is restored from memory, and a `Checkpointer` may stand beside it.
Arguments that would put other code between state and storage are refused by name.
"""

from __future__ import annotations

import atexit
import os
import select
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from holdfast.flash.agreement import from_rank_0
from holdfast.flash.arena import BYTES_ROOM, SLOTS, Arena
from holdfast.flash.client import CheckpointError, Client
from holdfast.flash.commit import foreign_names
from holdfast.flash.decide.retention import RetentionSettings
from holdfast.flash.decide.slots import Version, choose
from holdfast.flash.disk import PosixDisk
from holdfast.flash.link import Durable, Failed, Granted, Layout, LinkError, Message
from holdfast.flash.planning import Place, Plan, Planner
from holdfast.flash.saving import RoomNeeded, Saver
from holdfast.flash.state import Leaves, Stateful, TensorLeaf, ValueLeaf
from holdfast.flash.table import encode

_SLOT_S: Final = 600.0
"""Seconds that a save waits for a slot: all of them are taken while storage is slow."""
_LOOK_S: Final = 0.5
"""Seconds between two looks for a keeper that ended without a word."""


def async_save(  # noqa: PLR0913 - torch's signature
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_writer: Any = None,
    planner: Any = None,
    process_group: Any = None,
    async_checkpointer_type: Any = None,
    async_stager: Any = None,
    no_dist: bool = False,
    use_collectives: bool = True,
) -> Future[None]:
    """Save a state as it is now; returns once it is copied, the future is done once it is durable.

    checkpoint_id: a directory on a file system that all ranks see. A checkpoint that is there is
        replaced as a whole, when the new one is durable.
    process_group: any group of all ranks; a save speaks to none of them.
    async_checkpointer_type: either; what writes is always another process.
    no_dist: this process saves alone.
    storage_writer, planner, async_stager, use_collectives=False: not here; raises ValueError.

    All ranks save the same keys in the same order of calls. The first call of a process makes its
    arena; two ranks or more exchange one number then. The future's exception is a
    `CheckpointError` when the checkpoint did not become durable.
    """
    del async_checkpointer_type  # a thread and a process of torch's save the same
    given = {"storage_writer": storage_writer, "planner": planner, "async_stager": async_stager}
    _refuse(given, use_collectives=use_collectives)
    alone = no_dist or not _has_group()
    if not alone:
        _refuse_part(process_group)
    path = _path(checkpoint_id)
    with _not_within_another():
        return _session(path, alone=alone).save(state_dict, path)


@contextmanager
def _not_within_another() -> Iterator[None]:
    """Refuse the call of a signal's handler within another call, which holds the locks."""
    thread = threading.get_ident()
    if thread in _SAVING:
        raise CheckpointError(
            "async_save was called within async_save, by a signal's handler: have the handler set "
            "a flag, and save where the step is over"
        )
    _SAVING.add(thread)
    try:
        yield
    finally:
        _SAVING.discard(thread)


def close() -> None:
    """Wait for what is being saved, and free the memory; the next save makes it anew."""
    with _LOCK:
        sessions = list(_SESSIONS.values())
        _SESSIONS.clear()
    for session in sessions:
        session.close()


_REMEDIES: Final = {
    "storage_writer": "pass checkpoint_id, a directory; for another storage use torch's async_save",
    "planner": "pass the state as it is to be stored; for a planner use torch's async_save",
    "async_stager": "leave it out: the state is staged in Holdfast's own arena",
}


def _refuse(given: Mapping[str, Any], *, use_collectives: bool) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name}={value!r} is not for holdfast: {_REMEDIES[name]}")
    if not use_collectives:
        raise ValueError(
            "use_collectives=False writes another format with torch: leave it out, a save "
            "makes no collectives anyway"
        )


def _refuse_part(group: Any) -> None:
    import torch.distributed as dist

    if group is not None and dist.get_world_size(group) != dist.get_world_size():
        raise ValueError(
            f"process_group={group!r} has {dist.get_world_size(group)} of "
            f"{dist.get_world_size()} ranks: all ranks save together, or each alone with no_dist"
        )


def _has_group() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def _path(checkpoint_id: str | os.PathLike[str] | None) -> str:
    if checkpoint_id is None:
        raise ValueError("checkpoint_id=None: name a directory")
    text: Any = checkpoint_id
    if isinstance(text, os.PathLike):
        text = os.fspath(text)
    if not isinstance(text, str):
        raise ValueError(  # noqa: TRY004 - as for every other argument
            f"checkpoint_id={checkpoint_id!r}: name a directory, as text or a path"
        )
    if "://" in text:
        raise ValueError(
            f"checkpoint_id={text!r}: only directories of a mounted file system; for a URL use "
            "torch's async_save with a storage_writer"
        )
    return str(Path(text).absolute())


def _make_room(path: str) -> None:
    """Make the directory that a checkpoint is to be in; refuse one that is something else."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        foreign = foreign_names(PosixDisk(), path)
    except NotADirectoryError:
        raise ValueError(f"checkpoint_id={path!r} is a file: name a directory") from None
    if foreign:
        raise ValueError(
            f"checkpoint_id={path!r} holds what is no part of a checkpoint "
            f"({', '.join(foreign[:3])}): name a directory of its own"
        )


class _Ears(Client):
    """A client that keeps what became of each step."""

    def __init__(self, root: str, place: Place, lineage: int) -> None:
        self.ended: dict[int, str] = {}
        """Step → why it failed; empty: it is durable."""
        super().__init__(root, place, lineage, RetentionSettings(keep_last=1), "")

    @property
    def descriptor(self) -> int:
        """What to poll for the keeper's next word."""
        return self._link.fileno()

    def _hear(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        super()._hear(message, descriptors)
        if isinstance(message, Durable):
            self.ended[message.step] = ""
        elif isinstance(message, Failed):
            self.ended[message.step] = message.error


class _Session:
    """This process's arena and keeper."""

    def __init__(self, path: str, place: Place) -> None:
        self._planner, self._world = Planner(place), place.world
        # Another number in each run: a checkpoint of the same name is never taken for this one's.
        self._lineage = from_rank_0(int.from_bytes(os.urandom(7), "little"), place.world)
        self._client = _Ears(str(Path(path).parent), place, self._lineage)
        self._room, self._step = BYTES_ROOM, 0
        self._saver: Saver | None = None
        self._pending: dict[int, Future[None]] = {}
        self._lock = threading.Lock()
        self._listener: threading.Thread | None = None

    def save(self, state_dict: Mapping[str, Any], path: str) -> Future[None]:
        """Copy the state, and have it written."""
        import torch

        future: Future[None] = Future()
        with self._lock, torch.no_grad():
            # What fails on this rank only is a call of it all the same: else its next state and
            # what others saved in this call would be parts of one checkpoint.
            self._step += 1
            version = Version(self._lineage, self._step)
            try:
                _make_room(path)
                self._copy(version, _leaves(state_dict))
            except BaseException as error:
                if self._world > 1:
                    self._client.not_saved(version, durable=True, error=repr(error), final=path)
                raise
            future.set_running_or_notify_cancel()  # what is copied cannot be called back
            self._pending[version.step] = future
            self._client.expect_durable(version.step)
            self._client.saved(version, durable=True, final=path)
            self._listen()
        return future

    def _copy(self, version: Version, leaves: Leaves) -> None:
        arena, plan = self._arena(leaves)
        self._client.wait_for_slot(arena, _SLOT_S)
        choice = choose(arena.views())
        if choice.slot is None or self._client.is_lost():
            reasons = self._client.failures() or [f"no slot became free in {_SLOT_S:g} s"]
            raise CheckpointError("; ".join(reasons))
        slot = arena.slots[choice.slot]
        saver = Saver(plan, leaves, arena, before=self._saver, slots=[slot])
        try:
            bodies = saver.values()
        except RoomNeeded as error:
            self._room = 2 * error.size
            self._copy(version, leaves)
            return
        try:
            saver.begin(slot, version, bodies)
            saver.start(slot)
            saver.copy(slot, trained=False, threads=1)
            slot.commit([len(body) for body in bodies])
        except BaseException:  # Ctrl-C, say: the slot would be taken for good
            saver.give_up(slot)
            raise
        saver.let_go()
        self._saver = saver

    def _arena(self, leaves: Leaves) -> tuple[Arena, Plan]:
        """Return the arena for this state: the last one where the layout is the same."""
        plan = self._planner.plan(leaves, self._room)
        body, last = encode(plan.table), self._saver
        if last and last.arena.body == body and last.arena.geometry.bytes_room >= self._room:
            return last.arena, plan
        self._saver = None
        layout = Layout(table=body.decode(), bytes_room=self._room, slots=SLOTS)
        _, descriptors = self._client.ask(layout, Granted)
        arena = Arena(descriptors[0])
        os.close(descriptors[0])
        arena.keep_from_children()
        arena.populate(write=True)
        return arena, plan

    def _listen(self) -> None:
        """Have a thread wait for the keeper's word while something is pending.

        Not a daemon: as with torch, the interpreter ends when what was saved is durable.
        """
        if self._listener is None:
            self._listener = threading.Thread(target=self._hear, name="holdfast-dcp", daemon=False)
            self._listener.start()

    def _hear(self) -> None:
        poll = select.poll()
        poll.register(self._client.descriptor, select.POLLIN)
        while True:
            poll.poll(_LOOK_S * 1000)
            with self._lock:
                try:
                    self._client.listen()
                except LinkError as wrong:
                    self._client.ended |= dict.fromkeys(self._pending, str(wrong))
                done = self._ended()
                if not self._pending:
                    self._listener = None
            for future, error in done:  # outside the lock: callbacks may save again
                if error:
                    future.set_exception(CheckpointError(error))
                else:
                    future.set_result(None)
            if self._listener is not threading.current_thread():
                return

    def _ended(self) -> list[tuple[Future[None], str]]:
        client, found = self._client, list[tuple[Future[None], str]]()
        if client.is_lost():
            lost = "; ".join(client.failures()) or "the keeper is gone"
            client.ended |= {step: lost for step in self._pending if step not in client.ended}
        client.failures()  # each is in its own future
        for step in sorted(self._pending.keys() & client.ended.keys()):
            found.append((self._pending.pop(step), client.ended.pop(step)))
        return found

    def close(self) -> None:
        """Wait until nothing is pending, then let the keeper go."""
        listener = self._listener
        if listener is not None:
            listener.join()
        self._saver = None
        self._client.close()


_SESSIONS: Final[dict[Place, _Session]] = {}
_LOCK: Final = threading.Lock()
_SAVING: Final[set[int]] = set()
"""Threads that are within a call."""
os.register_at_fork(after_in_child=_SESSIONS.clear)  # they are the parent's; a child makes its own


def _session(path: str, *, alone: bool) -> _Session:
    """Return the session of all ranks, or the one of this process alone."""
    place = _place(alone=alone)
    with _LOCK:
        session = _SESSIONS.get(place)
        if session is None:
            if not _SESSIONS:
                atexit.unregister(close)
                atexit.register(close)
            try:
                session = _SESSIONS[place] = _Session(path, place)
            except (FileExistsError, NotADirectoryError):
                raise ValueError(
                    f"checkpoint_id={path!r} is below a file: name a directory"
                ) from None
        return session


def _place(*, alone: bool) -> Place:
    """Return where this rank stands; as the only one of its node, for it keeps no other's part."""
    if alone:
        return Place(rank=0, world=1, local_rank=0, local_world=1)
    import torch.distributed as dist

    rank, world = dist.get_rank(), dist.get_world_size()
    return Place(rank=rank, world=world, local_rank=rank, local_world=world)


def _leaves(state_dict: Mapping[str, Any]) -> Leaves:
    """Return what is saved, under the names that `dcp.load` looks for."""
    import torch
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict

    plain = {
        key: value.state_dict() if isinstance(value, Stateful) else value
        for key, value in state_dict.items()
    }
    flat, paths = flatten_state_dict(plain)
    leaves = Leaves()
    for name, value in flat.items():
        path = tuple(paths[name])
        if isinstance(value, torch.Tensor):
            leaves.tensors.append(TensorLeaf(name, path, flat, name, value))
        else:
            # Each rank stores its own; `dcp.load` finds the first rank's, as it does with torch's.
            leaves.values.append(ValueLeaf(name, path, _reader(value), own=True))
    return leaves


def _reader(value: Any) -> Callable[[], Any]:
    return lambda: value
