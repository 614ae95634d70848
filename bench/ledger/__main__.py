"""``python -m bench.ledger``: what the ledger of shards costs a master, on virtual time."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from bench.harness import machine, page, record
from bench.harness.page import Verdict, at_most
from holdfast_master.core import Core
from holdfast_master.inputs import (
    Connected,
    Input,
    Moment,
    OperatorConnected,
    OperatorMessage,
    Received,
    Ticked,
)
from holdfast_master.instructions import Record, Send
from holdfast_master.journal import framing
from holdfast_master.policies.data.ledger import progress_seconds
from holdfast_master.policies.data.ledger_message import message_of
from holdfast_master.settings import CoreIdentity, CoreSettings
from holdfast_wire import codec
from holdfast_wire import messages as wire

WORLD: Final = "world"
REPLICAS: Final = "replicas"
SHARDS: Final = 1_000_000
SHARD_SECONDS: Final = 20.0
"""How long a reader takes for a shard: it asks for three at a time, once a minute."""
PERIOD_SECONDS: Final = 60
REPORTS: Final = 2
"""Reports of a reader in a minute, beside its request; of a replica as many as it is asked for."""
CORES: Final = 0.1
MEGABYTES: Final = 1.0


@dataclass(frozen=True, slots=True)
class LedgerCost:
    """The cost of one minute, or of one event."""

    mode: str
    readers: int
    what: str
    """minute, begin or base."""
    cpu_s: float
    journal_bytes: int
    load: float
    """Load average of the last minute."""


class SimulatedJob:
    """A core with readers of shards, one for each node."""

    def __init__(self, readers: int, mode: str) -> None:
        """Start a world that trains."""
        self.readers, self.mode = readers, mode
        self.reports = REPORTS
        if mode == REPLICAS:
            self.reports = max(REPORTS, round(PERIOD_SECONDS / progress_seconds(readers)) - 1)
        self.now, self.cpu, self.journal = 100.0, 0.0, 0
        self.held: dict[int, list[int]] = {}
        """Shards of each reader by its last answer, by node rank."""
        self.requests = dict.fromkeys(range(readers), 1)
        identity = CoreIdentity(
            job_name="j", job_uid="u", epoch=1, incarnation="m", version="0.1.0"
        )
        self.core = Core(identity, CoreSettings(silence_seconds=1e9, lease_seconds=1e9))
        self.core.open(self.moment)
        self.take(OperatorConnected())
        self.take(OperatorMessage(self._spec()))
        for rank in range(readers):
            hello = wire.Hello(
                job_uid="u",
                node_rank=rank,
                pod_uid=f"p{rank}",
                agent_id=f"a{rank}",
                local_world_size=1,
                warm=True,
            )
            self.take(Connected(rank + 1, hello))
        if mode == WORLD:  # replicas may read before all have stepped, and start for long
            started = wire.RoundStarted(first_step=True, step=1)
            self.say(*((rank, started) for rank in range(readers)))

    def _spec(self) -> wire.MasterSpec:
        kinds = (wire.BudgetKind.FAILURES, wire.BudgetKind.PREEMPTIONS, wire.BudgetKind.RESCALES)
        return wire.MasterSpec(
            generation=1,
            replicas=self.readers,
            min_replicas=1,
            max_replicas=self.readers,
            node_unit=1,
            nodes_per_replica=1 if self.mode == REPLICAS else 0,
            success_policy=wire.SuccessPolicy.ALL_WORKERS,
            join_window_seconds=5.0,
            budgets=tuple(wire.Budget(kind=kind, limit=10**6) for kind in kinds),
        )

    @property
    def moment(self) -> Moment:
        """The virtual time."""
        return Moment(self.now, 1.7e9 + self.now)

    def take(self, *events: Input) -> None:
        """Have the core take inputs; encode what follows, as the shell does."""
        self._work(lambda: iter(events))

    def say(self, *said: tuple[int, Any]) -> None:
        """Have agents send messages about the round of their processes, by node rank."""
        fence = wire.Fence(epoch=1, incarnation="m", round=self.core.job.state.round)
        bodies = [
            (rank, codec.encode(wire.SessionRequest(fence=fence, message=message)))
            for rank, message in said
        ]
        self._work(lambda: (_received(rank, body) for rank, body in bodies))

    def _work(self, events: Callable[[], Iterator[Input]]) -> None:
        # One look at the clock for many: it takes longer than an input.
        sent: list[Send] = []
        begun = time.process_time()
        for event in events():
            batch = self.core.handle(event, self.moment)
            for item in batch:
                if isinstance(item, Record) and isinstance(item.fact, _FACTS):
                    self.journal += len(framing.frame(codec.encode(item.journal())))
                elif isinstance(item, Send):
                    codec.encode(item.response)
                    sent.append(item)
        self.cpu += time.process_time() - begun
        for one in sent:
            self._answered(one)

    def _answered(self, sent: Send) -> None:
        match sent.response.message:
            case wire.PrepareStore() as order:
                store = wire.StorePrepared(store_id=order.store_id, host="10.0.0.1", port=29500)
                self.say((sent.session - 1, store))
            case wire.ShardsLeased() as leased:
                self.held[sent.session - 1] = [one.ordinal for one in leased.held]

    def pass_time(self, seconds: float) -> None:
        """Let deadlines come."""
        until = self.now + seconds
        while (due := self.core.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self.take(Ticked())
        self.now = until

    def begin(self) -> None:
        """Have all readers open the dataset, and be leased their first shards."""
        alone = self.mode == REPLICAS
        self.say(
            *(
                (
                    rank,
                    wire.ReaderOpened(
                        dataset="train",
                        shards=SHARDS,
                        epochs=0,
                        digest="0123456789abcdef",
                        rank=0 if alone else rank,
                        readers=1 if alone else self.readers,
                        claim=wire.ReaderClaim(),
                        wanted=2,
                    ),
                )
                for rank in range(self.readers)
            )
        )
        self.pass_time(1.0)

    def minute(self, number: int) -> None:
        """Have each reader ask once, and report beside it, at instants of its own."""
        parts = PERIOD_SECONDS * 5
        for part in range(parts):
            self.pass_time(PERIOD_SECONDS / parts)
            step = (number * parts + part) * 2
            said = [self._request(rank, step) for rank in range(part, self.readers, parts)]
            for report in range(self.reports):
                first = (part + parts * (report + 1) // (self.reports + 1)) % parts
                ranks = range(first, self.readers, parts)
                said += [(rank, self._report(rank, step)) for rank in ranks]
            self.say(*said)

    def _request(self, rank: int, step: int) -> tuple[int, wire.ReaderReport]:
        self.requests[rank] += 1
        wanted = round(PERIOD_SECONDS / SHARD_SECONDS)
        done = tuple(self.held[rank][:wanted])
        request = self.requests[rank]
        return rank, self._report(rank, step, done, request=request, wanted=wanted)

    def _report(
        self, rank: int, step: int, done: Sequence[int] = (), *, request: int = 0, wanted: int = 0
    ) -> wire.ReaderReport:
        left = [one for one in self.held.get(rank, ()) if one not in done][:1]
        return wire.ReaderReport(
            dataset="train",
            rank=0 if self.mode == REPLICAS else rank,
            step=step,
            positions=tuple(wire.ShardPosition(ordinal=one, position=step) for one in left),
            done=tuple(done),
            request=request,
            wanted=wanted,
        )


def _received(rank: int, body: bytes) -> Received:
    request = codec.decode(wire.SessionRequest, body)
    message = request.message
    if message is None or isinstance(message, wire.Hello):
        raise TypeError(f"{message!r} is no word of an agent whose stream is open")
    return Received(rank + 1, request.fence, message)


_FACTS: Final = (
    wire.ShardLedger,
    wire.ReadersJoined,
    wire.ShardsGiven,
    wire.ShardsCommitted,
)


def measure(mode: str, readers: int, minutes: int, note: record.Note) -> None:
    """Measure a job's begin, and its minutes."""
    job = SimulatedJob(readers, mode)

    def noted(what: str, work: Callable[[], None]) -> None:
        job.cpu, job.journal = 0.0, 0
        work()
        load = os.getloadavg()[0]
        note(LedgerCost(mode, readers, what, job.cpu, job.journal, load))

    noted("begin", job.begin)
    job.minute(0)
    for number in range(1, minutes + 1):
        noted("minute", lambda: job.minute(number))  # noqa: B023 - called at once
    ledger = job.core.job.state.ledgers["train"]
    base = len(codec.encode(wire.JobFolded(ledgers=(message_of(ledger),))))
    note(LedgerCost(mode, readers, "base", 0.0, base, os.getloadavg()[0]))


