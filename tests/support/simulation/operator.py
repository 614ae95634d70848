"""The simulated operator: pods, what it sees of them, and what it does for the master.

Belongs here: making, deleting and observing pods; epochs of masters. Does not belong here: the
real operator's plan (`holdfast_operator.plan`), which has its own tests; but whose words count, of
several masters, is decided by its own `plan.masters`.

It is late, repeats itself, and its words about different pods overtake each other; about one pod
the first word comes before later ones.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from holdfast_master.inputs import OperatorConnected, OperatorDisconnected, OperatorMessage
from holdfast_operator.plan.view import KnownMaster
from holdfast_wire import messages as wire
from simulation.oracle import invariants

if TYPE_CHECKING:
    from simulation.agent import Agent
    from simulation.job import Job
    from simulation.master import Master
    from simulation.scenario import Scenario

FIRST_WORD = 0.5
"""After this long the shell of a master has said its status on a new stream, s."""
GRACE = 8.0
"""Of a pod that is deleted, s."""
KINDS = (
    wire.BudgetKind.FAILURES,
    wire.BudgetKind.PREEMPTIONS,
    wire.BudgetKind.RESCALES,
    wire.BudgetKind.NO_PROGRESS,
)

HEALTH = wire.HealthPolicy(
    hang=wire.HangPolicy(
        mode=wire.HealthMode.REPORT, step_time_factor=10.0, min_seconds=6.0, first_step_seconds=30.0
    ),
    straggler=wire.StragglerPolicy(
        mode=wire.HealthMode.REPORT, slowdown_percent=20.0, window_steps=10, votes=3, votes_out_of=5
    ),
)
"""Thresholds of the simulated jobs: low, so that verdicts come within a run."""
ACTING_HEALTH = wire.HealthPolicy(
    hang=dataclasses.replace(HEALTH.hang, mode=wire.HealthMode.ACT),  # type: ignore[type-var]
    straggler=dataclasses.replace(HEALTH.straggler, mode=wire.HealthMode.ACT),  # type: ignore[type-var]
)
"""The same, and masters act on verdicts."""


def first_spec(scenario: Scenario) -> wire.MasterSpec:
    """The spec that a scenario begins with."""
    return wire.MasterSpec(
        generation=1,
        replicas=scenario.replicas,
        min_replicas=scenario.minimum,
        nodes_per_replica=scenario.nodes_per_replica,
        max_replicas=scenario.maximum,
        node_unit=scenario.unit,
        standbys=scenario.standbys,
        success_policy=wire.SuccessPolicy(scenario.policy),
        join_window_seconds=scenario.join_window,
        scale_down_grace_seconds=8.0,
        below_min_timeout_seconds=600.0,
        budgets=tuple(wire.Budget(kind=kind, limit=scenario.budget) for kind in KINDS),
        health=ACTING_HEALTH if scenario.acts else HEALTH,
    )


class Operator:
    """Pods by node rank, and the streams to masters; one that was not given up stays open."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.up = True
        self.lateness = 0.0
        self.spec = first_spec(job.scenario)
        self.known = KnownMaster()
        """The newest master that was started or heard."""
        self.pods: dict[int, wire.PodObservation] = {}
        self.said: list[wire.PodObservation] = []
        """What was observed before, to be repeated."""
        self.finish: wire.FinishDecision | None = None
        self._said_at: dict[int, float] = {}
        self._lists = 0

    @property
    def wanted(self) -> int:
        """Pods that the spec wants."""
        return 0 if self.spec.suspend else self.spec.replicas + self.spec.standbys

    # ---------------------------------------------------------------------------------------- pods

    def make(self, rank: int) -> Agent:
        """A new pod with its agent."""
        number = self.job.count()
        agent = self.job.new_agent(rank, number, f"p{number}")
        self.pods[rank] = wire.PodObservation(
            node_rank=rank,
            pod_uid=agent.pod_uid,
            name=f"job-worker-{rank}",
            phase=wire.PodPhase.RUNNING,
            node=f"k8s-{rank}",
        )
        self.observe(rank)
        return agent

    def make_missing(self) -> None:
        """Every wanted node rank has a living pod."""
        if self.finish is not None or self.job.over:
            return
        for rank in range(self.wanted):
            agent = self.job.agents.get(rank)
            if agent is None or not agent.alive:
                self.replace(rank)

    def replace(self, rank: int) -> None:
        """Make the pod of a node rank anew; the one before is surely gone then."""
        if rank >= self.wanted or self.job.over:
            return
        agent = self.job.agents.get(rank)
        if agent is not None:
            self.job.kill_agent(agent)
        self.make(rank)

    def observe(self, rank: int) -> None:
        """Say what is seen of a pod, a little later."""
        pod = self.pods[rank]
        delay = self.job.luck.uniform(0.001, 0.05) + self.job.luck.random() * self.lateness
        when = max(self.job.time.now + delay, self._said_at.get(rank, 0.0))
        self._said_at[rank] = when
        self.job.time.at(when, self.say, pod, self._lists)

    def say(self, pod: wire.PodObservation, lists: int) -> None:
        """One observation reaches the master, unless a newer list has all that it says."""
        if self.up and lists == self._lists:
            self.said.append(pod)
            self.job.master.push(OperatorMessage(pod))

    def ended(self, agent: Agent, phase: wire.PodPhase, exit_code: int, reason: str = "") -> None:
        """The kubelet reports the end of a pod's container."""
        pod = self.pods.get(agent.rank)
        if pod is None or pod.pod_uid != agent.pod_uid:
            return
        self.pods[agent.rank] = dataclasses.replace(
            pod, phase=phase, exit_code=exit_code, reason=reason
        )
        self.observe(agent.rank)
        if phase is wire.PodPhase.FAILED:
            delay = self.job.scenario.replace_delay
            self.job.time.after(delay, self._refill, agent.rank, agent.pod_uid)

    def _refill(self, rank: int, pod_uid: str) -> None:
        """A pod that failed gets a successor; one that ended well only by the master's wish."""
        pod = self.pods.get(rank)
        if self.up and pod is not None and pod.pod_uid == pod_uid:
            self.replace(rank)

    def mark(self, rank: int, *, wanted: bool = False, conditions: tuple[str, ...] = ()) -> None:
        """A deletion is under way."""
        pod = self.pods.get(rank)
        if pod is not None and pod.phase is wire.PodPhase.RUNNING:
            self.pods[rank] = dataclasses.replace(
                pod, terminating=True, wanted=wanted, conditions=conditions
            )
            self.observe(rank)

    def doubt(self, rank: int, span: float) -> None:
        """The node of a rank's pod seems to answer nothing for a while; it may live."""
        pod = self.pods.get(rank)
        if pod is None:
            return
        self.pods[rank] = dataclasses.replace(pod, unreachable=True)
        self.observe(rank)
        self.job.time.after(span, self._believe, rank, pod.pod_uid)

    def _believe(self, rank: int, pod_uid: str) -> None:
        pod = self.pods.get(rank)
        if pod is not None and pod.pod_uid == pod_uid:
            self.pods[rank] = dataclasses.replace(pod, unreachable=False)
            self.observe(rank)

    # -------------------------------------------------------------------------------------- stream

    def attach(self) -> None:
        """Open the stream to the newest master: spec, every pod, end of the list."""
        if not self.up:
            return
        self._lists += 1
        self.known = self.known.started(self.job.master.identity.epoch)
        self.call(self.job.master)

    def call(self, master: Master) -> None:
        """Open a stream to a master; soon it says its status, and with that who it is."""
        master.push(OperatorConnected())
        master.push(OperatorMessage(self.spec))
        for rank in sorted(self.pods):
            self.said.append(self.pods[rank])
            master.push(OperatorMessage(self.pods[rank]))
        master.push(OperatorMessage(wire.PodListDone()))
        self.job.time.after(FIRST_WORD, self._hear_first, master)

    def _hear_first(self, master: Master) -> None:
        if master.acting and not master.frozen:
            identity = master.core.job.identity
            fence = wire.Fence(epoch=identity.epoch, incarnation=identity.incarnation)
            self.told(
                master, wire.SyncResponse(fence=fence, message=wire.JobStatus(epoch=fence.epoch))
            )

    def leave(self) -> None:
        """The operator's process ends."""
        if self.up:
            self.up = False
            for master in (self.job.master, *self.job.others):
                master.push(OperatorDisconnected())

    def come_back(self) -> None:
        """The operator is there again."""
        if not self.up:
            self.up = True
            self.attach()
            for rank, pod in sorted(self.pods.items()):
                if pod.phase is wire.PodPhase.FAILED:
                    self.job.time.after(0.1, self._refill, rank, pod.pod_uid)

    def change(self, **changes: object) -> None:
        """A new generation of the spec; pods follow."""
        generation = self.spec.generation + 1
        self.spec = dataclasses.replace(self.spec, generation=generation, **changes)  # type: ignore[arg-type]
        self.job.checks.promises.disturb()
        if self.up:
            self.job.master.push(OperatorMessage(self.spec))
        self.job.time.after(0.05, self.make_missing)

    def repeat(self) -> None:
        """Some of what was said before is said again, late."""
        if self.up:
            ended = [
                pod for pod in self.said if pod.phase in {wire.PodPhase.FAILED, wire.PodPhase.GONE}
            ]
            for source in (self.said, ended, ended):
                if source:
                    self.job.master.push(OperatorMessage(self.job.luck.choice(source)))

    def told(self, master: Master, response: wire.SyncResponse) -> None:
        """A word of any master that has a stream: the fence says whether it is acted on."""
        if not self.up:
            return
        if self.known.refusal(response.fence):
            self.job.time.after(0.001, master.push, OperatorDisconnected())  # it hangs up
            return
        invariants.operator_obeys_newest(self.known, response)
        self.known = self.known.heard(response.fence)
        message = response.message
        if isinstance(message, wire.ReplaceDecision):
            self.job.time.after(self.job.scenario.replace_delay, self._replace, message)
        elif isinstance(message, wire.ReleaseDecision):
            for rank in message.node_ranks:
                if rank >= self.wanted:
                    self._delete(rank)
        elif isinstance(message, wire.ScaleDecision):
            self.job.time.after(0.05, self._scale, message)
        elif isinstance(message, wire.FinishDecision):
            self.finish = message

    def _delete(self, rank: int) -> None:
        """A pod that the spec does not want is deleted: SIGTERM, and SIGKILL after the grace."""
        agent = self.job.agents.get(rank)
        self.mark(rank, wanted=True)
        if agent is not None and agent.alive:
            agent.on_signal(15, GRACE)
            self.job.time.after(GRACE, self.job.evicted, agent)

    def _replace(self, decision: wire.ReplaceDecision) -> None:
        pod = self.pods.get(decision.node_rank)
        if self.up and pod is not None and pod.pod_uid == decision.pod_uid:
            self.replace(decision.node_rank)

    def _scale(self, decision: wire.ScaleDecision) -> None:
        if not self.up:
            return
        unit = max(1, self.spec.node_unit)
        ok = self.spec.min_replicas <= decision.replicas and decision.replicas % unit == 0
        error = "" if ok else "out of bounds"
        result = wire.ScaleResult(decision_id=decision.decision_id, ok=ok, error=error)
        self.job.master.push(OperatorMessage(result))
        if ok:
            self.change(replicas=decision.replicas)
