"""`async_save` with the signature of `torch.distributed.checkpoint`'s, on the flash checkpoint.

A drop-in for scripts that stay with DCP: on storage lies an ordinary DCP checkpoint that `dcp.load`
reads. The state goes through an arena of this process and a checkpoint server of its own, even
under an agent. Nothing is restored from memory, and a `Checkpointer` may be used beside it. An
argument that would put other code between state and storage is refused by name.
"""

from __future__ import annotations

import atexit
import os
import select
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from holdfast.flash.memory import hashes
from holdfast.flash.memory.arena import BYTES_ROOM, Arena
from holdfast.flash.memory.slots import Version, choose
from holdfast.flash.server.protocol import Granted, LinkError
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import foreign_names
from holdfast.flash.trainer.client import CheckpointError, Client
from holdfast.flash.trainer.collectives import from_rank_0, has_group
from holdfast.flash.trainer.copier import Copier, RoomNeeded
from holdfast.flash.trainer.leaves import Leaves, Stateful, TensorLeaf, ValueLeaf, constant, is_own
from holdfast.flash.trainer.planner import ImagePlan, Planner, RankPosition, fits
from holdfast_wire.messages.spec import CheckpointPolicy

_SLOT_SECONDS: Final = 600.0
"""Seconds for which a save waits for a slot: all slots are taken while storage is slow."""
_LOOK_SECONDS: Final = 0.5
"""Seconds between two checks for a server that ended without a message."""


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
    """Save the present state; torch's `async_save` with the same arguments.

    The call returns when the state is copied: then the caller may change it. All ranks save the
    same keys, in the same order of calls. The first call of a process makes its arena (three times
    the state in shared memory); if there are several ranks, they then exchange one number over the
    default group.

    A plain tensor is stored once: all ranks have the same. One of up to 64 KiB is rank 0's, for it
    may be a buffer that differs from rank to rank; larger ones are compared by samples, until a
    checkpoint of them is durable, and the future fails by their names where they differ.

    Args:
        state_dict: Names to tensors, values and nested dicts and lists of them, as for
            `dcp.save`. Tensors: strided, of any shape and dtype but quantized, on CPU or CUDA;
            DTensors on any mesh without Partial placements. An object with `state_dict` is saved
            as its state.
        checkpoint_id: A directory on a file system that all ranks see. An existing checkpoint there
            is replaced as a whole, when the new one is durable.
        storage_writer: None; any other value is refused.
        planner: None; any other value is refused.
        process_group: Any group of all ranks; no save uses it.
        async_checkpointer_type: Either of torch's; the writer is always another process.
        async_stager: None; any other value is refused.
        no_dist: True: this process saves alone.
        use_collectives: True; False is refused.

    Returns:
        A future that is done when the checkpoint is durable, with the result None. Its exception is
        a `CheckpointError` if the checkpoint did not become durable. A failure becomes a
        `RuntimeWarning` if the caller does not ask the future for it.

    Raises:
        ValueError: an argument is refused, or `checkpoint_id` is no directory or has other files.
        StateError: a value or tensor cannot be saved byte by byte; the message names it.
        CheckpointError: no slot became free in 600 s, the checkpoint server is gone, or a signal's
            handler called within another call.

    Example:
        ```python
        from holdfast.flash.dcp import async_save

        saved = async_save({"model": model.state_dict()}, checkpoint_id="/shared/run/step_100")
        saved.result()  # later; then `dcp.load` of torch reads it
        ```
    """
    del async_checkpointer_type  # a thread and a process of torch's save the same
    given = {"storage_writer": storage_writer, "planner": planner, "async_stager": async_stager}
    _refuse(given, use_collectives=use_collectives)
    alone = no_dist or not has_group()
    if not alone:
        _refuse_part(process_group)
    path = _path(checkpoint_id)
    with _not_within_another():
        return _session(path, alone=alone).save(state_dict, path)


@contextmanager
def _not_within_another() -> Iterator[None]:
    """Refuse a signal handler's call within another call, which holds the locks."""
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
    """Wait for the pending saves, then free the memory; the next save makes it anew.

    The end of the process calls it too. Each save's outcome is in its future.
    """
    with _LOCK:
        sessions = list(_SESSIONS.values())
        _SESSIONS.clear()
    for session in sessions:
        session.close()