def page_of(about: Mapping[str, Any], results: Sequence[LedgerCost]) -> str:
    """Return the page's text."""
    most = max(one.readers for one in results)
    rows = [
        _row([one for one in results if (one.mode, one.readers) == key])
        for key in sorted({(one.mode, one.readers) for one in results})
    ]
    head = ("readers", "ranks are", "cores", "journal, MB/minute", "begin, CPU s", "MB", "base, MB")
    minutes = max(sum(one.what == "minute" for one in _of(results, *key)) for key in _keys(results))
    said = f"{machine.sentence(about)} Load average {page.load_range(results)}."
    return page.fill(
        "ledger/page",
        run=said,
        promises=page.promises(verdicts(results, most), page.PLAIN_COLUMNS),
        table=page.table(head, rows),
        minutes=str(minutes),
    )


def _keys(results: Sequence[LedgerCost]) -> set[tuple[str, int]]:
    return {(one.mode, one.readers) for one in results}


def _of(results: Iterable[LedgerCost], mode: str, readers: int) -> list[LedgerCost]:
    return [one for one in results if (one.mode, one.readers) == (mode, readers)]


def verdicts(results: Sequence[LedgerCost], readers: int) -> list[Verdict]:
    """Hold the minutes of the largest job against the bars."""
    found = []
    for mode in (WORLD, REPLICAS):
        minutes = [one for one in _of(results, mode, readers) if one.what == "minute"]
        cores = [one.cpu_s / PERIOD_SECONDS for one in minutes]
        journal = [one.journal_bytes / 1e6 for one in minutes]
        name = f"{readers:,} readers, {mode}"
        found.append(
            page.judged(f"cores of the master, {name}", f"≤ {CORES}", cores, at_most(CORES))
        )
        bar = f"≤ {MEGABYTES:g}"
        found.append(
            page.judged(f"MB of journal a minute, {name}", bar, journal, at_most(MEGABYTES))
        )
    return found


def _row(results: Sequence[LedgerCost]) -> list[str]:
    minutes = [one for one in results if one.what == "minute"]
    begin = next(one for one in results if one.what == "begin")
    base = next(one for one in results if one.what == "base")
    return [
        f"{results[0].readers:,}",
        results[0].mode,
        f"{median(one.cpu_s for one in minutes) / PERIOD_SECONDS:.3f}",
        f"{median(one.journal_bytes for one in minutes) / 1e6:.2f}",
        f"{begin.cpu_s:.2f}",
        f"{begin.journal_bytes / 1e6:.2f}",
        f"{base.journal_bytes / 1e6:.2f}",
    ]


BENCH = record.Bench("ledger", page_of, LedgerCost)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; the exit code."""
    parser = BENCH.parser(__doc__)
    parser.add_argument("--readers", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--minutes", type=int, default=5)
    return BENCH.main(parser.parse_args(arguments), _run)


def _run(options: argparse.Namespace) -> None:
    with record.recording(options.out) as note:
        for readers in options.readers:
            for mode in (WORLD, REPLICAS):
                measure(mode, readers, options.minutes, note)


if __name__ == "__main__":
    sys.exit(main())
