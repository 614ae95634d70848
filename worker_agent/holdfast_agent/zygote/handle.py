"""The agent's handle on its zygote: start it, tell it what to do, hear what happened.

Nothing here waits: commands are one datagram each, events are read when `fileno()` is readable.
What the zygote does with a command is `loop`; what the values mean is `messages`.
"""

from __future__ import annotations

import signal
from collections.abc import Collection
from typing import TYPE_CHECKING

from holdfast_agent.zygote.messages import Event, SpawnRound
from holdfast_agent.zygote.settings import ZygoteSettings

if TYPE_CHECKING:
    from holdfast.page import Page


class Zygote:
    """A process that has imported torch and forks workers on command.

    Life: `start` once, from the agent's main thread, before grpc is imported and before an event
    loop exists; then `loop.add_reader(zygote.fileno(), …)` and `receive()` in its callback;
    `shutdown()` at the end. Every method raises `ZygoteError` when the zygote is gone.
    """

    pid: int
    """The zygote's process; 0 before `start`."""

    def start(self, settings: ZygoteSettings, page: Page) -> None:
        """Fork the zygote. Returns at once; `Ready` follows when the preload list is imported.

        Raises `ZygoteError` when grpc is imported already or this is not the main thread.
        """
        raise NotImplementedError

    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` has something."""
        raise NotImplementedError

    def receive(self) -> list[Event]:
        """Return all events that have arrived, without waiting; `ZygoteExited` is the last ever."""
        raise NotImplementedError

    def spawn(self, spawn_round: SpawnRound) -> None:
        """Start the workers of a round → `WorkerStarted` each (or `Failure` and `RoundDead`).

        The page's slots must have been reset for this round, and `RoundDead` of the round before
        received (or no round spawned yet). Without ranks: `RoundDead` at once.
        """
        raise NotImplementedError

    def kill_round(
        self, round_number: int, sig: int = signal.SIGKILL, grace_s: float = 0.0
    ) -> None:
        """End a round → `WorkerExited` each, then `RoundDead`.

        SIGKILL goes to every process of the round at once. Any other signal goes to the workers'
        process groups, and SIGKILL follows to what is left after `grace_s` seconds. May be repeated
        (a later SIGKILL cuts a grace short) and is right after all workers have exited too, when
        processes that they left behind must go. A round that is dead or unknown: `RoundDead`.
        """
        raise NotImplementedError

    def dump_stacks(self, round_number: int) -> None:
        """Make each worker append all its threads' stacks to its `stacks` file → `StacksDumped`.

        Works while a rank is blocked in a collective.
        """
        raise NotImplementedError

    def prepare_store(self, store_id: str, host: str) -> None:
        """Start a process whose TCPStore listens on the IP `host` → `StoreReady` | `StoreExited`.

        It belongs to no round and lives until `release_store`, `shutdown`, a stale lease or the
        zygote's end.
        """
        raise NotImplementedError

    def release_store(self, store_id: str) -> None:
        """End a store process → `StoreExited` (nothing for an unknown one)."""
        raise NotImplementedError

    def shutdown(self) -> None:
        """Kill every descendant of the zygote and end it → … `ZygoteExited`. Idempotent."""
        raise NotImplementedError

    def kill_orphans(self, spare: Collection[int]) -> int:
        """After `ZygoteExited`: SIGKILL and reap descendants of this process but `spare`'s trees.

        Grandchildren of a zygote that was killed itself have become the agent's children, because
        the agent is a subreaper. Returns how many were found. Blocks for milliseconds.
        """
        raise NotImplementedError
