"""Random leases, losses and restores: each record once in the state that is trained at the end.

Readers, what their agents know of them, and the ledger are the real ones; the ways between them and
the clock are the model's.
"""

from __future__ import annotations

import collections
import copy
import random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from holdfast.data import shards as shard_reader
from holdfast.data.shard_state import lost_reader
from holdfast.data.shards import ShardReader
from holdfast.replicas.reader_place import LostPlace, ReaderPlace
from holdfast_agent.workers.shard_relay import RelayedReader
from holdfast_master.job.data.shards import COMMIT_SECONDS
from holdfast_master.job.state.data import Progress
from holdfast_master.policies.data.ledger import Group, Ledger, Reader
from holdfast_master.policies.data.ledger_message import message_of, of_message, positions
from holdfast_wire.messages import ReaderOpened, ReaderReport, ShardsLeased


class Taken(NamedTuple):
    """A record in the state that is trained."""

    step: int
    reader: Reader
    ordinal: int
    position: int


class Rank:
    """A reader with its agent: what the agent passes on, the training's master hears."""

    def __init__(self, training: Training, reader: Reader, size: int, states: list[Any]) -> None:
        """Make a reader that goes on from the states of a checkpoint; none: it begins."""
        self.training, self.reader = training, reader
        names = [str(index) for index in range(len(training.sizes))]
        place = (reader.rank, size)
        epochs = training.ledger.epochs
        self.shards = ShardReader(names, training.read, name="d", epochs=epochs, place=place)
        self.shards._agent, self.shards._replica = "agent", reader.group.replica
        if states:
            own = states[reader.rank] if len(states) == size else self.shards.reshard(states)
            self.shards.load_state_dict(copy.deepcopy(own))
        self.opened = self.shards._opened()
        self.relayed = RelayedReader(self.opened)
        self.shards._source = self
        self.answered: ShardsLeased | None = None
        self.request = 1
        self.contact = training.contacts
        """The contact with a master that its newest answer came by."""
        training.hear(self, self.opened)

    def open(self, opened: ReaderOpened) -> None:
        """It is known: nobody asks for the first shards anew."""
        raise AssertionError(opened)

    def report(self, report: ReaderReport) -> None:
        """Tell the agent."""
        if report.wanted and report.request == 1:
            return  # the first words have asked
        news = self.relayed.reported(report, self.training.now)
        if news is not None:
            self.request, self.answered = report.request, None
            self.training.hear(self, news)

    def take(self, leased: ShardsLeased) -> None:
        """Take the master's answer."""
        self.relayed.leased(leased)
        self.contact = self.training.contacts
        if leased.request == self.request:
            self.answered = leased

    def answer(self) -> ShardsLeased:
        """Wait for it: as long as the master is away."""
        if self.answered is None:
            self.training.back()
        assert self.answered is not None
        return self.answered

    def forward(self) -> None:
        """Have the agent pass on what is committed."""
        if self.relayed.waits:
            self.training.hear(self, self.relayed.progress(self.training.now))

    def close(self) -> None:
        """Nothing is open."""


