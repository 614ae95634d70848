"""One trainer that is connected to its keeper: what it says, in its order, and when it is gone.

Does not belong here: what its words lead to (`service`).
"""

from __future__ import annotations

import collections
import os
import select
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.flash.decide.slots import Version
from holdfast.flash.link import Hello, Link, LinkError, Message

Heard = Message | LinkError
"""A message, or why it is none."""


@dataclass(eq=False, slots=True)
class Member:
    """One connected trainer."""

    link: Link
    pidfd: int
    """Tells of its death; the connection alone does not, where a forked child holds it too."""
    hello: Hello | None = None
    asks: bool = False
    """It waits for an `Origin`."""
    durable: set[Version] = field(default_factory=set)
    """What it waits for."""
    _inbox: collections.deque[Heard] = field(default_factory=collections.deque)
    """What it has said and nobody has acted on."""

    @classmethod
    def of(cls, link: Link) -> Member | None:
        """Return the trainer at the other end; None, with the link closed, if it is gone."""
        try:
            return cls(link, os.pidfd_open(link.peer))
        except ProcessLookupError:
            link.close()
            return None

    @property
    def rank(self) -> int:
        """Its global rank; raises `LinkError` before its first word."""
        if self.hello is None:
            raise LinkError("the first message must be Hello")
        return self.hello.rank

    @property
    def lineage(self) -> int:
        """The round of its world; -1 before its first word."""
        return self.hello.lineage if self.hello else -1

    @property
    def has_unheard(self) -> bool:
        """True when something was taken in that nobody has acted on: that wakes nobody any more."""
        return bool(self._inbox)

    @property
    def is_done(self) -> bool:
        """True when nothing more will be heard of it."""
        return self.link.closed and not self._inbox

    def hear(self) -> Message | None:
        """Return the next message, if there is one; raises `LinkError` for what is none."""
        found = self._inbox.popleft() if self._inbox else self._receive()
        if isinstance(found, LinkError):
            raise found
        return found

    def take_in(self) -> Iterator[Message]:
        """Receive all that was said, to be acted on later; yield each new message."""
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
        for fd in found[1]:  # no message from a trainer carries one
            os.close(fd)
        return found[0]

    def has_last_words(self) -> bool:
        """Tell whether a dead trainer has said what is still to be heard."""
        if self._inbox or self.link.closed:
            return bool(self._inbox)
        poll = select.poll()
        poll.register(self.link, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Let go of it."""
        self.link.close()
        os.close(self.pidfd)
