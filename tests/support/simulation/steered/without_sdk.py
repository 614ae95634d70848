"""Ranks that do not use the SDK: their agents guess steps, and see what the ranks do."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast_wire.messages import EvidenceCollected, Heartbeat, RankSection, StepSource
from simulation.agent import Agent

EVALUATES = """  File "/v/lib/python3/site-packages/torch/nn/modules/linear.py", line 1 in forward
  File "/job/train.py", line 9 in evaluate
"""


def without_sdk(
    monkeypatch: pytest.MonkeyPatch, stack: str = EVALUATES, *, steps: bool = True
) -> None:
    """Have all agents guess their ranks' steps; their ranks keep a core busy with `stack`.

    Without `steps` the ranks' collectives have no period, so no step is guessed.
    """
    report = Agent.report

    def changed(self: Agent, message: object, *round_number: int) -> None:
        if isinstance(message, Heartbeat):
            ranks = [
                dataclasses.replace(
                    one,
                    has_sdk=False,
                    section=RankSection.UNSPECIFIED,
                    step=one.step if steps else 0,
                    step_source=StepSource.COLLECTIVES,
                )
                for one in message.ranks
            ]
            message = dataclasses.replace(message, ranks=tuple(ranks))
        if isinstance(message, EvidenceCollected):
            busy = [
                dataclasses.replace(
                    one,
                    process_state="R",
                    cpu_seconds=1.0,
                    stack=stack,
                    groups=(dataclasses.replace(one.groups[0], operation="gloo:all_reduce"),),
                )
                for one in message.ranks
            ]
            message = dataclasses.replace(message, ranks=tuple(busy))
        report(self, message, *round_number)

    monkeypatch.setattr(Agent, "report", changed)
