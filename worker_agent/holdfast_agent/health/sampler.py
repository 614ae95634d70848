"""Samples the collectives of the local ranks for the master, at a cost that is measured."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import functools
import itertools
import logging
import math
import statistics
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from holdfast import loop_errors
from holdfast.page import Page
from holdfast_agent.health.worker_server import (
    FlightEntry,
    WorkerServer,
    WorkerServerError,
    parse_flight_record,
)
from holdfast_agent.policies import collective_steps, schedules
from holdfast_agent.policies.collective_steps import GroupWindow, StepGuess, StepMark
from holdfast_agent.policies.round_phases import Orders
from holdfast_agent.policies.schedules import ClockAnswer, ClockOffset
from holdfast_agent.workers.rounds import Round
from holdfast_agent.workers.runner import RoundRunner
from holdfast_wire.messages import (
    ClockProbe,
    ClockReply,
    CollectiveSamples,
    GroupCollectives,
    HealthPolicy,
    RankCollectives,
)

log = logging.getLogger(__name__)

COST_SHARE: Final = 0.0015
"""Share of a step that samples may take. XPUTimer, the best of the field, states 0.43 %."""
_COSTS_KEPT: Final = 8
"""Newest answers of a rank: the fastest of them is the cost, the others waited for a CPU."""
LOOKS_IN_LIMIT: Final = 4
"""Samples in the shortest time without progress that counts as a hang."""
ANSWER_SECONDS: Final = 2.0
"""For one rank. A rank without an answer is asked again at the next sample."""
PROBES: Final = 3
"""Clock probes before the first sample: the first answer is slow."""
MOST_ENTRIES: Final = 256
"""Newest collectives of a group in one message."""
MOST_GROUPS: Final = 8


@dataclasses.dataclass(slots=True)
class RankSamples:
    """Knowledge of one rank of the round."""

    sent: dict[str, int] = dataclasses.field(default_factory=dict)
    """Sequence number of the newest collective that the master has, by group."""
    guess: StepGuess = dataclasses.field(default_factory=StepGuess)
    seconds: collections.deque[float] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_COSTS_KEPT)
    )
    """Time in which the rank gave each of the newest answers, s."""


class Sampler:
    """Asks the ranks of the runner's round."""

    def __init__(
        self,
        runner: RoundRunner,
        report: Callable[[Any, int], None],
        pause: Callable[[float], float] = lambda period: period,
        spread: Callable[[], float] = lambda: 0.0,
        page: Page | None = None,
    ) -> None:
        """Ask no rank yet.

        pause: Returns the time to the next work of a period, both in s.
        spread: Returns the time that a message waits, s, so that those of thousands of nodes
            do not reach the master at once.
        page: Has the steps of ranks that report them; None: none does.
        """
        self._page = page
        self._runner, self._report, self._pause, self._spread = runner, report, pause, spread
        self.policy: HealthPolicy | None = None
        """The job's; None: the master judges no rank, so nothing is sampled."""
        self.ranks: dict[int, RankSamples] = {}
        self._round = 0
        self._due = 0.0
        """Monotonic time of the next sample of this round, s."""
        self._own_seconds: collections.deque[float] = collections.deque(maxlen=_COSTS_KEPT)
        """CPU time of this process for each of the newest samples, s."""
        self._probe_ids = itertools.count(1)
        self._probes: dict[int, float] = {}
        self._answers: collections.deque[ClockAnswer] = collections.deque(maxlen=schedules.KEPT)
        self._ahead: float | None = None
        """Unix clock less monotonic clock at the last sample, s."""

    def welcomed(self, policy: HealthPolicy | None) -> None:
        """Take the job's policy; another master may have another clock."""
        self.policy = policy
        self._forget_clock()

    def follow(self, policy: HealthPolicy | None) -> None:
        """Take the job's policy after an edit; the next sample is due by it."""
        self.policy, self._due = policy, 0.0

    def guess(self, local_rank: int, round_number: int) -> StepGuess | None:
        """Return the guessed progress of a rank of a round; None: nothing is known of it."""
        known = self.ranks.get(local_rank) if round_number == self._round else None
        if known is None:
            return None
        return known.guess if known.guess.period or known.guess.expected else None

    def on_clock(self, reply: ClockReply) -> None:
        """Take the answer to a clock probe."""
        sent = self._probes.pop(reply.probe_id, None)
        if sent is not None:
            self._answers.append(ClockAnswer(sent, reply.master_unix, time.time()))

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await asyncio.sleep(self._rest(self._due))
            current = self._runner.current
            if self.policy is None or current is None or current.dead:
                continue
            if Orders.KILLED in current.orders:
                continue
            # A new round is looked at soon: whether it has made a step must be known if it fails.
            if current.number == self._round and time.monotonic() < self._due:
                continue
            try:
                await self._sample(current)
            except Exception:  # a defect here must not end the agent, and the training with it
                log.exception("a sample failed (fault %d)", loop_errors.count(__name__))

    def _rest(self, due: float) -> float:
        """Return the time to sleep, s: to the next sample, or until a new round is looked for."""
        rest, look = due - time.monotonic(), self._pause(schedules.SHORTEST_SECONDS)
        return min(rest, look) if rest > 0 else look

    def _until_next(self) -> float:
        """Return the time to the next sample of this round, s."""
        period = schedules.sample_period(self._cost() / COST_SHARE, self._longest())
        offset = self._offset()  # to the master's clock; the own one counts while it is unknown
        ahead = offset.seconds if offset is not None else 0.0
        return schedules.until_multiple(period, time.time() + ahead)

    def _longest(self) -> float:
        """Return the longest pause, s: a hang must be seen within its own limit."""
        hang = self.policy.hang if self.policy is not None else None
        if hang is None or hang.min_seconds <= 0:
            return math.inf
        return hang.min_seconds / LOOKS_IN_LIMIT

    def _cost(self) -> float:
        """Return the delay of a step by one sample, s.

        The ranks answer at the same time, each on its own CPU, and then wait for each other: the
        slowest answer counts. This process takes a CPU from one of them.
        """
        answers = [min(known.seconds) for known in self.ranks.values() if known.seconds]
        own = statistics.median(self._own_seconds) if self._own_seconds else 0.0
        return max(answers, default=0.0) + own

    async def _sample(self, current: Round) -> None:
        """Sample a round once."""
        if current.number != self._round:
            self._round, self.ranks = current.number, {}
            self._own_seconds.clear()
        self._probe()
        asked = [rank for rank in current.pids if rank not in current.exits]
        marks = self._marks(current)  # before the ranks answer: what they issued by then is in it
        found = await asyncio.gather(*(self._ask(current, rank) for rank in asked))
        answers = {rank: one for rank, one in zip(asked, found, strict=True) if one is not None}
        seen, seconds = await asyncio.to_thread(_read, answers)
        begun = time.thread_time()
        news = [self._news(rank, windows, marks.get(rank)) for rank, windows in seen.items()]
        self._own_seconds.append(seconds + time.thread_time() - begun)
        self._watch_clock()
        # From the look on: what waits to be sent must not put the next one off.
        self._due = time.monotonic() + self._until_next()
        await asyncio.sleep(self._spread())
        # The master may be another one by now.
        offset = self._offset()
        ranks = tuple(one for one in news if one.groups)
        if ranks and offset is not None and self._round == current.number:
            message = CollectiveSamples(
                ranks=ranks, clock_offset_seconds=offset.seconds, clock_error_seconds=offset.error
            )
            self._report(message, self._round)

    def _offset(self) -> ClockOffset | None:
        return schedules.estimate(tuple(self._answers), time.time())

    def _watch_clock(self) -> None:
        """Notice that the clock was set: what was issued since the last sample has two times."""
        before, self._ahead = self._ahead, time.time() - time.monotonic()
        if before is not None and schedules.was_set(before, self._ahead):
            log.info("this node's clock was set; a sample is left out")
            self._forget_clock()

    def _forget_clock(self) -> None:
        self._answers.clear()
        self._probes.clear()

    def _probe(self) -> None:
        wanted = 1 if self._answers else PROBES
        self._probes.clear()
        for _ in range(wanted):
            number = next(self._probe_ids)
            self._probes[number] = time.time()
            self._report(ClockProbe(probe_id=number), 0)

    async def _ask(self, current: Round, rank: int) -> bytes | None:
        server = WorkerServer(current.logs.files[rank].server)
        known = self.ranks.setdefault(rank, RankSamples())
        begun = time.monotonic()
        try:
            answer = await asyncio.to_thread(server.flight_trace, ANSWER_SECONDS)
        except WorkerServerError as error:
            log.debug("rank %d is not sampled: %s", rank, error)
            return None
        known.seconds.append(time.monotonic() - begun)
        return answer

    def _marks(self, current: Round) -> dict[int, StepMark]:
        """Return the newest step of each rank that reports its steps."""
        if self._page is None:
            return {}
        ahead = time.time_ns() - time.monotonic_ns()
        return {
            rank: StepMark(one.sample.step, (one.sample.step_ns + ahead) * 1e-9)
            for rank, one in current.ranks(self._page).items()
            if one.sample.round == current.number and one.sample.step
        }

    def _news(
        self, rank: int, windows: Sequence[GroupWindow], mark: StepMark | None
    ) -> RankCollectives:
        """Note a rank's collectives; return those that the master does not have."""
        known = self.ranks[rank]
        known.guess = collective_steps.advance(known.guess, windows, mark)
        groups = []
        for window in windows:
            if window.last < known.sent.get(window.group, 0):
                known.sent[window.group] = 0  # the script has made the group anew
            new = _after(window, known.sent.get(window.group, 0))
            if new.signatures:
                known.sent[window.group] = window.last
                groups.append(_on_wire(new, known.guess))
        return RankCollectives(local_rank=rank, groups=tuple(groups))


