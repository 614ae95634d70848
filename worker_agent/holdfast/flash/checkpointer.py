"""What a training script uses: load once, step after each optimizer step, close at the end.

The public face. What is saved is `state`, how it is laid out `planning`, whether that fits still
`preparing`, the course of a save `taking`, its copy `saving`, how it comes back `restoring`; who
keeps it is on the other end of `link`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from threading import RLock
from typing import Any, Final, Self

from holdfast.environment import Environment
from holdfast.flash import given, tags
from holdfast.flash.agreement import from_rank_0
from holdfast.flash.alone import say_what_is_missing
from holdfast.flash.client import ANSWER_S, CheckpointError, Client
from holdfast.flash.decide.retention import chosen
from holdfast.flash.decide.schedule import Schedule
from holdfast.flash.decide.slots import Version
from holdfast.flash.disk import PosixDisk
from holdfast.flash.images import of_arenas, of_files
from holdfast.flash.link import LinkError, Origin, Restore
from holdfast.flash.pacing import Pacer
from holdfast.flash.planning import Place
from holdfast.flash.preparing import Preparer
from holdfast.flash.restoring import Restorer
from holdfast.flash.state import StateError, collect
from holdfast.flash.stored import stored
from holdfast.flash.taking import Taker, Wish
from holdfast.flash.trouble import Trouble
from holdfast.job import SAVE, SAVE_AND_STOP, Action, init

_MOST_RESTORING: Final = 4
"""Threads of one rank's restore: more do not make memory faster."""
_TOO_LATE: Final = (
    "load() was called before, and step {} was saved since: a world starts from one step. To go "
    "back while training, read step_N of the directory with torch.distributed.checkpoint, or exit: "
    "the next world starts from the newest step"
)
_FORKED: Final = (
    "process {} is a forked child of {}, whose Checkpointer this is: save in the process that made "
    "it, or make another with a path of its own in the child"
)


