"""Bugs in how masters and agents judge the health of nodes; found on seeds of ailing nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from holdfast_agent.policies import schedules
from holdfast_master.job.health import hangs, samples, stragglers
from holdfast_master.policies import hang, hang_limit
from holdfast_master.policies.straggler import collectives, verdict, votes
from holdfast_master.policies.straggler.collectives import Step
from holdfast_master.policies.straggler.slices import Slices
from simulation.planted.agent import Patch


def _set_unnoticed() -> list[Patch]:
    return [(schedules, "was_set", lambda *_: False)]


def _offsets_ignored() -> list[Patch]:
    right = samples._take
    return [
        (
            samples,
            "_take",
            lambda health, rank, group, _, now: right(health, rank, group, 0.0, now),
        ),
    ]


def _own_period() -> list[Patch]:
    """A rank's time is counted from its own last collective, so all wait equally long."""

    def step(run: Any, begin: int) -> Slices[Step]:
        end = begin + run.period - 1
        local = {
            rank: at[first + end] - at[first + begin - 1]
            for rank, (at, first) in run.columns.items()
        }
        yield
        return Step(run.first + end, max(local.values()), local, (), 1)

    return [(collectives, "_step", step)]


def _threshold_ignored() -> list[Patch]:
    right = votes.VoteTally.vote

    def vote(self: Any, rank: int) -> Any:
        found = right(self, rank)
        noise = self.excess[rank].noise
        return dataclasses.replace(found, slow=found.excess > votes.NOISE_FACTOR * noise)

    return [(votes.VoteTally, "vote", vote)]


def _votes_for_ever() -> list[Patch]:
    """Votes of windows that are long over still count."""

    def against(self: Any, rank: int) -> list[Any]:
        return [vote for vote in self.record.votes[rank] if vote.slow]

    return [(verdict._Findings, "_against", against)]


def _never_learned() -> list[Patch]:
    def learned(usual: Any, *_: Any) -> Slices[Any]:
        yield
        return usual

    return [(votes, "learned", learned)]


def _wrong_node() -> list[Patch]:
    """The ranks of a world are counted from its other end."""
    right = stragglers.nodes_of

    def nodes(world: Any) -> dict[int, int]:
        found = right(world)
        return dict(zip(found, reversed(found.values()), strict=True))

    return [(stragglers, "nodes_of", nodes)]


def _mismatch_unseen() -> list[Patch]:
    return [(hang, "_signature", lambda _: "a collective")]


def _local_ranks() -> list[Patch]:
    """Evidence is kept under the rank within its node."""
    right = hang.classify

    def classify(evidence: Any, *, world_size: int, **others: Any) -> Any:
        local = [dataclasses.replace(one, rank=one.local_rank) for one in evidence]
        return right(local, world_size=world_size, **others)

    return [(hang, "classify", classify)]


def _first_limit() -> list[Patch]:
    """The limit of the first step holds for ever."""

    def limit(phase: Any, _: Any, policy: Any) -> Any:
        return hang_limit._first(phase, policy)

    return [(hang_limit, "limit", limit)]


def _not_awaited() -> list[Patch]:
    """The first node's evidence is judged alone."""
    right = hangs._settle

    def settle(job: Any, world: Any, found: Any) -> None:
        if found.evidence:
            found.awaited.clear()
        right(job, world, found)

    return [(hangs, "_settle", settle)]


def _never_over() -> list[Patch]:
    """A world that hung once is not looked at again."""
    return [(hangs, "_over", lambda *_: None)]


BUGS: tuple[tuple[str, str, Callable[[], list[Patch]]], ...] = (
    ("set clock unnoticed", "a sample has two times after a clock was set", _set_unnoticed),
    ("offsets ignored", "times of issue are taken as they come", _offsets_ignored),
    ("own period", "a rank's wait for its peers counts as its work", _own_period),
    ("threshold ignored", "a node that is hardly slower is accused", _threshold_ignored),
    ("votes for ever", "a node that is well again stays accused", _votes_for_ever),
    ("never learned", "no rank gets a usual time", _never_learned),
    ("wrong node", "the slow rank is looked for on another node", _wrong_node),
    ("mismatch unseen", "ranks in different collectives are taken for equal", _mismatch_unseen),
    ("local ranks", "evidence of two nodes gets one rank", _local_ranks),
    ("first limit", "a hang is noticed after the limit of the first step", _first_limit),
    ("not awaited", "a hang is judged by one node's evidence", _not_awaited),
    ("never over", "a second hang is not noticed", _never_over),
)