def _at_exit() -> None:
    close()
    for future in list(_UNASKED):
        future.say_if_unasked()


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
    """Make the directory around a checkpoint; refuse a path that has another content."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        foreign = foreign_names(Disk(), path)
    except NotADirectoryError:
        raise ValueError(f"checkpoint_id={path!r} is a file: name a directory") from None
    if foreign:
        raise ValueError(
            f"checkpoint_id={path!r} holds what is no part of a checkpoint "
            f"({', '.join(foreign[:3])}): name a directory of its own"
        )


class _Saved(Future[None]):
    """Future of a save; it warns of a failure that the caller did not ask for."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._is_asked = False
        _UNASKED.add(self)

    def result(self, timeout: float | None = None) -> None:
        self._is_asked = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._is_asked = True
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[None]], object]) -> None:
        self._is_asked = True
        super().add_done_callback(fn)

    def say_if_unasked(self) -> None:
        """Warn once of a failure that the caller did not ask for."""
        if self._is_asked or not self.done():
            return
        error = self.exception()
        if error is not None:
            warnings.warn(
                f"{self._path} was not saved, and nobody asked its future: {error}",
                RuntimeWarning,
                stacklevel=2,
            )

    def __del__(self) -> None:
        """Warn now: the caller cannot ask any more."""
        if not sys.is_finalizing():
            self.say_if_unasked()


class _Session:
    """Arena and checkpoint server of this process."""

    def __init__(self, path: str, place: RankPosition) -> None:
        hashes.require()
        self._planner, self._world = Planner(place), place.world
        # The number differs in each run: an older checkpoint of the name never passes for this.
        self._lineage = from_rank_0(int.from_bytes(os.urandom(7), "little"), place.world)
        self._client = Client(
            str(Path(path).parent), place, self._lineage, CheckpointPolicy(keep_last=1), ""
        )
        self._outcomes: dict[int, str] = {}
        """Step → reason of its failure; empty: durable."""
        self._client.on_end = self._outcomes.__setitem__
        self._room, self._step = BYTES_ROOM, 0
        self._copier: Copier | None = None
        self._pending: dict[int, _Saved] = {}
        self._lock = threading.Lock()
        self._listener: threading.Thread | None = None

    def save(self, state_dict: Mapping[str, Any], path: str) -> Future[None]:
        """Copy the state, and have it written to storage."""
        import torch

        future = _Saved(path)
        with self._lock, torch.no_grad():
            # A failure on this rank alone still counts as a call: otherwise its next state and
            # the other ranks' states of this call would be parts of one checkpoint.
            self._step += 1
            version = Version(self._lineage, self._step)
            try:
                _make_room(path)
                self._copy(version, _leaves(state_dict))
            except BaseException as error:
                if self._world > 1:
                    self._client.not_saved(version, durable=True, error=repr(error), final=path)
                raise
            future.set_running_or_notify_cancel()  # a copied state cannot be cancelled
            self._pending[version.step] = future
            self._client.expect_durable(version.step)
            self._client.saved(version, durable=True, final=path)
            self._listen()
        return future

    def _copy(self, version: Version, leaves: Leaves) -> None:
        arena, plan = self._arena(leaves)
        self._client.wait_for_slot(arena, _SLOT_SECONDS)
        free = choose(arena.views())
        if free is None or self._client.is_lost():
            reasons = self._client.failures() or [f"no slot became free in {_SLOT_SECONDS:g} s"]
            raise CheckpointError("; ".join(reasons))
        slot = arena.slots[free]
        copier = Copier(plan, leaves, arena, before=self._copier, slots=[slot])
        try:
            bodies = copier.values(sketched=not copier.is_compared(self._client.stored()))
        except RoomNeeded as error:
            self._room = 2 * error.size
            self._copy(version, leaves)
            return
        try:
            copier.begin(slot, version, bodies)
            copier.start(slot)
            copier.copy(slot, trained=False, threads=1)
            slot.commit([len(body) for body in bodies])
        except BaseException:  # Ctrl-C, say: the slot must not stay taken for good
            copier.give_up(slot)
            raise
        copier.let_go()
        self._copier = copier

    def _arena(self, leaves: Leaves) -> tuple[Arena, ImagePlan]:
        """Return the arena for this state: the last one, if the layout is the same."""
        plan = self._planner.plan(leaves, self._room)
        layout = plan.layout()
        if self._copier is not None and fits(self._copier.arena, layout):
            return self._copier.arena, plan
        self._copier = None
        _, descriptors = self._client.ask(layout, Granted)
        arena = Arena(descriptors[0])
        os.close(descriptors[0])
        arena.keep_from_children()
        arena.fault_in()
        return arena, plan

    def _listen(self) -> None:
        """Run a thread that waits for the server's messages while a save is pending.

        It is no daemon: as with torch, the interpreter ends when the saves are durable.
        """
        if self._listener is None:
            self._listener = threading.Thread(target=self._hear, name="holdfast-dcp", daemon=False)
            self._listener.start()

    def _hear(self) -> None:
        poll = select.poll()
        poll.register(self._client, select.POLLIN)
        while True:
            poll.poll(_LOOK_SECONDS * 1000)
            with self._lock:
                try:
                    self._client.listen()
                except LinkError as wrong:
                    self._outcomes |= dict.fromkeys(self._pending, str(wrong))
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

    def _ended(self) -> list[tuple[_Saved, str]]:
        client, found = self._client, list[tuple[_Saved, str]]()
        if client.is_lost():
            lost = "; ".join(client.failures()) or "the checkpoint server is gone"
            self._outcomes |= {one: lost for one in self._pending if one not in self._outcomes}
        client.failures()  # each failure is in its own future
        for step in sorted(self._pending.keys() & self._outcomes.keys()):
            found.append((self._pending.pop(step), self._outcomes.pop(step)))
        return found

    def close(self) -> None:
        """Wait until no save is pending, then disconnect from the server."""
        listener = self._listener
        if listener is not None:
            listener.join()
        self._copier = None
        self._client.close()


