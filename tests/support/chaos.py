"""Random faults on a simulated job, all drawn from one seed."""

from __future__ import annotations

import dataclasses

from holdfast_wire.messages import (
    DrainNodeRequest,
    DumpStacksRequest,
    JobPhase,
    RestartWorkerRequest,
    ScaleRequest,
)
from simulated_agent import SimulatedAgent
from simulated_job import SimulatedJob, job_spec


@dataclasses.dataclass
class Chaos:
    """One scenario: build a job, hurt it for a while, heal it, see it to its end."""

    seed: int
    masters: bool = True
    """The master itself is killed too."""

    def __post_init__(self) -> None:
        self.job = SimulatedJob(job_spec(), seed=self.seed, operator_up=True)
        self.luck = self.job.random
        job, luck = self.job, self.luck
        job.raises = luck.choice([0.0, 0.5, 1.0])
        job.store_failures = luck.choice([0.0, 0.0, 0.2])
        job.replace_delay = luck.choice([0.0, 0.5, 3.0])
        sizes = {
            "replicas": luck.choice([2, 3, 4, 6]),
            "min_replicas": luck.choice([1, 2]),
            "node_unit": luck.choice([1, 1, 1, 2]),
            "standbys": luck.choice([0, 0, 1]),
            "join_window_seconds": luck.choice([0.0, 3.0]),
        }
        if sizes["node_unit"] == 2:
            sizes["min_replicas"] = 2
        job.change(**sizes)
        for agent in job.agents.values():
            agent.local = luck.choice([1, 1, 2])
            agent.sdk = True

    # ------------------------------------------------------------------------------------ faults

    def _victim(self) -> SimulatedAgent | None:
        living = [a for a in self.job.agents.values() if a.alive and not a.left]
        return self.luck.choice(living) if living else None

    def _crash_worker(self, agent: SimulatedAgent) -> None:
        code, error = self.luck.choice([(-9, ""), (-11, ""), (1, "ValueError"), (3, "")])
        agent.crash_worker(code, error)

    def _crash(self, agent: SimulatedAgent) -> None:
        agent.crash(self.luck.choice([-9, 1]))

    def _vanish(self, agent: SimulatedAgent) -> None:
        agent.cut_off()
        self.job.time.after(self.luck.uniform(0.2, 12.0), agent.reachable)

    def _freeze(self, agent: SimulatedAgent) -> None:
        agent.freeze()
        self.job.time.after(self.luck.uniform(0.5, 12.0), agent.thaw)

    def _blip(self, agent: SimulatedAgent) -> None:
        agent.blip()

    def _evict(self, agent: SimulatedAgent) -> None:
        self.job.evict(agent.rank)

    def _leave(self, agent: SimulatedAgent) -> None:
        agent.goodbye(terminated=False)

    def _drain(self, agent: SimulatedAgent) -> None:
        self.job.ask(DrainNodeRequest(node_rank=agent.rank))

    def _restart(self, agent: SimulatedAgent) -> None:
        node = self.luck.choice([None, agent.rank])
        self.job.ask(RestartWorkerRequest(node_rank=node))

    def _scale(self, agent: SimulatedAgent) -> None:
        del agent
        self.job.ask(ScaleRequest(replicas=self.luck.choice([2, 3, 4, 6])))

    def _stacks(self, agent: SimulatedAgent) -> None:
        del agent
        self.job.ask(DumpStacksRequest())

    def _operator(self, agent: SimulatedAgent) -> None:
        del agent
        if self.job.operator_up:
            self.job.operator_leaves()
            self.job.time.after(self.luck.uniform(0.1, 5.0), self.job.operator_returns)

    def _suspend(self, agent: SimulatedAgent) -> None:
        del agent
        if not self.job.spec.suspend:
            self.job.change(suspend=True)
            after = self.luck.uniform(0.1, 10.0)
            self.job.time.after(after, lambda: self.job.change(suspend=False))

    def _stall(self, agent: SimulatedAgent) -> None:
        del agent
        self.job.stall_master(self.luck.uniform(1.0, 20.0))

    def _master(self, agent: SimulatedAgent) -> None:
        del agent
        if self.masters and self.job.master_up:
            self.job.kill_master()
            keeps = self.luck.random() < 0.7
            after = self.luck.uniform(0.05, 8.0)
            self.job.time.after(after, lambda: self.job.start_master(journal=keeps))

    def _together(self, agent: SimulatedAgent) -> None:
        other = self._victim()
        for one, what in ((agent, self._crash_worker), (other, self._crash)):
            if one is not None:
                what(one)

    def hurt(self) -> None:
        """One fault."""
        agent = self._victim()
        if agent is None:
            return
        faults = [
            (6, self._crash_worker),
            (4, self._crash),
            (2, self._vanish),
            (3, self._freeze),
            (3, self._blip),
            (2, self._evict),
            (1, self._leave),
            (2, self._drain),
            (2, self._restart),
            (2, self._scale),
            (1, self._stacks),
            (1, self._operator),
            (1, self._suspend),
            (1, self._stall),
            (2, self._master),
            (2, self._together),
        ]
        weights = [weight for weight, _ in faults]
        self.luck.choices([what for _, what in faults], weights)[0](agent)

    # --------------------------------------------------------------------------------------- run

    def run(self, faults: int) -> None:
        """Start, hurt, heal; the job must come back to its full size and then succeed."""
        job = self.job
        job.run(self.luck.uniform(0.0, 2.0))
        for _ in range(faults):
            self.hurt()
            job.run(self.luck.choice([0.0, 0.01, 0.05, 0.3, 2.0, 6.0]) * self.luck.random())
        self.heal()
        largest = job.core._desk.bounds.largest
        job.time.run(job.time.now + 90.0, self._is_whole)
        assert job.phase is JobPhase.TRAINING, job.tale("did not come back")
        assert len(job.members) == largest, job.tale(f"{job.members} instead of {largest} nodes")
        self._check_journal()
        job.training.target = job.training.step(job.core._desk.state.round, job.time.now) + 30
        job.time.run(job.time.now + 60.0, lambda: job.finished is not None)
        assert job.finished is not None, job.tale("did not end")
        assert job.finished.succeeded, job.tale("did not succeed")
        self._check_journal()

    def _is_whole(self) -> bool:
        job = self.job
        return job.phase is JobPhase.TRAINING and len(job.members) == job.core._desk.bounds.largest

    def heal(self) -> None:
        """Undo every fault that lasts, bring every missing node back."""
        job = self.job
        job.store_failures = 0.0
        job.replaces = True
        for agent in job.everyone:
            agent.reachable()
            agent.thaw()
        job.run(8.0)
        if not job.master_up:
            job.start_master()
        if not job.operator_up:
            job.operator_returns()
        if job.spec.suspend:
            job.change(suspend=False)
        job.run(9.0)
        for rank in range(job.spec.replicas + job.spec.standbys):
            there = job.agents.get(rank)
            if there is None or not there.alive or there.left:
                job.add_agent(rank)

    def _check_journal(self) -> None:
        """The journal alone gives the same state; every incident is charged at most once."""
        folded, state = self.job.refold(), self.job.core._desk.state
        for field in dataclasses.fields(folded):
            mine, its = getattr(state, field.name), getattr(folded, field.name)
            assert mine == its, f"{field.name}: {mine} in memory, {its} from the journal"
