"""Public class for a training script: load once, step after each step, close at the end.

Belongs here: the calls of a script.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from functools import partial as bind
from threading import RLock
from time import monotonic_ns
from typing import Any, Final, Self

from holdfast.environment import Environment
from holdfast.flash.memory.slots import Version
from holdfast.flash.notices import FailureLog, UnsavedEnd, say_what_is_missing
from holdfast.flash.schedule import Schedule
from holdfast.flash.server.protocol import LinkError, RestoreStart
from holdfast.flash.storage import retention
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.retention_rule import chosen
from holdfast.flash.trainer import arguments
from holdfast.flash.trainer.client import ANSWER_SECONDS, CheckpointError, Client
from holdfast.flash.trainer.collectives import from_rank_0
from holdfast.flash.trainer.leaves import Leaves, StateError
from holdfast.flash.trainer.planner import RankPosition
from holdfast.flash.trainer.reshard import BytesRead, Stored, of_start, stored
from holdfast.flash.trainer.restore import idle_cores, restore
from holdfast.flash.trainer.save import Preparer, SaveOrder, Saver, SaveRequest
from holdfast.flash.trainer.save_policy import TierSchedule
from holdfast.flash.trainer.shards import Shards
from holdfast.job import SAVE, SAVE_AND_STOP, Action, init

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
    """Saves a training state to memory and storage, and restores it.

    ```python
    flash = holdfast.Checkpointer(
        "/shared/run", model=model, optimizer=optimizer,
        extra={"scheduler": scheduler},  # equal on all ranks
        per_rank={"loader": loader},  # each rank has its own
    )
    for step in range(flash.load(), steps):
        loss = train_step()
        if flash.step(step + 1, samples=n, loss=loss) is holdfast.SAVE_AND_STOP:
            break
    flash.close()
    ```

    A `per_rank` value goes back to the rank that saved it. A world of another size calls the
    value's `reshard`. Without one the value begins anew, with a warning:

    ```python
    class Loader:
        def state_dict(self): return {"seen": self.seen}
        def load_state_dict(self, state): self.seen = state["seen"]
        def reshard(self, states, rank, world):
            return {"seen": sum(one["seen"] for one in states) // world}
    ```

    `states` has one state per rank of the world that saved, in the order of ranks. The result goes
    to `load_state_dict` of this rank. The random generators (torch, Python, numpy, CUDA) are saved
    per rank as "rng", without an entry in `per_rank`; a world of another size reseeds them.

    *Tensors*: every dtype but quantized ones; any shape and strides; not sparse. *Devices*: CPU and
    CUDA; not meta. *Sharding*: plain tensors, equal on the ranks that have them (DDP, pipeline
    stages, experts; a save where they differ is refused by name), and DTensors with Shard or
    Replicate placements on a mesh of any dimensions (FSDP2, tensor parallelism); not Partial. Each
    rank gets its own buffers of up to 64 KiB back; a world of another size gets rank 0's, as DDP
    would broadcast them. Any world loads what another one saved. Wrappers (DDP, torch.compile,
    checkpoint_wrapper) change no name. Optimizers are saved by their `state` and `param_groups`;
    the moments keep their dtype.

    *Format*: `step_<n>` of the directory is a checkpoint of torch.distributed.checkpoint
    (`.metadata` and `__<rank>_0.distcp`), which `dcp.load` reads, and a manifest with a hash of
    each item. The records in a `.distcp` file have no zip CRC, which torch never compares: Python's
    `zipfile` calls them bad. `holdfast checkpoint verify` compares the hashes.

    An average of the weights is saved as a second model. While averaged weights are swapped into
    the model, a save has those in the model's place.

    *Errors*: `CheckpointError`: a save was not made or kept; `RestoreError`: a checkpoint does not
    fit; `StateError`: a state cannot be saved exactly. A scheduled save that fails only warns.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of the user, given by name
        self,
        path: str | os.PathLike[str] | None,
        *,
        model: Any = None,
        optimizer: Any = None,
        shards: Shards | None = None,
        extra: Mapping[str, Any] | None = None,
        per_rank: Mapping[str, Any] | None = None,
        schedule: Schedule | None = None,
        keep_last: int | None = None,
        keep_every: int | None = None,
        threads: int = 1,
        overlap: bool = False,
    ) -> None:
        """Take the state's parts; nothing is copied yet.

        Args:
            path: Directory of the checkpoints, visible to all ranks. None: memory only, which an
                agent keeps while the job runs; without an agent nothing is saved then.
            model: An `nn.Module`, or a list of them.
            optimizer: A `torch.optim.Optimizer`, or a list of them, over parameters of `model`.
            shards: In place of both, the state of a framework that keeps it elsewhere
                (`holdfast.integrations`).
            extra: Names to objects with `state_dict` and `load_state_dict`, or to plain data
                (numbers, text, tensors, and lists, tuples and dicts of them); equal on all ranks.
                The first durable save compares the ranks and fails where they differ. Floats may
                differ by about a thousandth, those of 16 and fewer bits by a quarter, because
                kernels of unequal machines round differently; a load gives all ranks rank 0's.
            per_rank: Like `extra`, but each rank has its own values; "rng" is taken.
            schedule: Steps between saves per tier; None: the job's master computes them.
            keep_last: Number of newest committed steps that stay on storage, at least 1; None: as
                the job's file says, else 3.
            keep_every: Multiples of this step stay on storage for good; 0: none. None: as the job's
                file says, else 0.
            threads: Number of threads that copy in a save, 1 to 1024. Take 2 where cores are idle;
                a restore takes idle cores by itself.
            overlap: Copy what the optimizers change during the next forward and backward; the next
                `optimizer.step()` waits for the copy. Call `join()` before other writes to
                parameters (averaged weights swapped in, `p.data = …`), before replaying CUDA
                graphs, and before compiling a whole step: otherwise the save mixes old and new
                values, without a warning.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: an argument or an environment variable has an invalid value.
            NotADirectoryError: `path` is a file, or a dangling link.
            ImportError: a package that saves need is not installed.
        """
        self._parts = arguments.parts(model, optimizer, shards, extra, per_rank)
        environment = Environment.read()
        self._place = RankPosition.of(environment)
        self._root = arguments.directory(path)
        self._policy = chosen(keep_last, keep_every, environment.checkpoint)
        self._threads = arguments.threads_of(threads)
        self._schedule = TierSchedule(arguments.schedule_of(schedule), environment.schedule)
        self._preparer = Preparer(self._parts, self._place)
        self._saver = Saver(self._preparer, self._schedule, threads=self._threads, overlap=overlap)
        self._lineage = environment.round
        self._agent = environment.arena
        self._idle = not self._root and not self._agent
        self._loaded: tuple[int, bool] | None = None
        """Step that was saved last, after the load; True if for storage."""
        self._order = SaveOrder(self._root)
        self._end = UnsavedEnd()
        self._client: Client | None = None
        self.failed = 0
        """Scheduled saves that failed, for lack of memory, say. Training went on."""
        self.read = BytesRead()
        """Bytes that the last `load()` read for this rank's tensors: memory, peers, storage."""
        self._failures = FailureLog()
        self._process = os.getpid()
        self._lock = RLock()
        """Allows one connection, even if several threads save."""

    @property
    def skipped(self) -> int:
        """Number of skipped saves: no slot was free, or their memory was being made."""
        return self._saver.skipped

    def _connect(self) -> Client:
        if self._process != os.getpid():
            raise CheckpointError(_FORKED.format(os.getpid(), self._process))
        with self._lock:
            if self._client is None:
                policy = self._policy
                self._client = Client(self._root, self._place, self._lineage, policy, self._agent)
                if not self._client.has_agent and self._place.rank == 0:
                    say_what_is_missing(self._root)
                    self._end.watch()  # an agent's master saves what is left
            return self._client

    def load(self, *, partial: bool = False) -> int:
        """Fill the state from the checkpoint that this world starts from.

        All ranks call it and load the same step, chosen once per world. It writes into the existing
        tensors, and makes optimizer state that is missing.

        Args:
            partial: Load the parts that fit, and leave the rest as it is, including the optimizer's
                state of parameters that do not fit or are not in the checkpoint.

        Returns:
            Optimizer steps in the loaded state; 0: there is no checkpoint, nothing was changed.

        Raises:
            RestoreError: the checkpoint does not fit the state, on this rank or another. No tensor
                was changed; if an `extra` refused its state, those before it have loaded theirs.
            StateError: the state has a part that cannot be filled.
            CheckpointError: a step was saved since an earlier `load()`, or none can be read.

        Warns:
            RuntimeWarning: a damaged step was passed over, or a value of `per_rank` begins anew.
        """
        if self._idle:
            return 0
        if self._loaded and self._saver.newest != self._loaded:
            raise CheckpointError(_TOO_LATE.format(self._saver.newest[0]))
        client, origin, descriptors = self._connect(), RestoreStart(), tuple[int, ...]()
        meet = bind(self._preparer.meet, again=True)
        if client.has_agent or self._place.rank == 0:
            request = self._preparer.request(partial)
            origin, descriptors = client.ask(request, RestoreStart, meanwhile=meet)
        else:
            meet()
        for note in origin.notes:
            warnings.warn(note, RuntimeWarning, stacklevel=2)
        if not client.has_agent:
            origin = self._agree(origin)
        self._lineage = max(self._lineage, origin.lineage + 1)
        self._order.begin_at(origin.step)
        if origin.step:
            self._restore(origin, descriptors, partial=partial)
            if origin.durable:
                self._saver.newest = (origin.step, True)
                self._end.stored = origin.step
                client.is_durable(origin.step)
        self._loaded = self._saver.newest
        return origin.step

    def _agree(self, origin: RestoreStart) -> RestoreStart:
        own = (origin.step, origin.lineage)
        step, lineage = (from_rank_0(number, self._place.world) for number in own)
        path = f"{self._root}/step_{step}" if step else ""
        return RestoreStart(step=step, lineage=lineage, path=path, durable=bool(step))

    def _restore(self, origin: RestoreStart, fds: tuple[int, ...], *, partial: bool) -> None:
        def read() -> tuple[Leaves, Stored]:
            arenas = self._preparer.map(fds).values()
            return self._preparer.listed_by_all(), stored(of_start(origin, arenas), origin.step)

        fetch, holders = self._connect().fetch, self._preparer.holders
        threads = max(self._threads, idle_cores(self._place))
        notes, self.read = restore(
            self._parts, self._place, holders, read, fetch, partial=partial, threads=threads
        )
        for note in notes:
            warnings.warn(note, RuntimeWarning, stacklevel=3)
        self._preparer.let_go(origin.lent)

    def step(
        self, step: int, *, samples: int = 0, loss: Any = None, fingerprint: int | None = None
    ) -> Action:
        """Report a completed step as `Job.step` does, and save it if it is due.

        Args:
            step: Completed optimizer steps since training began; grows with each call.
            samples: Samples that this rank processed since the last call.
            loss: One number, or a tensor of one element.
            fingerprint: A whole number for the step log; see `Job.step`.

        Returns:
            CONTINUE, SAVE or SAVE_AND_STOP. The step is saved already when it returns SAVE or
            SAVE_AND_STOP; after SAVE_AND_STOP it is durable, if there is a path.

        Raises:
            ValueError: an argument has an invalid value; see `Job.step`.
            TypeError: an argument is no number.
            CheckpointError: the save before a SAVE_AND_STOP failed.
            StateError: that save met a state that cannot be saved.

        Warns:
            RuntimeWarning: a scheduled save failed; training goes on. `failed` counts it, and the
                warning comes once until the reason changes.
        """
        job = init()
        action = job.step(step, samples=samples, loss=loss, fingerprint=fingerprint)
        if self._idle:
            return action
        if not self._end.counted and (reason := self._order.refusal(step, self._saver.newest[0])):
            warnings.warn(f"not saved: {reason}", RuntimeWarning, stacklevel=2)
        self._end.counted = step
        if self._agent and self._preparer.copier is None:
            self._begin_to_prepare()
        what = self._schedule.begin(job, step, writing=self._is_writing())
        if action is SAVE_AND_STOP:
            with init().section("checkpoint"):
                self.save(step)
                self.wait(step)
        elif action is SAVE and self._root:
            # Not awaited: if another rank was too late for the step, it never becomes durable.
            self._save_on_the_way(step, durable=True, must=True, awaited=what.sure)
        elif what.storage or (what.memory and self._agent):  # our own server would end with us
            storage = what.storage and bool(self._root)
            sure = storage and what.sure
            self._save_on_the_way(step, durable=storage, must=sure, awaited=sure)
        self._schedule.meter.resumed(monotonic_ns())
        return action

    def _begin_to_prepare(self) -> None:
        try:
            self._preparer.begin(self._connect())
        except (CheckpointError, StateError, LinkError, OSError) as error:
            warnings.warn(f"no memory for checkpoints: {error}", RuntimeWarning, stacklevel=3)

    def _is_writing(self) -> bool:
        """Return True if a step of this rank is on its way to storage, as far as is known."""
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
                self._failures.over()
        except (CheckpointError, StateError, LinkError, OSError) as error:
            failures = self._missed(step, str(error), durable=durable)
        if self._client is not None:
            failures += self._client.failures()
        for failure in failures:
            warnings.warn(failure, RuntimeWarning, stacklevel=3)

    def _missed(self, step: int, error: str, *, durable: bool) -> list[str]:
        """Count a failed scheduled save, and tell the server; return the texts to warn of."""
        self.failed += 1
        is_new = self._failures.is_new(error)
        if self._client is not None and (durable or is_new):
            self._client.not_saved(Version(self._lineage, step), durable=durable, error=error)
        return [f"step {step} was not saved: {error}"] if is_new else []

    def prepare(self) -> None:
        """Plan the state and make the memory now, so that the first save is not skipped.

        Without this call a large arena (above 256 MiB) is made while training goes on; until then
        only saves that must not be skipped are made.

        Raises:
            StateError: the state has a part that cannot be saved.
            CheckpointError: there is not enough memory.
        """
        self.join()
        if not self._idle:
            self._preparer.ready(self._connect(), wait=True)

    def save(self, step: int, *, durable: bool = True, tag: str | None = None) -> None:
        """Save the present state now, whatever the schedule says; once for each step.

        It returns when the state is copied (with `overlap`, when the copy runs); `wait` returns
        when it is durable.

        Args:
            step: Number of optimizer steps in the state, from 1 to 2**63 - 1.
            durable: Write it to storage too, if there is a path.
            tag: A name that keeps the step on storage for good, until another step is saved under
                it: up to 64 letters, digits, ".", "_" and "-".

        Raises:
            ValueError: `step` or `tag` is invalid, or there is a tag without storage.
            StateError: a value or tensor cannot be saved byte by byte; the message names it.
            CheckpointError: a later step exists that every load would take in place of this one; no
                slot became free in 600 s; too little memory; or the checkpoint server is gone.
        """
        step = arguments.step_of(step)
        if not self._idle and (reason := self._order.refusal(step, self._saver.newest[0])):
            raise CheckpointError(f"step {step}: {reason}")
        if tag is not None:
            self._tag(step, tag, durable=durable)
        if self._idle:
            return
        if not self._save(step, durable=durable and bool(self._root), must=True):
            reasons = self._connect().failures() or ["no slot became free"]
            raise CheckpointError(f"step {step}: {'; '.join(reasons)}")

    def _tag(self, step: int, tag: str, *, durable: bool) -> None:
        name = retention.tag_of(tag)
        if not durable or not self._root:
            raise ValueError(f"tag={tag!r} is for a step on storage: give a path, and durable=True")
        self._connect()  # makes the directory
        if self._place.rank == 0:
            try:
                retention.give_tag(Disk(), self._root, name, step)
            except OSError as error:
                raise CheckpointError(f"tag {name!r} of step {step}: {error}") from error

    def _save(self, step: int, *, durable: bool, must: bool, awaited: bool = True) -> bool:
        """Save to a free slot; must: wait for one. False if there is no slot, or no server.

        Raises `CheckpointError` for a step below one that every load would take in its place.
        """
        if reason := self._order.refusal(step, self._saver.newest[0]):
            raise CheckpointError(reason)
        client = self._connect()
        if not client.has_agent:  # with an agent any rank alone may save
            self._preparer.meet(again=False)
        version = Version(self._lineage, step)
        request = SaveRequest(version=version, durable=durable, must=must, awaited=awaited)
        taken = self._saver.take(client, request)
        if taken and durable:
            self._end.stored = step
        return taken

    def join(self) -> None:
        """Wait until an overlapped copy is done; then the script may write to parameters.

        Raises:
            CheckpointError: the checkpoint server is gone. The copy's own error is raised too.
        """
        self._saver.join()

    def latest(self, tag: str | None = None) -> int:
        """Return the newest durable step that this process knows of.

        Args:
            tag: Return the step on storage that was saved under this tag instead.

        Returns:
            The step; 0: none.

        Raises:
            ValueError: `tag` is not valid.
        """
        if tag is not None:
            name = retention.tag_of(tag)
            return retention.step_of_tag(Disk(), self._root, name) if self._root else 0
        if self._idle:
            return 0
        client = self._connect()
        client.listen()
        return client.durable

    def wait(self, step: int | None = None, *, timeout_s: float = ANSWER_SECONDS) -> None:
        """Wait until a step, or every step on its way to storage, is durable.

        Without a path it returns at once.

        Args:
            step: The step; None: all of them.
            timeout_s: Longest wait, s.

        Raises:
            CheckpointError: a step failed, was not to be durable, or the time is up.
            ValueError: `step` is not valid.
        """
        self.join()
        if self._root:
            self._connect().wait(None if step is None else arguments.step_of(step), timeout_s)

    def close(self, step: int | None = None) -> None:
        """Wait for the steps on their way to storage, then release the server and the memory.

        Args:
            step: Save this step first, unless it is saved already: the last one of a training.

        Raises:
            CheckpointError: a step did not become durable; everything is released all the same.
            StateError: `step` cannot be saved.
            ValueError: `step` is not valid.
        """
        try:
            if step is not None:
                self.save(step)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        client, self._client = self._client, None
        if self._process != os.getpid():
            return  # a forked child: server and memory belong to its parent
        self._end.forget()
        try:
            self.join()
            if client is not None:
                client.wait(None, ANSWER_SECONDS)
        finally:
            self._saver.close()
            self._preparer.close()
            if client is not None:
                client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