class Training:
    """Readers in step, their master, and the records in the state that they train."""

    def __init__(self, seed: int, *, replicas: bool, prompt: bool) -> None:
        """Begin with a drawn number of readers. prompt: each step's progress is written down."""
        self.draw = random.Random(seed)
        self.replicas, self.prompt = replicas, prompt
        shards, epochs = self.draw.randrange(3, 40), self.draw.randrange(1, 4)
        self.sizes = [self.draw.randrange(1, 7) for _ in range(shards)]
        self.ledger = Ledger("d", shards, epochs, "x", placed=replicas)
        self.noted: dict[Reader, Progress] = {}
        """Progress that is not in the journal."""
        self.floor = (0, 0)
        self.away = False
        """The master hears nothing."""
        self.contacts = 0
        self.now = self.flushed = 0.0
        self.groups: dict[Group, list[Rank]] = {}
        self.taken: list[Taken] = []
        self.step = self.round = 0
        self.places: dict[Reader, ReaderPlace | None] = {}
        """Of each reader, when the newest step began."""
        self.saved: list[tuple[int, list[Any], int]] = []
        """Step and states of each checkpoint, and records in its state."""

    @property
    def ranks(self) -> list[Rank]:
        """All readers."""
        return [rank for group in self.groups.values() for rank in group]

    def read(self, shard: str, start: int) -> range:
        """Return the records of a shard."""
        return range(start, self.sizes[int(shard)])

    # the master

    def hear(self, rank: Rank, message: ReaderOpened | ReaderReport) -> None:
        """Have the master hear an agent."""
        if self.away:
            return
        request = 1
        if isinstance(message, ReaderReport):
            self.noted.setdefault(rank.reader, Progress()).add(message)
            request = message.request
        if message.wanted and rank.reader.group in self.ledger.groups:
            self.lease(rank, request, message.wanted)

    def lease(self, rank: Rank, request: int, wanted: int) -> None:
        """Answer a request, as often as it is made."""
        reader, chosen = rank.reader, list[int]()
        if request > self.ledger.asked.get(reader, 0):
            [(_, chosen)] = self.ledger.choose([(reader, wanted)])
            self.ledger.lease(reader, request, chosen)
        done = self.noted[reader].done if reader in self.noted else set()
        held = {o: at for o, at in self.ledger.held(reader).items() if o not in done}
        leased = ShardsLeased(
            dataset="d",
            rank=reader.rank,
            request=request,
            held=positions(held),
            ended=not chosen and not self.ledger.left,
            floor=self.floor[0],
            floor_step=self.floor[1],
        )
        rank.take(leased)

    def flush(self) -> None:
        """Have the master write progress down."""
        noted, self.noted, self.flushed = self.noted, {}, self.now
        for reader, one in sorted(noted.items()):
            self.ledger.commit(reader, one.step, one.positions, one.done)
        self.floor = (self.ledger.floor, self.ledger.newest) if self.ledger.newest else (0, 0)

    def back(self) -> None:
        """Have the agents reach a master again, be it the same one or another."""
        self.away = False
        self.contacts += 1
        for rank in self.ranks:
            for message in rank.relayed.again(self.now):
                self.hear(rank, message)

    def crash(self) -> None:
        """Have another master follow, which has the journal."""
        self.ledger = of_message(message_of(self.ledger))
        self.noted, self.floor = {}, (0, 0)
        self.back()

    # the world

    def begin(self, states: list[Any]) -> None:
        """Begin with a world, or with replicas, of drawn sizes."""
        self.flush()
        self.ledger.keep_only(set())
        self.groups, self.floor = {}, (0, 0)
        for _ in range(self.draw.randrange(1, 4) if self.replicas else 1):
            self.join(states)

    def join(self, states: list[Any]) -> None:
        """Have a group begin from a checkpoint; beside others its claims are void."""
        self.round += 1
        size = 1 if self.replicas else self.draw.randrange(1, 5)
        group = Group(self.round if self.replicas else 0, self.round)
        made = [Rank(self, Reader(group, rank), size, states) for rank in range(size)]
        if self.ledger.groups:
            self.ledger.join(group, size)
        else:
            self.ledger.begin(group, {rank.reader.rank: rank.opened.claim for rank in made})
        self.groups[group] = made
        for rank in made:
            self.hear(rank, rank.opened)

    def train(self, *, loses: bool = False) -> None:
        """Make a step: each reader takes some records and commits them, unless it is lost in it."""
        self.step += 1
        self.now += self.draw.uniform(1.0, 40.0) * (5 if self.away else 1)
        self.places = {rank.reader: rank.shards.reducing(0) for rank in self.ranks}
        for rank in self.ranks:
            begins = not rank.shards._request  # before that its state is the one it was given
            for _ in range(max(begins, self.draw.randrange(5))):
                record = next(rank.shards, None)
                if record is not None:
                    ordinal = record.epoch * len(self.sizes) + int(record.shard)
                    self.taken.append(Taken(self.step, rank.reader, ordinal, record.position))
        if loses and len(self.groups) > 1 and not self.away:
            if self.draw.random() < 0.5:
                self.lose_one()
            else:
                self.lose_one_with_its_agent()
        for rank in self.ranks:
            rank.shards.commit(self.step)
        self.forward()

    def forward(self) -> None:
        """Pass progress on, and write it down, when it is time."""
        for rank in self.ranks:
            if self.prompt or self.draw.random() < 0.6:
                rank.forward()
        if not self.away and (self.prompt or self.now > self.flushed + COMMIT_SECONDS):
            self.flush()

    def lose_one(self) -> None:
        """Lose a replica within a step, beside another one: its committed records count.

        An answer since the master came back has told its agent what no master had heard.
        """
        gone = self.draw.choice(list(self.groups))
        if any(rank.contact < self.contacts for rank in self.groups[gone]):
            return
        lost = self.groups.pop(gone)
        for rank in lost:
            rank.forward()
        self.flush()
        self.ledger.keep_only(set(self.groups))
        self.taken = [one for one in self.taken if one.step < self.step or one.reader.group != gone]
        for rank in lost:  # a frozen one speaks again
            held = rank.shards._progress.held
            self.ledger.commit(rank.reader, self.step + 1, held, list(held))

    def lose_one_with_its_agent(self) -> None:
        """Lose a replica of which nobody reports anything: others tell what their sums have.

        Its records of this step count if the reduction was whole before it was lost.
        """
        gone, is_whole = self.draw.choice(list(self.groups)), self.draw.random() < 0.5
        lost = self.groups.pop(gone)
        knows = all(rank.contact == self.contacts for rank in lost)  # as in `lose_one`
        if not is_whole and knows and self.draw.random() < 0.5:  # but for itself it was
            for rank in lost:
                rank.shards.commit(self.step)
                rank.forward()
        self.flush()
        self.ledger.keep_only(set(self.groups), lost={gone})
        step = self.step if is_whole else self.step - 1
        told = {}
        for rank in lost:
            place = rank.shards.reducing(0) if is_whole else self.places[rank.reader]
            told[rank.reader.rank] = lost_reader(LostPlace(gone.replica, step, place, 1))
        self.ledger.end_reading(gone, told)
        if not is_whole:
            self.taken = [
                one for one in self.taken if one.step < self.step or one.reader.group != gone
            ]

    def save(self) -> None:
        """Keep what the checkpoint of this step has: of replicas, the first one's."""
        savers = next(iter(self.groups.values()))
        states = [copy.deepcopy(rank.shards.state_dict()) for rank in savers]
        self.saved.append((self.step, states, len(self.taken)))

    def lose_all(self) -> None:
        """End all processes: training goes on from a checkpoint, or from the beginning."""
        self.back()
        for rank in self.ranks:
            rank.forward()
        step, states, records = 0, list[Any](), 0
        if self.saved:
            at = self.draw.randrange(len(self.saved))
            step, states, records = self.saved[at]
            del self.saved[at + 1 :]
        self.step = step
        del self.taken[records:]
        self.begin(states)

    def is_over(self) -> bool:
        """Whether nothing is left to read."""
        readers = [rank.shards for rank in self.ranks]
        reads = any(one._progress.held or not one._request for one in readers)
        return not (self.ledger.left or reads or self.away)


