"""Trainer's client of the checkpoint server: connects, asks, and remembers durable steps."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.flash.memory.arena import Arena
from holdfast.flash.memory.slots import SlotState, Version
from holdfast.flash.server import protocol
from holdfast.flash.server.main import start
from holdfast.flash.trainer.collectives import shared_token
from holdfast.flash.trainer.planner import RankPosition
from holdfast_wire.messages import Tier
from holdfast_wire.messages.spec import CheckpointPolicy

ANSWER_SECONDS: Final = 600.0
"""Seconds until the server answers: it may have to verify a whole checkpoint first."""

_LOT_BYTES: Final = 2**31
"""Bytes per read of other nodes' memory: 4 s at the 0.5 GB/s of one connection; ranks take
turns."""
_GLANCE_SECONDS: Final = 1.0
"""Seconds between two looks at the connection during a wait for a step."""
_LOOK_SECONDS: Final = 0.001
"""Seconds between two looks at the slots: the server frees a slot without a message."""


class CheckpointError(Exception):
    """A checkpoint could not be made or kept; training may go on without it."""


_MOST_OUTCOMES: Final = 1000
"""Number of steps whose outcome is remembered."""
_Answer = TypeVar("_Answer", bound=Any)
"""Class of an answer; `Message` has them all."""


class Client:
    """Connection to an agent's checkpoint server, or to one that this process starts."""

    def __init__(
        self, root: str, place: RankPosition, lineage: int, policy: CheckpointPolicy, agent: str
    ) -> None:
        """Connect. agent: path of the agent's socket; empty: start a server for this rank alone.

        Raises OSError if no server listens there, or the directory cannot be made.
        """
        if root:
            Path(root).mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._awaited: set[int] = set()
        self._failures: list[str] = []
        self._told: set[int] = set()
        """Steps on their way to storage, awaited or not."""
        self._outcomes: dict[int, str] = {}
        """Newest finished steps → reason of their failure; empty: durable."""
        self._refused = False
        self._lost = False
        self._asked = 0
        """Number of the newest layout for which an arena was requested."""
        self._arena: tuple[int, ...] | str = ()
        """Descriptors of that arena, or the reason for a refusal; empty: no answer yet."""
        self.on_end: Callable[[int, str], None] = lambda _step, _error: None
        """Called with each step that the server has finished, and its error; empty: durable."""
        self.durable = 0
        """Newest durable step that the server has announced."""
        token = ""
        self._link: protocol.ServerLink
        if agent:
            self._link = protocol.connect(agent)
        else:
            token = shared_token(place.world)
            self._link, self._process = start()
        self._hello = protocol.TrainerHello(
            rank=place.rank,
            world=place.world,
            kept=place.local_world if agent else 1,
            lineage=lineage,
            root=root,
            policy=policy,
            token=token,
        )
        self._link.send(self._hello)

    def fileno(self) -> int:
        """Return the descriptor to poll for the server's next message."""
        return self._link.fileno()

    @property
    def has_agent(self) -> bool:
        """True if the server outlives this process."""
        return self._process is None

    def ask(
        self,
        message: protocol.Message,
        kind: type[_Answer],
        *,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> tuple[_Answer, tuple[int, ...]]:
        """Return the answer and its descriptors; raises `CheckpointError` for a refusal.

        meanwhile: work while the server finds the answer. Its error is raised.
        """
        self._link.send(message)
        try:
            meanwhile()
        except Exception:
            for descriptor in self._answer(kind)[1]:  # or the next request would find it
                os.close(descriptor)
            raise
        return self._answer(kind)

    def _answer(self, kind: type[_Answer]) -> tuple[_Answer, tuple[int, ...]]:
        deadline = time.monotonic() + ANSWER_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            found = self._link.receive(left)
            if found is None:
                self._refuse_closed()
                continue
            answer, descriptors = found
            if isinstance(answer, kind):
                return answer, descriptors
            if isinstance(answer, protocol.RequestRefused) and not answer.number:
                raise CheckpointError(answer.error)
            self._hear(answer, descriptors)  # news, or of an earlier request for an arena
        raise protocol.LinkError(
            f"the agent did not answer with {kind.__name__} or RequestRefused within "
            f"{ANSWER_SECONDS:g} s"
        )

    def _refuse_closed(self) -> None:
        if self._link.closed:
            raise protocol.LinkError("the agent has closed the connection: see its log")

    def ask_for_arena(self, layout: protocol.Layout) -> None:
        """Request an arena, which may take a second per GiB; `arena` returns it when it is made."""
        self._asked, self._arena = self._asked + 1, ()
        self._link.send(dataclasses.replace(layout, number=self._asked))

    def arena(self, timeout_s: float) -> tuple[int, ...]:
        """Return the descriptor of the last requested arena; empty: it is not made yet.

        Waits for it up to `timeout_s`. Raises `CheckpointError` if the request is refused, or the
        server is gone.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self.listen(max(0.0, deadline - time.monotonic()))
            found = self._arena
            if isinstance(found, str):
                raise CheckpointError(found)
            if found or time.monotonic() >= deadline:
                return found
            self._refuse_closed()

    def fetch(self, items: Mapping[tuple[int, int], int]) -> None:
        """Have items read from other nodes, in batches that the server can answer in time.

        items: (rank, index in its table) → bytes. Raises `CheckpointError`.
        """
        lot: list[tuple[int, int]] = []
        size = 0
        for item, length in items.items():
            lot.append(item)
            size += length
            if size >= _LOT_BYTES:
                self.ask(protocol.Fetch(items=tuple(lot)), protocol.Fetched)
                lot, size = [], 0
        if lot:
            self.ask(protocol.Fetch(items=tuple(lot)), protocol.Fetched)

    def saved(self, version: Version, *, durable: bool, final: str = "") -> None:
        """Announce a VALID slot; final: path for the checkpoint, if it is not below the root."""
        if durable:
            self._told.add(version.step)
        tier = Tier.STORAGE if durable else Tier.MEMORY
        told = protocol.Saved(lineage=version.lineage, step=version.step, tier=tier, final=final)
        self._link.send(told)

    def not_saved(self, version: Version, *, durable: bool, error: str, final: str = "") -> None:
        """Announce a failed save with its reason, so that no rank waits for it."""
        self._link.send(
            protocol.NotSaved(
                lineage=version.lineage,
                step=version.step,
                tier=Tier.STORAGE if durable else Tier.MEMORY,
                error=error,
                final=final,
            )
        )

    def expect_durable(self, step: int) -> None:
        """Add a step to those that `wait` waits for."""
        self._awaited.add(step)

    def forget(self, step: int) -> None:
        """Remove a step from those that `wait` waits for: its save was broken off."""
        self._awaited.discard(step)

    @property
    def awaits(self) -> bool:
        """True while a step is on its way to storage."""
        return bool(self._awaited)

    def listen(self, timeout_s: float = 0.0) -> None:
        """Handle the server's messages; wait up to `timeout_s` for the first one."""
        while (found := self._link.receive(timeout_s)) is not None:
            self._hear(*found)
            timeout_s = 0.0

    def _hear(self, message: protocol.Message, descriptors: tuple[int, ...] = ()) -> None:
        if isinstance(message, protocol.Granted) and message.number == self._asked:
            self._arena, descriptors = descriptors, ()
        elif isinstance(message, protocol.RequestRefused) and message.number:
            if message.number == self._asked:
                self._arena = message.error
        elif isinstance(message, protocol.Durable):
            self._awaited.discard(message.step)
            self.is_durable(message.step)
            self.on_end(message.step, "")
        elif isinstance(message, protocol.Failed):
            text = f"step {message.step}: {message.error}"
            self._ended(message.step, text)
            self.on_end(message.step, message.error)
            if message.step in self._awaited:
                self._awaited.discard(message.step)
                self._failures.append(text)
            else:
                warnings.warn(text, RuntimeWarning, stacklevel=2)
        elif isinstance(message, protocol.RequestRefused):
            self._refused = True
            self._failures.append(message.error)
        for descriptor in descriptors:
            os.close(descriptor)

    @property
    def has_storage(self) -> bool:
        """True if steps may become durable."""
        return bool(self._hello.root)

    def stored(self) -> list[int]:
        """Return the newest durable steps."""
        # A copy first: another thread may receive a message.
        return [step for step, error in tuple(self._outcomes.items()) if not error]

    def is_durable(self, step: int) -> None:
        """Note that a step is on storage."""
        self.durable = max(self.durable, step)
        self._ended(step, "")

    def _ended(self, step: int, error: str) -> None:
        self._told.discard(step)
        self._outcomes[step] = error
        if len(self._outcomes) > _MOST_OUTCOMES:
            del self._outcomes[next(iter(self._outcomes))]

    def wait(self, step: int | None, timeout_s: float) -> None:
        """Wait until a step, or all awaited steps, are durable.

        Raises `CheckpointError` if a step failed or is not to be durable, the server is gone or
        refused a request, or the time is up.
        """
        deadline = time.monotonic() + timeout_s
        self.listen()
        if step is not None:
            self._await_one(step)
        while self._awaited if step is None else step in self._awaited:
            if self._refused:
                break
            left = deadline - time.monotonic()
            if self._link.closed:
                raise CheckpointError(f"the checkpoint server is gone before steps {self._named()}")
            if left <= 0:
                raise CheckpointError(f"steps {self._named()}: not durable in {timeout_s:g} s")
            left = min(left, _GLANCE_SECONDS)  # another thread may receive the message
            self.listen(left)
        if failures := self.failures():
            raise CheckpointError("; ".join(failures))

    def _await_one(self, step: int) -> None:
        """Await a step, unless its outcome is known."""
        outcome = self._outcomes.get(step)
        if outcome is None and step not in self._told:
            raise CheckpointError(f"step {step} is not on its way to storage: save({step}) first")
        if outcome is None:
            self._awaited.add(step)
        elif outcome and not self._failures:
            raise CheckpointError(outcome)

    def failures(self) -> list[str]:
        """Return the failures since the last call."""
        failures, self._failures, self._refused = self._failures, [], False
        return failures

    def is_lost(self) -> bool:
        """Return True if the server is gone; the first time, that is a failure too.

        Steps that were not durable are lost then, and later ones are not kept.
        """
        if self._link.closed and not self._lost:
            self._lost = True
            lost = f"; steps {self._named()} are lost" if self._awaited else ""
            self._failures.append(f"the checkpoint server is gone, nothing is saved any more{lost}")
        return self._lost

    def wait_for_slot(self, arena: Arena, timeout_s: float) -> bool:
        """Wait until a slot is free; False at the timeout, or if the server is gone."""
        deadline = time.monotonic() + timeout_s
        while all(slot.state is not SlotState.EMPTY for slot in arena.slots):
            if self._link.closed or time.monotonic() >= deadline:
                return False
            self.listen(_LOOK_SECONDS)
        return True

    def _named(self) -> str:
        return ", ".join(str(step) for step in sorted(self._awaited))

    def close(self) -> None:
        """Disconnect; a server of this process ends when its work is done."""
        self._link.close()
        if self._process is not None:
            self._process.wait(timeout=ANSWER_SECONDS)
