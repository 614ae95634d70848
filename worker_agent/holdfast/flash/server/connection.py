"""Connection of one trainer to the checkpoint server: its messages in order, and its end.

Does not belong here: the reaction to a message (`service`).
"""

from __future__ import annotations

import collections
import os
import select
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.flash.memory.slots import Version
from holdfast.flash.server.protocol import Link, LinkError, Message, TrainerHello

Heard = Message | LinkError
"""A message, or the error in its place."""


@dataclass(eq=False, slots=True)
class Member:
    """One connected trainer."""

    link: Link
    pidfd: int
    """Becomes readable when the trainer dies; a forked child may keep the connection open."""
    hello: TrainerHello | None = None
    asks: bool = False
    """True while it waits for a `RestoreStart`."""
    durable: set[Version] = field(default_factory=set)
    """Versions that it waits for to become durable."""
    _inbox: collections.deque[Heard] = field(default_factory=collections.deque)
    """Messages received but not acted on yet."""

    @classmethod
    def of(cls, link: Link) -> Member | None:
        """Return the trainer at the other end; None, with the link closed, if it is dead."""
        try:
            return cls(link, os.pidfd_open(link.peer))
        except ProcessLookupError:
            link.close()
            return None

    @property
    def rank(self) -> int:
        """Global rank; raises `LinkError` before its first message."""
        if self.hello is None:
            raise LinkError("the first message must be Hello")
        return self.hello.rank

    @property
    def lineage(self) -> int:
        """Round of its world; -1 before its first message."""
        return self.hello.lineage if self.hello else -1

    @property
    def has_unheard(self) -> bool:
        """True if a received message was not acted on yet: the poll will not report it again."""
        return bool(self._inbox)

    @property
    def is_done(self) -> bool:
        """True if no message will come any more."""
        return self.link.closed and not self._inbox

    def hear(self) -> Message | None:
        """Return the next message, if any; raises `LinkError` for a malformed one."""
        found = self._inbox.popleft() if self._inbox else self._receive()
        if isinstance(found, LinkError):
            raise found
        return found

    def take_in(self) -> Iterator[Message]:
        """Receive all messages sent so far, to act on them later; yield each new one."""
        while not self.link.closed and (found := self._receive()) is not None:
            self._inbox.append(found)
            if not isinstance(found, LinkError):
                yield found

    def _receive(self) -> Heard | None:
        try:
            found = self.link.receive(0)
        except LinkError as error:
            return error
        if found is None:
            return None
        for fd in found[1]:  # a trainer's messages carry no descriptor
            os.close(fd)
        return found[0]

    def has_last_words(self) -> bool:
        """Tell whether a dead trainer has sent messages that were not received yet."""
        if self._inbox or self.link.closed:
            return bool(self._inbox)
        poll = select.poll()
        poll.register(self.link, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close the connection."""
        self.link.close()
        os.close(self.pidfd)
