"""Random leases, losses and restores: each record once in the state that is trained at the end."""

from __future__ import annotations

import collections
import dataclasses
import random

import pytest

from holdfast_master.policies.data.ledger import Group, Ledger, Reader, of_message, positions
from holdfast_wire.messages import ReaderClaim, ShardRange

Taken = tuple[int, int, int]
"""Step, ordinal, record."""


@dataclasses.dataclass
class Rank:
    """A reader as its process knows it."""

    reader: Reader
    floor: int = 0
    done: set[int] = dataclasses.field(default_factory=set)
    positions: dict[int, int] = dataclasses.field(default_factory=dict)
    reported: set[int] = dataclasses.field(default_factory=set)
    """Done ordinals that the ledger has heard of."""

    def claim(self, step: int) -> ReaderClaim:
        """What its checkpoint says."""
        return ReaderClaim(
            step=step,
            floor=self.floor,
            done=tuple(ShardRange(first=one, count=1, stride=1) for one in sorted(self.done)),
            held=positions(self.positions),
        )


def merged(claims: list[ReaderClaim], size: int) -> list[ReaderClaim]:
    """Deal the claims of a world out to one of another size."""
    return [
        ReaderClaim(
            step=claims[0].step,
            floor=max(one.floor for one in claims),
            done=tuple(each for one in claims[rank::size] for each in one.done),
            held=tuple(each for one in claims[rank::size] for each in one.held),
        )
        for rank in range(size)
    ]


class Training:
    """Readers in step, their ledger, and the records in the state that they train."""

    def __init__(self, seed: int, *, replicas: bool) -> None:
        """Begin with a drawn number of readers."""
        self.draw = random.Random(seed)
        self.replicas = replicas
        shards, epochs = self.draw.randrange(3, 40), self.draw.randrange(1, 4)
        self.sizes = [self.draw.randrange(1, 7) for _ in range(shards)]
        self.ledger = Ledger("d", shards, epochs, "x")
        self.groups: dict[Group, list[Rank]] = {}
        self.taken: list[Taken] = []
        self.step = self.round = 0
        self.saved: list[tuple[int, list[ReaderClaim], int]] = []
        """Step and claims of each checkpoint, and records in its state."""
        self.begin(None)

    @property
    def ranks(self) -> list[Rank]:
        """All readers."""
        return [rank for group in self.groups.values() for rank in group]

    def begin(self, claims: list[ReaderClaim] | None) -> None:
        """Begin with a world, or with replicas, of drawn sizes."""
        self.round += 1
        self.ledger.keep_only(set())
        self.groups = {}
        number = self.draw.randrange(1, 4) if self.replicas else 1
        for _ in range(number):
            self.join(claims)

    def join(self, claims: list[ReaderClaim] | None) -> None:
        """Have a group begin from a checkpoint; beside others its claims are void."""
        size = 1 if self.replicas else self.draw.randrange(1, 5)
        number = self.draw.randrange(10**9) + 1 if self.replicas else 0
        group = Group(number, self.round)
        own = merged(claims, size) if claims else [ReaderClaim() for _ in range(size)]
        alone = not self.ledger.groups
        if alone:
            self.ledger.begin(group, dict(enumerate(own)))
        else:
            self.ledger.join(group, size)
        ranks = [Rank(Reader(group, rank)) for rank in range(size)]
        for rank, claim in zip(ranks, own, strict=True):
            rank.positions = dict(self.ledger.held(rank.reader))
            if alone:
                rank.floor = claim.floor
                rank.done = {one.first for one in claim.done}
                rank.reported = set(rank.done)
        self.groups[group] = ranks

    def train(self) -> None:
        """Make a step: each reader takes some records, and commits them."""
        self.step += 1
        for rank in self.ranks:
            for _ in range(self.draw.randrange(0, 5)):
                self.take(rank)
        if not self.replicas and self.draw.random() < 0.5:
            return  # a world need not report each step
        for rank in self.ranks:
            self.report(rank)
        newest, floor = self.ledger.newest, self.ledger.floor
        for rank in self.ranks:
            if newest <= self.step:
                rank.floor = max(rank.floor, floor)
                rank.done = {one for one in rank.done if one >= floor}
                rank.reported &= rank.done

    def take(self, rank: Rank) -> None:
        """Read a record, of a new lease where none is begun."""
        if not rank.positions:
            request = self.ledger.asked.get(rank.reader, 0) + 1
            chosen = self.ledger.choose([(rank.reader, self.draw.randrange(1, 4))])
            self.ledger.lease(rank.reader, request, chosen[0][1])
            held = self.ledger.held(rank.reader)  # with what it has done and not reported yet
            rank.positions = {one: held[one] for one in chosen[0][1]}
        if not rank.positions:
            return
        ordinal = min(rank.positions)
        position = rank.positions[ordinal]
        self.taken.append((self.step, ordinal, position))
        rank.positions[ordinal] = position + 1
        if position + 1 >= self.sizes[ordinal % len(self.sizes)]:
            del rank.positions[ordinal]
            rank.done.add(ordinal)

    def report(self, rank: Rank) -> None:
        """Commit what a reader has done up to this step."""
        self.ledger.commit(rank.reader, self.step, rank.positions, rank.done - rank.reported)
        rank.reported = set(rank.done)

    def save(self) -> None:
        """Keep what the checkpoint of this step has: of replicas, the first one's."""
        savers = next(iter(self.groups.values()))
        claims = [rank.claim(self.step) for rank in savers]
        self.saved.append((self.step, claims, len(self.taken)))

    def lose_all(self) -> None:
        """End all processes: training goes on from a checkpoint, or from the beginning."""
        step, claims, records = 0, None, 0
        if self.saved:
            at = self.draw.randrange(len(self.saved))
            step, claims, records = self.saved[at]
            del self.saved[at + 1 :]
        self.step = step
        del self.taken[records:]
        self.begin(claims)

    def lose_one(self) -> None:
        """Lose a replica between two steps, beside another one: its committed records count."""
        if len(self.groups) > 1:
            gone = self.draw.choice(list(self.groups))
            lost = self.groups.pop(gone)
            for rank in lost:  # read for a step that was never made
                positions = dict(rank.positions)
                for ordinal in positions:
                    positions[ordinal] += self.draw.randrange(2)
            self.ledger.keep_only(set(self.groups))
            for rank in lost:  # a frozen one speaks again
                self.ledger.commit(rank.reader, self.step + 1, rank.positions, rank.positions)

    def is_over(self) -> bool:
        """Whether nothing is left to read."""
        return not self.ledger.left and not any(rank.positions for rank in self.ranks)


