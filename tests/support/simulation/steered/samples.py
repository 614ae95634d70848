"""Samples of collectives that the agents of a steered job send.

Belongs here: ranks that all do one collective a step. Does not belong here: training itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from holdfast_master.job.state.health import GroupHistory
from holdfast_wire.messages import CollectiveSamples, GroupCollectives, RankCollectives
from simulation.steered.job import SteeredJob

STEP = 0.1


class Sampler:
    """Agents that send what their ranks' collectives would look like."""

    def __init__(self, job: SteeredJob) -> None:
        self.job = job
        self.at = 1e9
        self.first = 1
        self.before = 0
        """Steps that the script had completed before its first collective."""
        self.offsets: dict[int, float] = {}
        self.silent: set[int] = set()
        """Nodes that send nothing."""

    def steps(self, count: int, slow: Mapping[int, float] | None = None, wait: float = 0.5) -> None:
        """Let all ranks do steps of one collective; `slow`: excess of a node, s of each step.

        wait: time that passes then, s.
        """
        excess = slow or {}
        wall = STEP + max(excess.values(), default=0.0)
        for node in self.job.members:
            if node in self.silent:
                continue
            agent = self.job.agents[node]
            local = STEP + excess.get(node, 0.0)
            begins = [self.at + wall * number for number in range(count)]
            own = [round((one + local - self.offsets.get(node, 0.0)) * 1e6) for one in begins]
            micros = (own[0], *(b - a for a, b in itertools.pairwise(own)))
            group = GroupCollectives(
                group="0",
                first_sequence=self.first,
                signatures=(7,) * count,
                issued_us=micros,
                period=1,
                step=self.before + self.first + count - 1,
                step_sequence=self.first + count - 1,
            )
            agent.report(
                CollectiveSamples(
                    ranks=(RankCollectives(local_rank=0, groups=(group,)),),
                    clock_offset_seconds=self.offsets.get(node, 0.0),
                    clock_error_seconds=0.0001,
                ),
                agent.accepted.round,
            )
        self.first += count
        self.at += wall * count
        self.job.run(wait)

    def repeat(self, times: int, count: int = 20, **changes: Any) -> None:
        """Let all ranks do this many times `count` steps, as `steps` takes them."""
        for _ in range(times):
            self.steps(count, **changes)

    def only(self, *nodes: int) -> GroupHistory:
        """Let all ranks do 20 steps, of which these nodes alone send samples; the group."""
        self.silent = set(self.job.members) - set(nodes)
        self.steps(20)
        self.silent = set()
        return self.job.core.job.health.groups["0"]