_SESSIONS: Final[dict[RankPosition, _Session]] = {}
_UNASKED: Final[weakref.WeakSet[_Saved]] = weakref.WeakSet()
"""Futures that are still referenced: at the end of the process no caller asks any more."""
_LOCK: Final = threading.Lock()
_SAVING: Final[set[int]] = set()
"""Ids of the threads within a call."""
os.register_at_fork(after_in_child=_SESSIONS.clear)  # they are the parent's; a child makes its own


def _session(path: str, *, alone: bool) -> _Session:
    """Return the session of all ranks, or the one of this process alone."""
    place = _place(alone=alone)
    with _LOCK:
        session = _SESSIONS.get(place)
        if session is None:
            if not _SESSIONS:
                atexit.unregister(_at_exit)
                atexit.register(_at_exit)
            try:
                session = _SESSIONS[place] = _Session(path, place)
            except (FileExistsError, NotADirectoryError):
                raise ValueError(
                    f"checkpoint_id={path!r} is below a file: name a directory"
                ) from None
        return session


def _place(*, alone: bool) -> RankPosition:
    """Return this rank's position; as the only rank of its node, as it keeps no other's part."""
    if alone:
        return RankPosition(rank=0, world=1, local_rank=0, local_world=1)
    import torch.distributed as dist

    rank, world = dist.get_rank(), dist.get_world_size()
    return RankPosition(rank=rank, world=world, local_rank=rank, local_world=world)


def _leaves(state_dict: Mapping[str, Any]) -> Leaves:
    """Return the leaves to save, under the names that `dcp.load` looks for."""
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
            leaf = TensorLeaf(path, flat, name, value, buffer=True)
            # A state_dict does not say what a buffer is: rank 0's small tensors are stored.
            leaves.tensors.append(replace(leaf, buffer=False, synced=is_own(leaf)))
        else:
            # Each rank stores its own; `dcp.load` finds the first rank's, as with torch's own.
            leaves.values.append(ValueLeaf(path, constant(value), own=True))
    return leaves