def play(
    seed: int, monkeypatch: pytest.MonkeyPatch, *, replicas: bool, prompt: bool, restores: bool
) -> Training:
    """Train to the end under drawn faults."""
    training = Training(seed, replicas=replicas, prompt=prompt)
    clock = SimpleNamespace(monotonic=lambda: training.now)
    monkeypatch.setattr(shard_reader, "time", clock)
    training.begin([])
    faults = 12
    while not training.is_over():
        drawn = training.draw.random()
        faults -= drawn < 0.2
        training.train(loses=replicas and faults > 0 and drawn < 0.1)
        if faults > 0 and restores and 0.1 < drawn < 0.2:
            training.lose_all()
        elif drawn < 0.35:
            training.save()
        elif drawn < 0.45 and replicas and len(training.groups) < 5:
            training.back()
            training.join(training.saved[-1][1] if training.saved else [])
        elif drawn < 0.5:
            training.crash()
        elif drawn < 0.55:
            training.away = not prompt
        elif drawn < 0.7 and training.away:
            training.back()
    return training


@pytest.mark.parametrize("first", range(0, 200, 50))
@pytest.mark.parametrize(
    ("replicas", "prompt", "restores"),
    [(False, False, True), (True, True, True), (True, False, False)],
    ids=["world", "replicas", "replicas that go on"],
)
def test_each_record_is_read_once_per_epoch(
    monkeypatch: pytest.MonkeyPatch, first: int, *, replicas: bool, prompt: bool, restores: bool
) -> None:
    """In the state at the end, whatever was lost or restored on the way."""
    for seed in range(first, first + 50):
        training = play(seed, monkeypatch, replicas=replicas, prompt=prompt, restores=restores)
        counts = read(training)
        twice = sorted(one for one, count in counts.items() if count > 1)
        assert not twice, f"seed {seed}: read twice: {twice[:5]}"
        lost = sorted(wanted(training) - counts.keys())
        assert not lost, f"seed {seed}: lost {lost[:5]}"


def test_no_record_is_lost_where_replicas_go_back_between_two_reports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Progress of several steps in one report is undone as a whole: it is read again."""
    for seed in range(100):
        training = play(seed, monkeypatch, replicas=True, prompt=False, restores=True)
        lost = sorted(wanted(training) - read(training).keys())
        assert not lost, f"seed {seed}: lost {lost[:5]}"


def read(training: Training) -> collections.Counter[tuple[int, int]]:
    """Return how often each record is in the state."""
    return collections.Counter((one.ordinal, one.position) for one in training.taken)


def wanted(training: Training) -> set[tuple[int, int]]:
    """Return all records of all epochs."""
    return {
        (ordinal, record)
        for ordinal in range(training.ledger.epochs * len(training.sizes))
        for record in range(training.sizes[ordinal % len(training.sizes)])
    }
