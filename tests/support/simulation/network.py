"""Streams between agents and masters: delays, order, partitions, and how streams end.

Belongs here: what arrives when, and what never does. Does not belong here: what is sent.

A stream is a TCP connection: in each direction messages keep their order. While a direction is
cut they wait; if the cut lasts longer than the keepalive, the stream ends on both sides and they
are lost. Two streams of one agent are not ordered among each other.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any, Protocol

from holdfast_master.inputs import Connected, Disconnected, Input, Received
from simulation.clock import VirtualTime

KEEPALIVE = (2.0, 4.0)
"""A peer that does not answer is given up after this long, s: see holdfast_wire.channel."""


class Host(Protocol):
    """A master's end of streams."""

    up: bool
    streams: dict[int, Stream]

    def push(self, event: Input) -> None:
        """Something arrived."""


class Caller(Protocol):
    """An agent's end of streams."""

    rank: int
    luck: random.Random
    cut_up: int
    """Reasons why nothing of it arrives at a master."""
    cut_down: int
    """Reasons why nothing of a master arrives at it."""
    lag: float
    """Additional delay of each message, s."""

    def receive(self, stream: Stream, response: Any) -> None:
        """A message of the master arrived."""

    def dropped(self, stream: Stream) -> None:
        """The stream has ended, as this side sees it."""


@dataclasses.dataclass(eq=False)
class Stream:
    """One connection of an agent to a master."""

    number: int
    time: VirtualTime
    agent: Caller
    host: Host
    welcomed: bool = False
    up_at: float = 0.0
    down_at: float = 0.0
    held_up: list[Input] = dataclasses.field(default_factory=list)
    held_down: list[Any] = dataclasses.field(default_factory=list)
    agent_open: bool = True
    host_open: bool = True

    def _arrival(self, before: float) -> float:
        delay = self.agent.luck.uniform(0.0005, 0.01) + self.agent.lag
        return max(self.time.now + delay, before)

    def send_up(self, event: Connected | Received) -> None:
        """The agent sends."""
        if self.agent.cut_up:
            self.held_up.append(event)
            return
        self.up_at = self._arrival(self.up_at)
        self.time.at(self.up_at, self._arrive_up, event)

    def _arrive_up(self, event: Input) -> None:
        if self.host_open and self.host.up:
            self.host.push(event)

    def send_down(self, response: Any) -> None:
        """The master sends."""
        if self.agent.cut_down:
            self.held_down.append(response)
            return
        self.down_at = self._arrival(self.down_at)
        self.time.at(self.down_at, self._arrive_down, response)

    def _arrive_down(self, response: Any) -> None:
        if self.agent_open:
            self.agent.receive(self, response)

    def healed(self) -> None:
        """Send the messages that waited for the end of a cut."""
        if not self.agent.cut_up:
            held_up, self.held_up = self.held_up, []
            for event in held_up:
                self.send_up(event)  # type: ignore[arg-type]
        if not self.agent.cut_down:
            held_down, self.held_down = self.held_down, []
            for response in held_down:
                self.send_down(response)

    def end_at_agent(self, delay: float) -> None:
        """The agent's side learns after a delay that the stream is gone."""
        self.time.after(delay, self._end_at_agent)

    def _end_at_agent(self) -> None:
        if self.agent_open:
            self.agent_open = False
            self.held_up.clear()
            self.agent.dropped(self)

    def end_at_host(self, delay: float) -> None:
        """The master's side learns after a delay that the stream is gone."""
        self.time.at(max(self.time.now + delay, self.up_at), self._end_at_host)

    def _end_at_host(self) -> None:
        if self.host_open:
            self.host_open = False
            self.held_down.clear()
            self.host.streams.pop(self.number, None)
            if self.host.up:
                self.host.push(Disconnected(self.number))

    def reset(self) -> None:
        """The connection breaks: both sides learn of it soon, if nothing is in the way."""
        luck, cut = self.agent.luck, self.agent.cut_up or self.agent.cut_down
        slow = luck.uniform(*KEEPALIVE)
        self.end_at_agent(slow if cut else luck.uniform(0.0, 0.01))
        self.end_at_host(slow if cut else luck.uniform(0.0, 0.02))

    def keep_alive(self) -> None:
        """A ping is due: it is not answered while a direction is cut."""
        if self.agent.cut_up or self.agent.cut_down:
            self._end_at_agent()
            self.end_at_host(self.agent.luck.uniform(0.0, 1.0))
