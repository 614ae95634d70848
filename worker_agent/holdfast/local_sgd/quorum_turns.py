"""A-EDiT without a barrier on real ranks: replicas meet in a store, and nobody waits for the late.

Belongs here: clock and store, and the ranks of a replica that go together. Does not belong here:
the decisions (`policies.meeting`, `policies.quorum`), the round itself (`quorum_rounds`).

Only the first rank of a replica looks at the store. Its ranks learn what it saw by scalar
all-reduces, so all shards of a replica are in a round, or none is.

| key, of meeting m | what |
|---|---|
| `m/arrived` | a line of each replica that came, in that order, also after it was closed |
| `m/closed` | the decision: the first that anybody has proposed |
| `closed` | meetings that were closed, for those who have missed some |
| `exhausted` | replicas without data |
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.policies import meeting, quorum
from holdfast.local_sgd.policies.meeting import Arrived, Closed
from holdfast.local_sgd.policies.quorum import Lags
from holdfast.local_sgd.policies.schedule import Entry, Progress, Turn, stepped
from holdfast.local_sgd.sync.group import Group, SyncError
from holdfast.local_sgd.turns import rounds_store, told_by_first

if TYPE_CHECKING:
    import torch.distributed as dist

log: Final = logging.getLogger("holdfast")
POLL: Final = 0.005
"""Seconds between two looks of a rank that waits: far below a step, and a few per cent of a core.
"""
LOOK: Final = 1.0
"""Longest time for which a first rank looks before its replica compares: far less than the deadline
of the collective in which its other ranks wait."""
KEPT: Final = 64
"""Meetings whose keys stay in the store. Who has missed more learns of the newest only."""
_numbers: Final = itertools.count()
"""One prefix in the store for each training of a process."""
_FAILED: Final = 1.0 + len(Entry)
_ENTRIES: Final = tuple(Entry)


@dataclasses.dataclass(frozen=True, slots=True)
class Met:
    """A meeting that this replica was in."""

    entry: Entry
    """`ROUND` or `LAST`."""
    replicas: tuple[int, ...]
    """In the round, in ascending order."""
    number: int
    """Of the meeting."""


@dataclasses.dataclass(slots=True)
class _Watch:
    """The last meeting that this replica was in, to which others may come too late."""

    number: int
    quorum_at: float
    seen: dict[int, Arrived]


class QuorumTurns:
    """One replica's turns; every rank of it has one, and calls it at the same steps."""

    def __init__(
        self,
        config: LocalSGDConfig,
        replicas: Group,
        own: Group,
        *,
        store: dist.Store | None = None,
        clock: Callable[[], float] = time.monotonic,
        has_changed: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start the clock.

        Args:
            config: τ, quorum and window.
            replicas: The ranks that hold this rank's shards.
            own: The ranks of this replica.
            store: A store of all replicas; None: that of the default process group.
            clock: Seconds that never go back.
            has_changed: Tells of a newer roster, where members come and go.
        """
        self.number = next(_numbers)
        """Of this training in its process."""
        self.store = rounds_store("quorum", store, self.number)
        """Where replicas meet."""
        self._config, self._replicas, self._own, self._clock = config, replicas, own, clock
        self._has_changed, self._counted = has_changed, False
        self._look = min(LOOK, own.timeout / 4)
        self._live = frozenset(range(replicas.size))
        self._meeting, self._lags = 0, Lags()
        self._holders = self._live
        """Who has the newest round: who was in it. A meeting of others only makes none."""
        self._watch: _Watch | None = None
        self._stepped_at, self._step_seconds = clock(), 0.0
        self.turn = Turn(round=0, started=clock())

    def move(self, replicas: Group, store: dist.Store | None, rounds: int, steps: int) -> None:
        """Go on with other members, who stand at one round and meet in another store.

        Args:
            replicas: Who holds this rank's shards now.
            store: Theirs alone; None: that of the default process group.
            rounds: That are made.
            steps: This replica's, since the last of these.
        """
        if store is not None:
            self.store, self._counted = rounds_store("quorum", store), False
        self._replicas, self._live = replicas, frozenset(range(replicas.size))
        self._meeting, self._watch, self._holders = 0, None, self._live
        exhausted = self.turn.exhausted
        self.restart(steps, rounds)
        self.turn = dataclasses.replace(self.turn, exhausted=exhausted)

    def restart(self, steps: float = 0, rounds: int = 0) -> None:
        """Start the time again, after a warm-up or a load.

        Args:
            steps: This replica's, since the last round that it was in.
            rounds: Rounds so far; all replicas give the same number.
        """
        self._stepped_at = self._clock()
        self.turn = Turn(round=rounds, started=self._stepped_at, steps=round(steps))

    def settled(self) -> None:
        """Go on after a round that a change of members had left over."""
        now = self._clock()
        self._stepped_at, self.turn = now, dataclasses.replace(self.turn, started=now, steps=0)

    def resume(self) -> None:
        """Go on after a round, whose time is no part of the next step."""
        self._stepped_at = self._clock()

    def stepped(self) -> Met | None:
        """Count a step; return the meeting that follows it.

        Returns:
            None: the replica trains on; nobody has called, or its meeting has closed without it.

        Raises:
            SyncError: a rank of this replica is gone, or no quorum came in time.
        """
        now = self._clock()
        self._step_seconds, self._stepped_at = now - self._stepped_at, now
        self.turn = stepped(self.turn)
        return self._meet() if self._share(lambda: self._sees_a_call(now)) else None

    def exhausted(self) -> Met:
        """Wait for the next round without a step, since this replica has no more data.

        Returns:
            A round, or the last one if no replica has data; after a `ROUND` call it again.

        Raises:
            SyncError: a rank is gone: nobody has called for much longer than a round takes.
        """
        if not self.turn.exhausted:
            self.turn, self._counted = dataclasses.replace(self.turn, exhausted=True), False
        patience = self._replicas.timeout + self._config.local_sgd_sync_time
        deadline = self._clock() + patience
        while True:
            if self._share(self._waits):
                if (met := self._meet()) is not None:
                    return met
                deadline = self._clock() + patience
            if self._own.max_scalars([float(self._clock() > deadline)])[0]:
                raise SyncError(
                    f"no replica has called a round for {patience:g} s, and not all have come to "
                    "the end of their data: one is gone. Restart the job from its newest checkpoint"
                )

    def _share(self, look: Callable[[], bool]) -> bool:
        """Tell this replica's ranks if somebody calls, and the rounds that were made without it."""
        called, rounds = told_by_first(
            self._own, lambda: [float(look()), float(self.turn.round)], 2, self._has_changed
        )
        if rounds > self.turn.round:
            self.turn = dataclasses.replace(self.turn, round=int(rounds))
        return called > 0

    def _sees_a_call(self, now: float) -> bool:
        """Return if some replica waits for others, or this one has to call them."""
        self._pass_over(now)
        self._look_for_late(now)
        if self.store.check([self._key("arrived")]):
            return True
        return meeting.calls(self.turn, now, self._step_seconds, self._lags, self._config)

    def _waits(self) -> bool:
        """Look for a call, for a while, as a replica without data."""
        if not self._counted:
            self.store.add("exhausted", 1)
            self._counted = True
        until = self._clock() + self._look
        while (now := self._clock()) < until and not self._has_changed():
            self._pass_over(now)
            all_done = self.store.add("exhausted", 0) == self._replicas.size
            if all_done or self.store.check([self._key("arrived")]):
                return True
            time.sleep(POLL)
        return False

    def _pass_over(self, now: float) -> None:
        """Go to the newest meeting, past those that were closed without this replica."""
        newest = max(self._meeting, self.store.add("closed", 0))
        while self.store.check([f"{newest}/closed"]):
            newest += 1
        if newest == self._meeting:
            return
        missed = self._read(newest - 1)
        self._arrive(newest - 1)  # so the others learn how late it is
        self._meeting, self._lags, self._watch = newest, missed.lags, None
        self._holders = frozenset(missed.holders)
        # It closed during the last step. The earliest time has this replica call early enough.
        started = now - self._step_seconds
        self.turn = dataclasses.replace(self.turn, round=missed.rounds, started=started)

    def _look_for_late(self, now: float) -> None:
        """Note who has come since, for the window of the next meeting."""
        watch = self._watch
        if watch is not None and len(watch.seen) < len(self._live):
            _note(watch.seen, self.store.get(f"{watch.number}/arrived"), now)

    def _meet(self) -> Met | None:
        """Arrive, and wait until the meeting closes; None: without this replica, or no round."""
        deadline = self._clock() + self._replicas.timeout
        seen: dict[int, Arrived] = {}
        if self._own.rank == 0:
            self._arrive(self._meeting)
        while True:
            closed = self._decided(seen, deadline)
            told = self._tell(closed, is_late=self._clock() > deadline)
            if told is not None:
                return self._leave(told, seen)

    def _decided(self, seen: dict[int, Arrived], deadline: float) -> Closed | None:
        """Look for the decision, on the first rank; where members change all raise SyncError."""
        found: list[Closed] = []

        def look() -> list[float]:
            closed = self._wait(seen, deadline)
            found.extend(() if closed is None else (closed,))
            return []

        told_by_first(self._own, look, 0, self._has_changed)
        return found[0] if found else None

    def _wait(self, seen: dict[int, Arrived], deadline: float) -> Closed | None:
        """Look for the decision for a while; propose one when it is time."""
        until = min(self._clock() + self._look, deadline)
        while True:
            if self.store.check([self._key("closed")]):
                return self._read(self._meeting)
            now = self._clock()
            _note(seen, self.store.get(self._key("arrived")), now)
            before = Closed(
                *(Entry.SKIP, self.turn.round, (), self._learned(), self._replicas.rank),
                tuple(sorted(self._holders)),
            )
            proposal = meeting.propose(now, seen, self._live, before, self._config)
            if proposal.closed is not None:
                self._close(proposal.closed, proposal.reason)
            elif now >= until or self._has_changed():
                return None
            else:
                time.sleep(POLL)

    def _close(self, closed: Closed, reason: str) -> None:
        """Give the decision to the store, which keeps the first."""
        text = closed.to_text()
        if self.store.compare_set(self._key("closed"), "", text) != text.encode():
            return
        self.store.add("closed", 1)
        log.debug("local SGD: meeting %d: %s: %s", self._meeting, text, reason)
        for name in ("arrived", "closed") if self._meeting >= KEPT else ():
            self.store.delete_key(f"{self._meeting - KEPT}/{name}")

    def _learned(self) -> Lags:
        """Return the lags with those of the last meeting, which is over for the late too."""
        if self._watch is None:
            return self._lags
        begun = self._watch.quorum_at
        past = (one.at - begun for one in self._watch.seen.values())
        return quorum.learn(self._lags, past, self._config)

    def _tell(self, closed: Closed | None, *, is_late: bool) -> Closed | None:
        """Give all ranks of this replica what its first has read; None: nothing yet."""
        values = [-1.0] * (3 + len(self._live))
        if closed is not None:
            values[:3] = [1.0 + _ENTRIES.index(closed.entry), closed.rounds, self._meeting]
            values[3:] = [float(one in closed.replicas) for one in range(len(self._live))]
        elif is_late and self._own.rank == 0:
            values[0] = _FAILED
        code, rounds, number, *there = self._own.max_scalars(values)
        if code == _FAILED:
            raise SyncError(
                f"quorum={self._config.quorum:g}: too few of {len(self._live)} replicas came to a "
                f"round in {self._replicas.timeout:g} s; the units are unchanged. Look which are "
                "gone, and restart the job from its newest checkpoint"
            )
        if code < 0:
            return None
        self._meeting = int(number)
        replicas = tuple(one for one, here in enumerate(there) if here > 0)
        lags = closed.lags if closed is not None else self._lags
        holders = closed.holders if closed is not None else ()
        return Closed(_ENTRIES[int(code) - 1], int(rounds), replicas, lags, 0, holders)

    def _leave(self, closed: Closed, seen: dict[int, Arrived]) -> Met | None:
        """Go on behind a meeting."""
        number, now = self._meeting, self._clock()
        self._meeting, self._lags, self._watch = number + 1, closed.lags, None
        self._holders = frozenset(closed.holders) or self._holders
        self._stepped_at = now
        self.turn = dataclasses.replace(self.turn, round=closed.rounds, started=now)
        is_in = self._replicas.rank in closed.replicas
        if closed.entry is Entry.SKIP or not is_in:
            return None
        if seen:
            begun = meeting.quorum_at(seen, len(self._live), self._config)
            self._watch = _Watch(number, begun, seen)
        self.turn = dataclasses.replace(self.turn, steps=0)
        return Met(closed.entry, closed.replicas, number)

    def _arrive(self, number: int) -> None:
        progress = Progress(self.turn.steps, self.turn.exhausted)
        store: Any = self.store  # torch's own types leave out append()
        store.append(f"{number}/arrived", meeting.arrival(self._replicas.rank, progress))

    def _read(self, number: int) -> Closed:
        return Closed.from_text(self.store.get(f"{number}/closed").decode())

    def _key(self, name: str) -> str:
        return f"{self._meeting}/{name}"


def _note(seen: dict[int, Arrived], text: bytes, now: float) -> None:
    """Add who has arrived since."""
    for replica, progress in meeting.arrivals(text.decode()).items():
        seen.setdefault(replica, Arrived(now, progress))
