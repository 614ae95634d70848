"""Bugs in how masters and agents judge the health of nodes; found on seeds of ailing nodes."""

from __future__ import annotations

import dataclasses
from typing import Any

from holdfast_agent.policies import schedules
from holdfast_master.job.health import hangs, samples
from holdfast_master.job.state.world import World
from holdfast_master.policies import hang, hang_limit
from holdfast_master.policies.straggler import collectives, verdict, votes
from holdfast_master.policies.straggler.collectives import Step
from holdfast_master.policies.straggler.slices import Slices
from simulation import scenario
from simulation.planted.patches import Bugs

BUGS = Bugs(scenario.ailing)


@BUGS.wrong(
    "set clock unnoticed", "a sample has two times after a clock was set", schedules, "was_set"
)
def _unnoticed(*_: Any) -> bool:
    return False


@BUGS.wrong("offsets ignored", "times of issue are taken as they come", samples, "_take")
def _no_offset(right: Any, health: Any, rank: int, group: Any, _: float, now: float) -> None:
    right(health, rank, group, 0.0, now)


@BUGS.wrong("own period", "a rank's wait for its peers counts as its work", collectives, "_step")
def _own_period(_: Any, run: Any, begin: int) -> Slices[Step]:
    end = begin + run.period - 1
    local = {
        rank: at[first + end] - at[first + begin - 1] for rank, (at, first) in run.columns.items()
    }
    yield
    return Step(run.first + end, max(local.values()), local, (), 1)


@BUGS.wrong("threshold ignored", "a node that is hardly slower is accused", votes.VoteTally, "vote")
def _any_excess(right: Any, self: Any, rank: int) -> Any:
    found = right(self, rank)
    noise = self.excess[rank].noise
    return dataclasses.replace(found, slow=found.excess > votes.NOISE_FACTOR * noise)


@BUGS.wrong(
    "votes for ever", "a node that is well again stays accused", verdict._Findings, "_against"
)
def _all_votes(_: Any, self: Any, rank: int) -> list[Any]:
    return [vote for vote in self.record.votes[rank] if vote.slow]


@BUGS.wrong("never learned", "no rank gets a usual time", votes, "learned")
def _unlearned(_: Any, usual: Any, *__: Any) -> Slices[Any]:
    yield
    return usual


@BUGS.wrong("wrong node", "the slow rank is looked for on another node", World, "nodes_by_rank")
def _from_the_end(right: Any, world: Any) -> dict[int, int]:
    found = right(world)
    return dict(zip(found, reversed(found.values()), strict=True))


@BUGS.wrong(
    "mismatch unseen", "ranks in different collectives are taken for equal", hang, "_signature"
)
def _one_signature(*_: Any) -> str:
    return "a collective"


@BUGS.wrong("local ranks", "evidence of two nodes gets one rank", hang, "classify")
def _by_local_rank(right: Any, evidence: Any, *, world_size: int, **others: Any) -> Any:
    local = [dataclasses.replace(one, rank=one.local_rank) for one in evidence]
    return right(local, world_size=world_size, **others)


@BUGS.wrong(
    "first limit", "a hang is noticed after the limit of the first step", hang_limit, "limit"
)
def _first_limit(_: Any, phase: Any, __: Any, policy: Any) -> Any:
    return hang_limit._first(phase, policy)


@BUGS.wrong("not awaited", "a hang is judged by one node's evidence", hangs, "_settle")
def _not_awaited(right: Any, job: Any, world: Any, found: Any) -> None:
    if found.evidence:
        found.awaited.clear()
    right(job, world, found)


@BUGS.wrong("never over", "a second hang is not noticed", hangs, "_over")
def _never_over(*_: Any) -> None:
    return None
