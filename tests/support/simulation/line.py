"""An agent's process as others see it: its clock, its stream to a master, and standing still.

Belongs here: dialling, being welcomed, losing a stream, what is said and said again, SIGSTOP.
Does not belong here: what a message means (`agent`).
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast_agent.policies import liveness
from holdfast_agent.policies.master_messages import Statements
from holdfast_master.inputs import Connected, Received
from holdfast_wire.messages import Fence, Hello
from simulation.network import Stream
from simulation.workers import Workers

if TYPE_CHECKING:
    from simulation.job import Job
    from simulation.master import Master

WELCOME_SECONDS = 5.0
"""holdfast_agent.policies.liveness.WELCOME_SECONDS."""
LEASE_LIMIT = 4.0


class Line:
    """A process with one stream at a time."""

    workers_type: type[Workers] = Workers

    def __init__(self, job: Job, rank: int, number: int, pod_uid: str) -> None:
        self.job, self.rank, self.pod_uid = job, rank, pod_uid
        self.agent_id = f"a{number}"
        self.local = job.scenario.local
        self.sdk = job.scenario.sdk
        self.luck = random.Random(f"{job.scenario.seed}/{rank}/{number}")
        self.pace = 1.0 + self.luck.uniform(-job.scenario.skew, job.scenario.skew)
        """Its seconds are this long."""
        self.alive = True
        self.frozen = False
        self.frozen_at = 0.0
        self.deferred: list[Callable[[], None]] = []
        """What happens once a frozen process goes on."""
        self.cut_up = self.cut_down = self.cut_peers = 0
        self.lag = self.drag = 0.0
        self.stream: Stream | None = None
        self.attempt = 0
        self.no_master_since = job.time.now
        self.accepted = Fence()
        self.statements = Statements()
        self.lease_held = True
        self.workers: Workers = self.workers_type(self)

    def hello(self) -> Hello:
        """Return the greeting with all that a new master must know."""
        raise NotImplementedError

    def receive(self, stream: Stream, response: Any) -> None:
        """A message of a master arrived."""
        raise NotImplementedError

    def begun(self, current: Any) -> None:
        """The processes of a round exist."""
        raise NotImplementedError

    def workers_dead(self) -> None:
        """Nothing of the workers lives."""
        raise NotImplementedError

    # -------------------------------------------------------------------------------------- time

    def later(self, delay: float, what: Callable[..., None], *args: Any) -> None:
        """Have this process do something after a delay of its own clock, s."""
        self.job.time.after(delay * self.pace, self._on_time, what, args)

    def _on_time(self, what: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        if self.frozen:
            self.deferred.append(lambda: what(*args))
        else:
            what(*args)

    @property
    def now(self) -> float:
        """Its monotonic clock, s."""
        return self.job.time.now / self.pace

    @property
    def now_ns(self) -> int:
        """The same, ns; never 0."""
        return int(self.now * 1e9) + 1

    # ------------------------------------------------------------------------------------ stream

    def dial(self) -> None:
        """Open a stream, if there is anything to open one to."""
        if self.stream is not None:
            return
        host = self.job.endpoint(self)
        if host is None or self.cut_up or self.cut_down:
            self._again()
            return
        stream = self.stream = self.job.connect(self, host)
        stream.send_up(Connected(stream.number, self.hello(), self.accepted))
        self.later(WELCOME_SECONDS, self._welcome_due, stream)

    def _again(self) -> None:
        self.attempt += 1
        self.later(liveness.reconnect_pause(self.attempt, self.luck.random()), self.dial)

    def _welcome_due(self, stream: Stream) -> None:
        if self.stream is stream and not stream.welcomed:
            self._hang_up(stream)

    def _hang_up(self, stream: Stream) -> None:
        stream.end_at_agent(0.0)
        stream.end_at_host(0.01)

    def dropped(self, stream: Stream) -> None:
        """The stream has ended, as this side sees it."""
        if self.stream is not stream or not self.alive:
            return
        if self.frozen:
            self.deferred.append(lambda: self.dropped(stream))
            return
        self.stream = None
        if stream.welcomed:
            self.no_master_since, self.attempt = self.now, -1
        self._again()

    @property
    def connected(self) -> bool:
        """A Welcome came and the stream has not ended since."""
        return self.stream is not None and self.stream.welcomed

    def reaches(self, master: Master) -> bool:
        """Return whether a welcomed, unhindered stream leads to this very master."""
        stream, blocked = self.stream, self.cut_up or self.cut_down
        host = stream.host if stream is not None and stream.welcomed else None
        return host is master and not (master.frozen or master.busy or blocked)

    def report(self, message: Any, number: int | None = None) -> None:
        """Send a message, about a round where it is about workers."""
        self.statements.note(message, number or 0, self.now)
        if self.connected and not self.frozen and self.stream is not None:
            about = self.accepted.round if number is None else number
            fence = dataclasses.replace(self.accepted, round=about)
            self.stream.send_up(Received(self.stream.number, fence, message))

    def peers_reachable(self) -> None:
        """Other agents are reached again."""
        self.cut_peers -= 1

    def quick_again(self) -> None:
        """The node is as fast as others."""
        self.lag = self.drag = 0.0

    # -------------------------------------------------------------------------------------- freeze

    def freeze(self, *, node: bool = False) -> None:
        """SIGSTOP of the agent; `node`: of everything on its node, the zygote too."""
        if self.frozen:
            return
        self.frozen, self.frozen_at = True, self.job.time.now
        current = self.workers.current
        if node:
            self.workers.pause(paused=True)
        elif current is not None:
            self.job.time.after(LEASE_LIMIT, self._zygote_kills, current, self.frozen_at)
        if self.stream is not None:
            self.job.time.after(
                self.luck.uniform(2.0, 4.0), self._unanswered, self.stream, self.frozen_at
            )

    def _zygote_kills(self, current: Any, since: float) -> None:
        if self.frozen and self.frozen_at == since and self.alive:
            self.workers.expire(current)

    def _unanswered(self, stream: Stream, since: float) -> None:
        if self.frozen and self.frozen_at == since:
            stream.end_at_host(0.0)
            stream.end_at_agent(0.0)

    def thaw(self) -> None:
        """SIGCONT: the lease is looked at first, then everything that has come."""
        if not self.frozen or not self.alive:
            return
        self.frozen = False
        age = int((self.job.time.now - self.frozen_at) * 1e9)
        over = liveness.lease_ran_out(age_ns=age, limit_ns=int(LEASE_LIMIT * 1e9))
        current = self.workers.current
        if self.lease_held and over and current is not None and not current.dead:
            self.lease_held = False
            self.workers.expire(current)
        self.workers.pause(paused=False)
        self.job.checks.thawed(self, age * 1e-9, LEASE_LIMIT)
        deferred, self.deferred = self.deferred, []
        for what in deferred:
            if self.alive:
                what()
