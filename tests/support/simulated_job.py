"""A whole job in memory: the real core, simulated agents, operator and users.

For tests of the core that write their story themselves: they do a fault at a moment of their
choice, hold a message back, or say what no real agent would. So its agents are small and obedient,
and know nothing of `holdfast_agent`. What agents really decide, under faults that are drawn before
the run, is simulated in `simulation`: tests/simulation and the soak stand on that.

After every input the core's invariants are checked. The same seed gives the same run.
"""

from __future__ import annotations

import dataclasses

from holdfast_master.core import Core
from holdfast_master.inputs import (
    Asked,
    OperatorConnected,
    OperatorDisconnected,
    PodListDone,
    PodSeen,
    ScaleAnswered,
    SpecArrived,
    Stalled,
    StopWished,
    UserRequest,
)
from holdfast_wire.messages import (
    FinishDecision,
    LeaveOutcome,
    PodObservation,
    PodPhase,
    ReleaseDecision,
    ReplaceDecision,
    ScaleDecision,
    ScaleResult,
    StopWish,
)
from simulated_agent import SimulatedAgent
from simulated_master import SimulatedMaster
from simulated_process import AgentProcess
from simulated_spec import job_spec

__all__ = ["SimulatedJob", "job_spec"]


@dataclasses.dataclass(eq=False)
class SimulatedJob(SimulatedMaster):
    """Drive it with the agents' and the operator's methods, let time pass with `run`."""

    def add_agent(self, rank: int, **more: object) -> SimulatedAgent:
        """A pod with its agent."""
        number = self.count()
        agent = SimulatedAgent(self, rank, f"a{number}", f"p{number}", **more)  # type: ignore[arg-type]
        self.agents[rank] = agent
        self.everyone.append(agent)
        self.pods[rank] = PodObservation(
            node_rank=rank,
            pod_uid=agent.pod_uid,
            name=f"job-worker-{rank}",
            phase=PodPhase.RUNNING,
            node=f"k8s-{rank}",
        )
        self.tell_pod(rank)
        agent.start()
        return agent

    def container_ends(self, rank: int, exit_code: int = -9, reason: str = "") -> None:
        """A pod's container ends with all that runs in it; its node will start it again."""
        self.agents[rank].crash(exit_code, told=False)
        pod = self.pods[rank]
        self.pods[rank] = dataclasses.replace(
            pod, ends=pod.ends + 1, exit_code=exit_code, reason=reason
        )

    def start_again(self, rank: int) -> SimulatedAgent:
        """The next agent of the same pod."""
        agent = SimulatedAgent(self, rank, f"a{self.count()}", self.pods[rank].pod_uid)
        self.agents[rank] = agent
        self.everyone.append(agent)
        agent.start()
        return agent

    def add_agents(self, count: int, **more: object) -> list[SimulatedAgent]:
        """Agents of node ranks 0 to count - 1."""
        return [self.add_agent(rank, **more) for rank in range(count)]

    def departed(self, agent: AgentProcess, outcome: LeaveOutcome | None) -> None:
        """An agent ended by itself."""
        self.outcomes.append((agent.rank, outcome))
        if agent.session is not None:
            session, agent.session = agent.session, None
            self.cut_stream(session)
        self._end_pod(agent, PodPhase.SUCCEEDED, 0)

    def pod_ended(self, agent: AgentProcess, exit_code: int) -> None:
        """The operator sees an agent's death a little later."""
        self.time.after(
            self.draw(0.005, 0.1), lambda: self._end_pod(agent, PodPhase.FAILED, exit_code)
        )

    def _end_pod(self, agent: AgentProcess, phase: PodPhase, exit_code: int) -> None:
        pod = self.pods.get(agent.rank)
        if pod is None or pod.pod_uid != agent.pod_uid:
            return
        self.pods[agent.rank] = dataclasses.replace(pod, phase=phase, exit_code=exit_code)
        self.tell_pod(agent.rank)

    def tell_pod(self, rank: int) -> None:
        """The operator reports a pod."""
        if self.operator_up:
            pod = self.pods[rank]
            self.time.after(self.draw(0.001, 0.02), lambda: self._pod_arrives(pod))

    def _pod_arrives(self, pod: PodObservation) -> None:
        if self.operator_up:
            self.take(PodSeen(pod))

    def _told(self, message: object) -> None:
        if isinstance(message, ReplaceDecision) and self.replaces:
            self.time.after(self.replace_delay, lambda: self.replace(message.node_rank, message))
        elif isinstance(message, ReleaseDecision):
            for rank in message.node_ranks:
                self._delete(rank)
        elif isinstance(message, ScaleDecision):
            self.time.after(0.05, lambda: self._scaled(message))
        elif isinstance(message, FinishDecision):
            self.finish_told = message

    def _delete(self, rank: int) -> None:
        pod = self.pods.get(rank)
        if pod is not None:
            self.pods[rank] = dataclasses.replace(pod, terminating=True, wanted=True)
            self.tell_pod(rank)

    def replace(self, rank: int, decision: ReplaceDecision | None = None) -> None:
        """Make the pod of a node rank anew."""
        pod = self.pods.get(rank)
        if decision is not None and (pod is None or pod.pod_uid != decision.pod_uid):
            return
        if rank >= self.spec.replicas + self.spec.standbys or self.finished is not None:
            return
        agent = self.agents.get(rank)
        if agent is not None:
            agent.crash(told=False)
        self.add_agent(rank)

    def _scaled(self, message: ScaleDecision) -> None:
        self.take(ScaleAnswered(ScaleResult(decision_id=message.decision_id, ok=True)))
        self.change(replicas=message.replicas)

    def change(self, **changes: object) -> None:
        """A new generation of the spec; pods follow."""
        generation = self.spec.generation + 1
        self.spec = dataclasses.replace(self.spec, generation=generation, **changes)  # type: ignore[arg-type]
        self.take(SpecArrived(self.spec))
        if self.spec.suspend:
            return
        for rank in range(self.spec.replicas + self.spec.standbys):
            agent = self.agents.get(rank)
            if agent is None or not agent.alive or agent.left:
                self.add_agent(rank)

    def operator_leaves(self) -> None:
        """The operator's stream breaks."""
        self.operator_up = False
        self.take(OperatorDisconnected())

    def operator_returns(self) -> None:
        """The operator is back and lists every pod."""
        self.operator_up = True
        self.take(OperatorConnected())
        self.take(SpecArrived(self.spec))
        for rank in sorted(self.pods):
            self.take(PodSeen(self.pods[rank]))
        self.take(PodListDone())

    def evict(self, rank: int) -> None:
        """The cluster takes a pod away: SIGTERM, then the node is gone."""
        agent, pod = self.agents[rank], self.pods[rank]
        if not agent.alive or agent.left:
            return
        conditions = ("DisruptionTarget=True",)
        self.pods[rank] = dataclasses.replace(pod, terminating=True, conditions=conditions)
        self.tell_pod(rank)
        agent.goodbye(terminated=True)
        self.time.after(self.draw(0.2, 8.0), lambda: agent.crash(-15))

    def ask(self, request: UserRequest) -> int:
        """A user asks."""
        number = self.count()
        self.take(Asked(number, request, "user"))
        return number

    def stop(self, grace: float) -> None:
        """The operator wants the job to end."""
        self.take(StopWished(StopWish(reason="test", grace_seconds=grace)))

    # ------------------------------------------------------------------------------------ master

    def kill_master(self) -> None:
        """The master process dies; every stream breaks."""
        self.master_up = False
        for session, agent in list(self.streams.items()):
            del self.streams[session]
            if agent.session == session:
                agent.dropped()

    def start_master(self, *, journal: bool = True) -> None:
        """A new master reads the journal."""
        self._epoch += 1
        self.master_up = True
        if not journal:
            self.records.clear()
            self._round = self._kept = 0
        self.core = Core.restore(self.records, self._identity(), self.settings)
        self.do(self.core.open(self.moment()))
        self.core.validate()
        if self.operator_up:
            self.operator_returns()

    def stall_master(self, seconds: float) -> None:
        """The master's loop stands still, then reads what has come."""
        self.take(Stalled(seconds))