def _read(answers: Mapping[int, bytes]) -> tuple[dict[int, list[GroupWindow]], float]:
    """Read the answers by rank; return the windows of its groups, and the CPU time for it, s."""
    begun = time.thread_time()
    seen = {}
    for rank, answer in answers.items():
        try:
            record = parse_flight_record(answer)
        except WorkerServerError as error:
            log.debug("rank %d is not sampled: %s", rank, error)
        else:
            seen[rank] = list(group_windows(record.entries))[:MOST_GROUPS]
    return seen, time.thread_time() - begun


def group_windows(entries: Iterable[FlightEntry]) -> Iterable[GroupWindow]:
    """Yield the newest consecutive collectives of each group, without sends and receives."""
    signature = functools.cache(_signature)
    by_group: dict[str, list[FlightEntry]] = {}
    for entry in entries:
        if entry.is_p2p:
            continue
        run = by_group.setdefault(entry.group, [])
        if run and entry.sequence != run[-1].sequence + 1:
            run.clear()
        run.append(entry)
    for group, run in by_group.items():
        yield GroupWindow(
            group=group,
            first=run[0].sequence,
            signatures=tuple([signature(one.operation, one.sizes, one.dtypes) for one in run]),
            issued=tuple([one.created_ns * 1e-9 for one in run]),
        )


def _signature(operation: str, sizes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]) -> int:
    """Return a number that is equal for equal operations, sizes and dtypes on all ranks."""
    return zlib.crc32(f"{operation}{sizes}{dtypes}".encode())


def _after(window: GroupWindow, sequence: int) -> GroupWindow:
    skip = max(0, sequence + 1 - window.first, len(window.signatures) - MOST_ENTRIES)
    signatures, issued = window.signatures[skip:], window.issued[skip:]
    return GroupWindow(window.group, window.first + skip, signatures, issued)


def _on_wire(window: GroupWindow, guess: StepGuess) -> GroupCollectives:
    micros = [round(one * 1e6) for one in window.issued]
    steps = [max(0, later - sooner) for later, sooner in zip(micros[1:], micros, strict=False)]
    counted = guess if guess.group == window.group else StepGuess()
    step, sequence = counted.reported if any(counted.reported) else (counted.step, counted.last)
    return GroupCollectives(
        group=window.group,
        first_sequence=window.first,
        signatures=window.signatures,
        issued_us=(micros[0], *steps),
        period=counted.period,
        step=step,
        step_sequence=sequence,
    )