class Checkpointer:
    """Saves a training state to memory and storage, and brings it back."""

    def __init__(  # noqa: PLR0913 - each is a choice of the user, given by name
        self,
        path: str | os.PathLike[str] | None,
        *,
        model: Any = None,
        optimizer: Any = None,
        extra: Mapping[str, Any] | None = None,
        per_rank: Mapping[str, Any] | None = None,
        schedule: Schedule | None = None,
        keep_last: int | None = None,
        keep_every: int | None = None,
        threads: int = 1,
        overlap: bool = False,
    ) -> None:
        """Take what is to be saved; nothing is copied yet.

        path: directory of the checkpoints, which all ranks see. None: memory only, which an agent
            keeps while the job runs; without an agent nothing is saved then.
        model, optimizer: one, or a list of them.
        extra: what has `state_dict` and `load_state_dict`, or plain data; equal on all ranks.
        per_rank: the same, but each rank has its own; a `reshard(states, rank, world)` makes a
            rank's state out of all those of another world. The random generators are one of them.
        keep_last, keep_every: committed steps that stay on storage: the newest so many, and each
            multiple of so many for good (0: none). None: as the job's file says, else 3 and 0.
        threads: that copy in a save. Take 2 where cores are idle; a restore takes them by itself.
        overlap: copy what the optimizers train while the next forward and backward run; joined
            before the next `optimizer.step()`. Whoever writes to parameters otherwise, replays CUDA
            graphs or compiles a whole step calls `join()` before.
        """
        self._parts = given.parts(model, optimizer, extra, per_rank)
        environment = Environment.read()
        self._place = Place(
            rank=environment.rank,
            world=environment.world_size,
            local_rank=environment.local_rank,
            local_world=environment.local_world_size,
        )
        self._root = given.directory(path)
        self._keep = chosen(keep_last, keep_every, environment.keep)
        self._threads = given.threads_of(threads)
        self._pacer = Pacer(given.schedule_of(schedule), environment.schedule)
        self._preparer = Preparer(self._parts, self._place)
        self._taker = Taker(self._preparer, self._pacer, threads=self._threads, overlap=overlap)
        self._lineage = environment.round
        self._agent = environment.arena
        self._idle = not self._root and not self._agent
        self._loaded: tuple[int, bool] | None = None
        """What was saved last after the load."""
        self._client: Client | None = None
        self.failed = 0
        """Scheduled saves that failed: no memory was to be had, say. Training went on."""
        self._trouble = Trouble()
        self._process = os.getpid()
        self._lock = RLock()
        """Makes one connection, also of several threads that save."""

    @property
    def skipped(self) -> int:
        """Saves that were left out: they found no free slot, or their memory was being made."""
        return self._taker.skipped

    def _connect(self) -> Client:
        if self._process != os.getpid():
            raise CheckpointError(_FORKED.format(os.getpid(), self._process))
        with self._lock:
            if self._client is None:
                keep = self._keep
                self._client = Client(self._root, self._place, self._lineage, keep, self._agent)
                if not self._client.has_agent:
                    say_what_is_missing(self._place.rank, self._root)
            return self._client

    def load(self, *, partial: bool = False) -> int:
        """Fill the state from what this world starts from; return its step, 0 if that is nothing.

        Which step that is, is chosen once for all ranks of a world: another load after a save would
        bring back an old step. Raises `CheckpointError` then, `RestoreError` when the checkpoint
        does not fit; the state is untouched. When an `extra` refuses what was saved of it, those
        before it have theirs, and no tensor was changed.
        partial: take what fits, and leave the rest as it is: also what the optimizer holds of
            parameters that do not fit or are not in the checkpoint.
        """
        if self._idle:
            return 0
        if self._loaded and self._taker.newest != self._loaded:
            raise CheckpointError(_TOO_LATE.format(self._taker.newest[0]))
        client = self._connect()
        origin = Origin()
        descriptors: tuple[int, ...] = ()
        if client.has_agent or self._place.rank == 0:
            answer, descriptors = client.ask(Restore(), Origin)
            assert isinstance(answer, Origin)  # noqa: S101 - `_ask` returns no other
            origin = answer
        for note in origin.notes:
            warnings.warn(note, RuntimeWarning, stacklevel=2)
        if not client.has_agent:
            origin = self._agree(origin)
        self._lineage = max(self._lineage, origin.lineage + 1)
        if origin.step:
            self._restore(origin, descriptors, partial=partial)
            if origin.path:
                self._taker.newest = (origin.step, True)
                client.is_durable(origin.step)
        self._loaded = self._taker.newest
        return origin.step

    def _agree(self, origin: Origin) -> Origin:
        world = self._place.world
        step = from_rank_0(origin.step, world)
        lineage = from_rank_0(origin.lineage, world)
        path = f"{self._root}/step_{step}" if step else ""
        return Origin(step=step, lineage=lineage, path=path)

    def _restore(self, origin: Origin, descriptors: tuple[int, ...], *, partial: bool) -> None:
        leaves = collect(self._parts, self._place.rank)
        arenas = self._preparer.map(descriptors).values()
        # All nodes of a world start from the same bytes: what storage has not is only in memory.
        usable = arenas if origin.slots else ()
        images = of_arenas(usable, origin.slots, origin.lent, tails=not origin.path)
        images += of_files(origin.path) if origin.path else []
        fetch = self._connect().fetch
        found = stored(images, origin.step)
        restorer = Restorer(self._parts, leaves, self._place, found, fetch)
        threads = max(self._threads, _idle_cores(self._place))
        for note in restorer.run(partial=partial, threads=threads):
            warnings.warn(note, RuntimeWarning, stacklevel=3)
        self._preparer.let_go(origin.lent)

    def step(
        self, step: int, *, samples: int = 0, loss: Any = None, fingerprint: int | None = None
    ) -> Action:
        """Say that a step is complete, and save it if it is due; returns what `Job.step` does.

        A scheduled save that fails is counted, and a warning once until the reason changes:
        training goes on.
        """
        job = init()
        action = job.step(step, samples=samples, loss=loss, fingerprint=fingerprint)
        if self._idle:
            return action
        if self._agent and self._preparer.saver is None:
            self._begin_to_prepare()
        what = self._pacer.begin(job, step, writing=self._is_writing())
        if action is SAVE_AND_STOP:
            with init().section("checkpoint"):
                self.save(step)
                self.wait(step)
        elif action is SAVE and self._root:
            # Not waited for: where another rank was too late for it, it never becomes durable.
            self._save_on_the_way(step, durable=True, must=True, awaited=what.sure)
        elif what.storage or (what.memory and self._agent):  # a keeper of our own ends with us
            storage = what.storage and bool(self._root)
            sure = storage and what.sure
            self._save_on_the_way(step, durable=storage, must=sure, awaited=sure)
        self._pacer.resume()
        return action

    def _begin_to_prepare(self) -> None:
        try:
            self._preparer.begin(self._connect())
        except (CheckpointError, StateError, LinkError, OSError) as error:
            warnings.warn(f"no memory for checkpoints: {error}", RuntimeWarning, stacklevel=3)

    def _is_writing(self) -> bool:
        """Tell whether a step of this rank is on its way to storage, as far as is known."""
        client = self._client
        if client is not None and client.awaits:
            client.listen()
        return client is not None and client.awaits

    def _save_on_the_way(
        self, step: int, *, durable: bool, must: bool, awaited: bool = True
    ) -> None:
        failures = []
        try:
            if self._save(step, durable=durable, must=must, awaited=awaited):
                self._trouble.over()
        except (CheckpointError, StateError, LinkError, OSError) as error:
            failures = self._missed(step, str(error), durable=durable)
        if self._client is not None:
            failures += self._client.failures()
        for failure in failures:
            warnings.warn(failure, RuntimeWarning, stacklevel=3)

    def _missed(self, step: int, error: str, *, durable: bool) -> list[str]:
        """Count a scheduled save that failed, and tell the keeper; return what is to be said."""
        self.failed += 1
        is_new = self._trouble.is_new(error)
        if self._client is not None and (durable or is_new):
            self._client.not_saved(Version(self._lineage, step), durable=durable, error=error)
        return [f"step {step} was not saved: {error}"] if is_new else []

    def prepare(self) -> None:
        """Plan and have the memory made now, so that the very first save is not left out.

        Where it is large `step` has it made while training goes on, and saves meanwhile only what
        must be saved.
        """
        self.join()
        if not self._idle:
            self._preparer.ready(self._connect(), wait=True)

    def save(self, step: int, *, durable: bool = True, tag: str | None = None) -> None:
        """Save this very state now, whatever the schedule says; once for each step.

        step: how many optimizer steps are in it, from 1 on. tag: a name that keeps the step on
        storage for good, until another step is saved under it. Raises `CheckpointError` when it
        cannot be saved, ValueError for another step; whether it became durable says `wait`.
        """
        step = given.step_of(step)
        if tag is not None:
            self._tag(step, tag, durable=durable)
        if self._idle:
            return
        if not self._save(step, durable=durable and bool(self._root), must=True):
            reasons = self._connect().failures() or ["no slot became free"]
            raise CheckpointError(f"step {step}: {'; '.join(reasons)}")

    def _tag(self, step: int, tag: str, *, durable: bool) -> None:
        name = tags.tag_of(tag)
        if not durable or not self._root:
            raise ValueError(f"tag={tag!r} is for a step on storage: give a path, and durable=True")
        self._connect()  # makes the directory
        if self._place.rank == 0:
            try:
                tags.give(PosixDisk(), self._root, name, step)
            except OSError as error:
                raise CheckpointError(f"tag {name!r} of step {step}: {error}") from error

    def _save(self, step: int, *, durable: bool, must: bool, awaited: bool = True) -> bool:
        """Save to a free slot; must: wait for one. False when there is none, or no keeper."""
        version = Version(self._lineage, step)
        wish = Wish(version=version, durable=durable, must=must, awaited=awaited)
        return self._taker.take(self._connect(), wish)

    def join(self) -> None:
        """Wait until an overlapped copy is done; afterwards parameters may be written."""
        self._taker.join()

    def latest(self, tag: str | None = None) -> int:
        """Return the newest step that this process knows to be durable; 0 if none.

        tag: rather the step on storage that was saved under it.
        """
        if tag is not None:
            return tags.step_of(PosixDisk(), self._root, tags.tag_of(tag)) if self._root else 0
        if self._idle:
            return 0
        client = self._connect()
        client.listen()
        return client.durable

    def wait(self, step: int | None = None, *, timeout_s: float = ANSWER_S) -> None:
        """Wait until a step, or all that were to be durable, are; without a directory none is.

        Raises `CheckpointError` when one failed, was not to be durable, or the time is up.
        """
        self.join()
        if self._root:
            self._connect().wait(None if step is None else given.step_of(step), timeout_s)

    def close(self, step: int | None = None) -> None:
        """Wait for what is to be durable, then let the keeper go.

        step: save this one before, unless it is saved: the last of a training.
        """
        try:
            if step is not None:
                self.save(step)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        client, self._client = self._client, None
        if self._process != os.getpid():
            return  # a forked child's: what it would end is its parent's
        try:
            self.join()
            if client is not None:
                client.wait(None, ANSWER_S)
        finally:
            self._taker.close()
            self._preparer.close()
            if client is not None:
                client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _idle_cores(place: Place) -> int:
    """Return how many threads a restore may take: nobody trains meanwhile."""
    return min(_MOST_RESTORING, len(os.sched_getaffinity(0)) // place.local_world)
