"""An operator that makes no pod of its own accord: a master asks for it, or the test does."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from holdfast_master.inputs import OperatorMessage
from holdfast_wire.messages import PodPhase, ReleaseDecision, ReplaceDecision, SyncResponse
from simulation.operator import Operator

if TYPE_CHECKING:
    from simulation.agent import Agent
    from simulation.job import Job
    from simulation.master import Master
    from simulation.steered.job import SteeredJob


class SteeredOperator(Operator):
    """Quick, truthful, and asked by the test."""

    job: SteeredJob

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.spec, self.up = self.job.spec, self.job.operator_up

    def attach(self) -> None:
        """Open the stream to the newest master."""
        if self.up:
            super().attach()

    def observe(self, rank: int) -> None:
        """Say what is seen of a pod before anything that comes from it."""
        self.job.time.after(0.0002, self.say, self.pods[rank], self._lists)

    def ended(self, agent: Agent, phase: PodPhase, exit_code: int, reason: str = "") -> None:
        """The kubelet reports the end of a pod's container."""
        pod = self.pods.get(agent.rank)
        if pod is not None and pod.pod_uid == agent.pod_uid:
            self.pods[agent.rank] = dataclasses.replace(
                pod, phase=phase, exit_code=exit_code, reason=reason
            )
            self.observe(agent.rank)

    def come_back(self) -> None:
        """The operator is there again, and lists every pod."""
        self.up = True
        self.attach()

    def change(self, **changes: object) -> None:
        """A new generation of the spec; pods follow."""
        self.spec = dataclasses.replace(
            self.spec,
            generation=self.spec.generation + 1,
            **changes,  # type: ignore[arg-type]
        )
        self.job.take(OperatorMessage(self.spec))
        self.make_missing()

    def told(self, master: Master, response: SyncResponse) -> None:
        """A word of a master: pods are made where the test lets it."""
        message = response.message
        if isinstance(message, ReleaseDecision):
            for rank in message.node_ranks:
                self.mark(rank, wanted=True)
        elif self.job.replaces or not isinstance(message, ReplaceDecision):
            super().told(master, response)
