"""A trainer's side of its keeper: connects, asks, and remembers what has become durable."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.flash.agreement import shared_token
from holdfast.flash.arena import Arena
from holdfast.flash.decide.retention import RetentionSettings
from holdfast.flash.decide.slots import SlotState, Version
from holdfast.flash.keeping import start
from holdfast.flash.link import (
    Durable,
    Failed,
    Fetch,
    Fetched,
    Granted,
    Hello,
    Layout,
    Link,
    LinkError,
    Message,
    NotSaved,
    Refused,
    Saved,
)
from holdfast.flash.planning import Place
from holdfast.flash.sockets import connect

ANSWER_S: Final = 600.0
"""Seconds in which a keeper answers: it may have to verify a whole checkpoint first."""

_LOT_BYTES: Final = 2**31
"""Read from other nodes at once: 4 s at the 0.5 GB/s of one connection, and ranks take turns."""
_GLANCE_S: Final = 1.0
"""Seconds between two looks of who waits for the end of a step."""
_LOOK_S: Final = 0.001
"""Seconds between two looks at the slots: a slot is given back by a store, without a message."""


class CheckpointError(Exception):
    """A checkpoint could not be made or kept; training may go on without it."""


_MOST_OUTCOMES: Final = 1000
"""More steps than anybody asks about later."""


class Client:
    """The connection to an agent's keeper, or to one of its own that it starts."""

    def __init__(
        self, root: str, place: Place, lineage: int, keep: RetentionSettings, agent: str
    ) -> None:
        """Connect. agent: path of the agent's socket; empty: start a keeper for this rank.

        Raises OSError when nobody listens there or the directory cannot be made.
        """
        if root:
            Path(root).mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._awaited: set[int] = set()
        self._failures: list[str] = []
        self._told: set[int] = set()
        """Steps on their way to storage, awaited or not."""
        self._outcomes: dict[int, str] = {}
        """Of the newest steps that were, why one is not there; empty: it is."""
        self._refused = False
        self._lost = False
        self._asked = 0
        """Number of the newest layout that an arena was asked for."""
        self._arena: tuple[int, ...] | str = ()
        """Descriptors of the answer to that, or why there is none; empty: there is no answer."""
        self.durable = 0
        """The newest step that is announced durable."""
        token = ""
        self._link: Link
        if agent:
            self._link = connect(agent)
        else:
            token = shared_token(place.world)
            self._link, self._process = start()
        hello = Hello(
            rank=place.rank,
            world=place.world,
            kept=place.local_world if agent else 1,
            lineage=lineage,
            root=root,
            keep_last=keep.keep_last,
            keep_every=keep.keep_every,
            token=token,
        )
        self._link.send(hello)

    @property
    def has_agent(self) -> bool:
        """True when the keeper outlives this process."""
        return self._process is None

    def ask(self, message: Message, *kinds: type[Message]) -> tuple[Message, tuple[int, ...]]:
        """Return the answer and its descriptors; raises `CheckpointError` when it is refused."""
        self._link.send(message)
        while True:
            answer, descriptors, others = self._link.expect(*kinds, Refused, timeout_s=ANSWER_S)
            for other in others:
                self._hear(*other)
            if not isinstance(answer, Refused):
                return answer, descriptors
            if not answer.number:
                raise CheckpointError(answer.error)
            self._hear(answer)  # it is about an arena that was asked for before

    def ask_for_arena(self, layout: Layout) -> None:
        """Have an arena made, which can take a second a GiB; `arena` tells when it is there."""
        self._asked, self._arena = self._asked + 1, ()
        self._link.send(dataclasses.replace(layout, number=self._asked))

    def arena(self, timeout_s: float) -> tuple[int, ...]:
        """Return the descriptor of the arena that was asked for last; empty: it is not there yet.

        Waits for it as long as told. Raises `CheckpointError` when it is refused, or the keeper is
        gone.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self.listen(max(0.0, deadline - time.monotonic()))
            found = self._arena
            if isinstance(found, str):
                raise CheckpointError(found)
            if found or time.monotonic() >= deadline:
                return found
            if self._link.closed:
                raise LinkError("the agent has closed the connection: see its log")

    def fetch(self, items: Mapping[tuple[int, int], int]) -> None:
        """Have items read from other nodes, in lots: the keeper answers each in time.

        items: bytes by rank and index in its table. Raises `CheckpointError`.
        """
        lot: list[tuple[int, int]] = []
        size = 0
        for item, length in items.items():
            lot.append(item)
            size += length
            if size >= _LOT_BYTES:
                self.ask(Fetch(items=tuple(lot)), Fetched)
                lot, size = [], 0
        if lot:
            self.ask(Fetch(items=tuple(lot)), Fetched)

    def saved(self, version: Version, *, durable: bool, final: str = "") -> None:
        """Tell that a slot has become VALID; final: where it is to be, if not below the root."""
        if durable:
            self._told.add(version.step)
        told = Saved(lineage=version.lineage, step=version.step, durable=durable, final=final)
        self._link.send(told)

    def not_saved(self, version: Version, *, durable: bool, error: str, final: str = "") -> None:
        """Tell that a save failed, and why: nobody is to wait for it."""
        self._link.send(
            NotSaved(
                lineage=version.lineage,
                step=version.step,
                durable=durable,
                error=error,
                final=final,
            )
        )

    def expect_durable(self, step: int) -> None:
        """Count a step among those that `wait` waits for."""
        self._awaited.add(step)

    def forget(self, step: int) -> None:
        """Count a step no longer among those that `wait` waits for: its save was broken off."""
        self._awaited.discard(step)

    @property
    def awaits(self) -> bool:
        """True while a step is on its way to storage."""
        return bool(self._awaited)

    def listen(self, timeout_s: float = 0.0) -> None:
        """Take in what the keeper has said; wait for the first message as long as told."""
        while (found := self._link.receive(timeout_s)) is not None:
            self._hear(*found)
            timeout_s = 0.0

    def _hear(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        if isinstance(message, Granted) and message.number == self._asked:
            self._arena, descriptors = descriptors, ()
        elif isinstance(message, Refused) and message.number:
            if message.number == self._asked:
                self._arena = message.error
        elif isinstance(message, Durable):
            self._awaited.discard(message.step)
            self.is_durable(message.step)
        elif isinstance(message, Failed):
            text = f"step {message.step}: {message.error}"
            self._ended(message.step, text)
            if message.step in self._awaited:
                self._awaited.discard(message.step)
                self._failures.append(text)
            else:
                warnings.warn(text, RuntimeWarning, stacklevel=2)
        elif isinstance(message, Refused):
            self._refused = True
            self._failures.append(message.error)
        for descriptor in descriptors:
            os.close(descriptor)

    def is_durable(self, step: int) -> None:
        """Take in that a step is on storage."""
        self.durable = max(self.durable, step)
        self._ended(step, "")

    def _ended(self, step: int, error: str) -> None:
        self._told.discard(step)
        self._outcomes[step] = error
        if len(self._outcomes) > _MOST_OUTCOMES:
            del self._outcomes[next(iter(self._outcomes))]

    def wait(self, step: int | None, timeout_s: float) -> None:
        """Wait until a step, or all that are awaited, are durable.

        Raises `CheckpointError` when one failed or is not to be durable, the keeper is gone or
        refuses what it was told, or the time is up.
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
                raise CheckpointError(f"the keeper is gone before steps {self._named()}")
            if left <= 0:
                raise CheckpointError(f"steps {self._named()}: not durable in {timeout_s:g} s")
            left = min(left, _GLANCE_S)  # another thread may hear of it
            self.listen(left)
        if failures := self.failures():
            raise CheckpointError("; ".join(failures))

    def _await_one(self, step: int) -> None:
        """Count a step among those that are awaited, unless its end is known."""
        outcome = self._outcomes.get(step)
        if outcome is None and step not in self._told:
            raise CheckpointError(f"step {step} is not on its way to storage: save({step}) first")
        if outcome is None:
            self._awaited.add(step)
        elif outcome and not self._failures:
            raise CheckpointError(outcome)

    def failures(self) -> list[str]:
        """Return what has failed since this was asked last."""
        failures, self._failures, self._refused = self._failures, [], False
        return failures

    def is_lost(self) -> bool:
        """Tell whether the keeper is gone; the first time that is a failure too.

        What was not durable is lost then, and nothing more will be kept.
        """
        if self._link.closed and not self._lost:
            self._lost = True
            lost = f"; steps {self._named()} are lost" if self._awaited else ""
            self._failures.append(f"the keeper is gone, nothing is saved any more{lost}")
        return self._lost

    def wait_for_slot(self, arena: Arena, timeout_s: float) -> bool:
        """Wait until a slot is free; False after the time, or when the keeper is gone."""
        deadline = time.monotonic() + timeout_s
        while all(slot.state is not SlotState.EMPTY for slot in arena.slots):
            if self._link.closed or time.monotonic() >= deadline:
                return False
            self.listen(_LOOK_S)
        return True

    def _named(self) -> str:
        return ", ".join(str(step) for step in sorted(self._awaited))

    def close(self) -> None:
        """Let the keeper go; one of our own ends when its work is done."""
        self._link.close()
        if self._process is not None:
            self._process.wait(timeout=ANSWER_S)