def play(seed: int, *, replicas: bool) -> Training:
    """Train to the end under drawn faults; a base may stand for the journal at any time."""
    training = Training(seed, replicas=replicas)
    faults = 12
    while not training.is_over():
        training.train()
        drawn = training.draw.random()
        if drawn < 0.15:
            training.save()
        elif drawn < 0.25 and faults:
            faults -= 1
            training.lose_all()
        elif drawn < 0.35 and faults and replicas:
            faults -= 1
            training.lose_one()
        elif drawn < 0.45 and replicas and len(training.groups) < 5:
            training.round += 1
            training.join(training.saved[-1][1] if training.saved else None)
        elif drawn < 0.5:
            training.ledger = of_message(training.ledger.message())
    return training


@pytest.mark.parametrize("replicas", [False, True], ids=["world", "replicas"])
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_each_record_is_read_once_per_epoch(first: int, *, replicas: bool) -> None:
    """In the state at the end, whatever was lost or restored on the way."""
    for seed in range(first, first + 50):
        training = play(seed, replicas=replicas)
        counts = collections.Counter((one, record) for _, one, record in training.taken)
        wanted = {
            (ordinal, record)
            for ordinal in range(training.ledger.epochs * len(training.sizes))
            for record in range(training.sizes[ordinal % len(training.sizes)])
        }
        twice = sorted(one for one, count in counts.items() if count > 1)
        assert not twice, f"seed {seed}: read twice: {twice[:5]}"
        assert counts.keys() == wanted, f"seed {seed}: lost {sorted(wanted - counts.keys())[:5]}"
