"""The processes of one round: who lives, who is to be killed when, and when all are gone.

A zygote has at most one round at a time, so every child that it did not fork itself (an orphan
that a worker left behind) belongs to that round. Forking is `loop`'s.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from holdfast_agent.zygote.messages import Event, RoundDead, SpawnRank, WorkerExited
from holdfast_agent.zygote.tree import children, descendants, kill_below, signal_each, signal_group

_LOOK_AGAIN_S = 0.003
"""Between two looks at processes that are being killed; their deaths wake the loop anyway."""


@dataclass(slots=True)
class LiveRound:
    """A round with living processes."""

    number: int
    workers: dict[int, SpawnRank] = field(default_factory=dict)
    """Living workers by pid."""
    kill_at: float | None = None
    """When (time.monotonic) everything gets SIGKILL, again at each look; None: not to be killed."""


class Rounds:
    """Keeps the current round."""

    def __init__(
        self, send: Callable[[Event], None], spared: Callable[[], Collection[int]]
    ) -> None:
        """`spared` returns the children of the zygote that belong to no round (stores)."""
        self._send = send
        self._spared = spared
        self.current: LiveRound | None = None

    def begin(self, number: int) -> LiveRound:
        """Open a round; the one before must be dead."""
        self.current = LiveRound(number)
        return self.current

    def reaped(self, pid: int, status: int) -> SpawnRank | None:
        """Report the end of a worker; returns its description, None for another process."""
        current = self.current
        rank = current.workers.pop(pid, None) if current else None
        if current is None or rank is None:
            return None
        signaled = os.WIFSIGNALED(status)
        self._send(
            WorkerExited(
                round=current.number,
                local_rank=rank.local_rank,
                pid=pid,
                exit_code=None if signaled else os.WEXITSTATUS(status),
                signal=os.WTERMSIG(status) if signaled else None,
                mono_ns=time.monotonic_ns(),
            )
        )
        return rank

    def kill(self, number: int, sig: int, grace_s: float) -> None:
        """Signal a round as `Zygote.kill_round` says."""
        current = self.current
        if current is None or current.number != number:
            self._send(RoundDead(number))
            return
        deadline = time.monotonic() + (0.0 if sig == signal.SIGKILL else max(grace_s, 0.0))
        current.kill_at = deadline if current.kill_at is None else min(deadline, current.kill_at)
        if sig == signal.SIGKILL:
            kill_below(os.getpid(), self._spared())
            return
        for pid in current.workers:
            signal_group(pid, sig)
        signal_each(descendants(self._orphans()), sig)

    def _orphans(self) -> list[int]:
        """Return the children that no command started: left behind by workers."""
        known = {*self._spared(), *(self.current.workers if self.current else ())}
        return [child for child in children(os.getpid()) if child not in known]

    def advance(self) -> None:
        """Carry on a kill that is due, and report a round whose last process is gone."""
        current = self.current
        if current is None:
            return
        if current.kill_at is not None and time.monotonic() >= current.kill_at:
            kill_below(os.getpid(), self._spared())
        if not current.workers and not self._orphans():
            self.current = None
            self._send(RoundDead(current.number))

    def next_look_s(self) -> float | None:
        """Return seconds until `advance` has something to do, None when only events matter."""
        if self.current is None or self.current.kill_at is None:
            return None
        return max(_LOOK_AGAIN_S, self.current.kill_at - time.monotonic())
