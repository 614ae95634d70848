"""Properties of plans, whatever happens to pods, to sizes, to the master and to the planner.

A random job is changed at random and planned after every change. Each plan is checked against a
model that knows nothing but the rules; at the end the faults stop and the job must come to rest.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast_operator.plan.actions import DeletePod, DeleteReason, FinishJob, Plan
from holdfast_operator.plan.pods import ObservedPod, PodSlot, Role, wanted_slots
from holdfast_operator.spec.problems import InvalidJobError
from holdfast_wire.messages import (
    FinishDecision,
    JobPhase,
    JobStatus,
    PodPhase,
    ReleaseDecision,
    ReplaceDecision,
    ScaleDecision,
)
from jobs.job_files import TEMPLATE
from jobs.planned import World, made_by

GRACE_SECONDS = 20
PICK = st.integers(0, 1_000)
SHRINKING = frozenset({DeleteReason.SURPLUS, DeleteReason.SUSPENDED})


class Cluster(RuleBasedStateMachine):
    """One job in a cluster where anything may happen at any time."""

    @initialize(
        replicas=st.integers(1, 4),
        standbys=st.integers(0, 2),
        roles=st.integers(0, 2),
        policy=st.sampled_from(["Never", "OnFailure", "Always"]),
        pods=st.sampled_from(["Running", "All", "None"]),
    )
    def begin(self, replicas: int, standbys: int, roles: int, policy: str, pods: str) -> None:
        """A job of some size."""
        role = {"name": "e", "replicas": 2, "restartPolicy": policy, "template": TEMPLATE}
        fields: dict[str, Any] = {
            "replicas": replicas,
            "minReplicas": 1,
            "maxReplicas": 6,
            "worker__standbys": standbys,
            "elasticPolicy__scaleDownGraceSeconds": GRACE_SECONDS,
            "cleanup__pods": pods,
            "extraRoles": [role] if roles else [],
        }
        self.world = World(fields)
        self.surplus_since: dict[str, float] = {}
        self.released: set[str] = set()
        self.made_names: set[str] = set()

    # --- what may happen -------------------------------------------------------------------------

    def _pick(self, at: int) -> str | None:
        names = sorted(self.world.pods)
        return names[at % len(names)] if names else None

    @rule(at=PICK, code=st.sampled_from([0, 1, -9]))
    def pod_ends(self, at: int, code: int) -> None:
        """A process ends, with success or not."""
        name = self._pick(at)
        if name and self.world.pods[name].live:
            self.world.end(name, code)

    @rule(at=PICK)
    def pod_vanishes(self, at: int) -> None:
        """Somebody deletes a pod by force."""
        name = self._pick(at)
        if name:
            del self.world.pods[name]

    @rule(at=PICK)
    def pod_is_deleted_by_others(self, at: int) -> None:
        """A preemption, a drain, a person."""
        name = self._pick(at)
        if name:
            self.world.change(name, deleting=True)

    @rule(at=PICK)
    def pod_gets_ready(self, at: int) -> None:
        """An agent connects."""
        name = self._pick(at)
        if name and self.world.pods[name].live:
            self.world.change(name, ready=True, phase=PodPhase.RUNNING)

    @rule(at=PICK, lost=st.booleans())
    def node_goes_or_comes(self, at: int, lost: bool) -> None:  # noqa: FBT001
        """A node stops to answer, or answers again."""
        name = self._pick(at)
        if name:
            self.world.change(name, lost=lost)

    @rule(nodes=st.sets(st.integers(0, 2), max_size=2))
    def nodes_answer_nothing(self, nodes: set[int]) -> None:
        """Some nodes do not answer, and the others do."""
        self.world.unreachable = frozenset(f"node-{number}" for number in nodes)

    @rule()
    def deletions_come_through(self) -> None:
        """Finish all deletions under way."""
        self.world.finish_deletions()

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 15.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        """Nothing happens for a while."""
        self.world.now += seconds

    @precondition(lambda self: not self.world.status.get("completionTime"))
    @rule(replicas=st.integers(1, 6))
    def person_scales(self, replicas: int) -> None:
        """Another size, where the rules allow it."""
        self.world.scale(replicas)

    @precondition(lambda self: not self.world.status.get("completionTime"))
    @rule(wanted=st.booleans())
    def person_suspends_or_resumes(self, wanted: bool) -> None:  # noqa: FBT001
        """The job is held back, or goes on."""
        self.world.suspend(wanted)

    @precondition(lambda self: not self.world.status.get("completionTime"))
    @rule(seconds=st.sampled_from([1.0, 15.0]))
    def person_shrinks_and_grows_again(self, seconds: float) -> None:
        """A smaller size for a while: what was said about it is worth nothing later."""
        size = self.world.job.spec.replicas
        self.world.scale(1)
        self._look()
        self._release(*range(1, 8))
        self.world.now += seconds
        self.world.scale(size)
        self._look()

    @rule(at=PICK)
    def master_releases(self, at: int) -> None:
        """The master lets go of a rank."""
        self._release(at % 8)

    def _release(self, *ranks: int) -> None:
        """A release counts for the pods that are surplus when it is heard."""
        self._note_surplus()
        self.world.hear(ReleaseDecision(node_ranks=ranks))
        self.released |= {
            name
            for name, pod in self.world.pods.items()
            if pod.slot.index in ranks and name in self.surplus_since
        }

    @rule(at=PICK)
    def master_replaces(self, at: int) -> None:
        """The master wants a worker's pod made anew."""
        name = self._pick(at)
        pod = self.world.pods[name] if name else None
        if pod is not None and pod.slot.role is Role.WORKER:
            self.world.hear(ReplaceDecision(node_rank=pod.slot.index, pod_uid=pod.uid))

    @rule(replicas=st.integers(0, 9))
    def master_hands_on_a_size(self, replicas: int) -> None:
        """A user asked the master for another size, perhaps a wrong one."""
        self.world.hear(ScaleDecision(decision_id=self.world.generation, replicas=replicas))

    @rule(phase=st.sampled_from(JobPhase), active=st.integers(0, 6), number=st.integers(0, 3))
    def master_reports(self, phase: JobPhase, active: int, number: int) -> None:
        """The master tells how it stands."""
        said = JobStatus(phase=phase, active_nodes=active, ready_nodes=active, round=number)
        self.world.hear(said)

    @rule()
    def master_goes(self) -> None:
        """The stream to the master ends."""
        self.world.master = self.world.master.disconnected()

    @precondition(lambda self: self.world.now > 1_700_000_060)
    @rule(succeeded=st.booleans())
    def master_ends_the_job(self, succeeded: bool) -> None:  # noqa: FBT001
        """The job is decided."""
        self.world.hear(FinishDecision(succeeded=succeeded, reason="Because", text="so"))

    @rule()
    def planner_is_started_anew(self) -> None:
        """The operator restarts; only the status is left to it."""
        self.world.history = {}
        self.made_names.clear()

    @rule(upto=st.integers(0, 20))
    def plan_is_carried_out_in_part(self, upto: int) -> None:
        """The shell does some of what is asked, and is then interrupted."""
        for action in self._look().actions[:upto]:
            self._do(action)

    def _do(self, action: Any) -> None:
        # A size that the rules refuse changes nothing: the master is told so.
        with contextlib.suppress(InvalidJobError):
            self.world.carry_out(action)

    # --- what must hold --------------------------------------------------------------------------

    @invariant()
    def every_plan_keeps_the_rules(self) -> None:
        """Planned after every change, whether or not it is carried out."""
        if hasattr(self, "world"):
            self._look()

    def _look(self) -> Plan:
        world = self.world
        self._note_surplus()
        ended = bool(world.status.get("completionTime"))
        made = world.look()
        if not any(isinstance(action, FinishJob) for action in made.actions):
            again = world.look_again()
            assert again.actions == made.actions
            assert dict(again.status) == dict(made.status)
            assert dict(again.history) == dict(made.history)
        self._check_creations(made, ended=ended)
        for action in made.actions:
            if isinstance(action, DeletePod):
                self._check_deletion(action)
        assert made.requeue_after is None or made.requeue_after >= 0
        return made

    def _note_surplus(self) -> None:
        spec = self.world.job.spec
        wanted = set() if spec.suspend else set(wanted_slots(spec))
        for name, pod in self.world.pods.items():
            if pod.slot in wanted:
                self.surplus_since.pop(name, None)
                self.released.discard(name)
            else:
                self.surplus_since.setdefault(name, self.world.now)

    def _check_creations(self, made: Plan, *, ended: bool) -> None:
        world = self.world
        created = made_by(made)
        living = {
            pod.slot for pod in world.pods.values() if pod.live and not self._is_stranded(pod)
        }
        slots = [action.slot for action in created]
        assert len(set(slots)) == len(slots), "two pods for one place in one plan"
        assert not set(slots) & living, "a second living pod for a place"
        assert all(action.name not in world.pods for action in created), "a name used twice"
        assert all(
            action.name == action.slot.pod_name("t", action.incarnation) for action in created
        )
        if ended or world.master.outcome is not None:
            assert created == [], "a pod for a job that ends"
        if world.job.spec.suspend:
            assert all(action.slot.role is Role.MASTER for action in created)
        assert set(slots) <= set(wanted_slots(world.job.spec))

    def _is_stranded(self, pod: ObservedPod) -> bool:
        """A pod that never began, on a node that answers nothing or where another pod was lost."""
        lost = {one.node for one in self.world.pods.values() if one.lost}
        if pod.phase is PodPhase.PENDING and pod.node in self.world.unreachable | lost:
            return True
        is_there = pod.node in self.world.unreachable and not pod.serving
        return pod.slot.role is Role.MASTER and is_there and not self.world.master.connected

    def _check_deletion(self, action: DeletePod) -> None:
        pod = self.world.pods[action.name]
        assert action.uid == pod.uid
        if action.grace_s == 0:
            self._check_forgotten(pod)
            return
        assert not pod.deleting, "deleted twice"
        shrinking = action.reason in SHRINKING and pod.live and pod.slot.role is Role.WORKER
        if shrinking and action.name not in self.released and not self._is_stranded(pod):
            waited = self.world.now - self.surplus_since[action.name]
            assert waited >= GRACE_SECONDS, "an unreleased worker before its grace was spent"

    def _check_forgotten(self, pod: ObservedPod) -> None:
        """Nobody but a followed master may run on while its pod is gone, and only where unseen."""
        assert pod.slot.role is Role.MASTER
        assert pod.deleting
        assert pod.lost or pod.node in self.world.unreachable or self._is_stranded(pod)
        others = [one for one in self.world.pods.values() if one.slot == pod.slot and one.live]
        assert any(one.incarnation > pod.incarnation for one in others)

    def teardown(self) -> None:
        """The faults stop: the job comes to rest with the pods that it should have."""
        if not hasattr(self, "world"):
            return
        self.world.unreachable = frozenset()
        for name in list(self.world.pods):
            self.world.change(name, lost=False)
        made = self._look()
        for _ in range(40):
            for action in made.actions:
                self._do(action)
            self.world.finish_deletions()
            for name, pod in list(self.world.pods.items()):
                if pod.live:
                    self.world.change(name, ready=True, phase=PodPhase.RUNNING)
            self.world.now += made.requeue_after or 0.0
            made = self._look()
            if not made.actions and made.requeue_after is None:
                break
        else:
            raise AssertionError(f"no rest: {made.actions} {made.requeue_after}")
        self._check_rest()

    def _check_rest(self) -> None:
        world = self.world
        slots = [pod.slot for pod in world.pods.values() if pod.live]
        living = set(slots)
        if world.status.get("completionTime"):
            policy = world.job.spec.cleanup.pods.value
            assert policy == "None" or not living
            assert policy != "All" or not world.pods
        elif world.job.spec.suspend:
            assert not {pod.slot for pod in world.pods.values() if pod.slot.role is Role.WORKER}
            assert not living
        else:
            assert len(living) == len(slots), "two living pods for a place"
            missing = set(wanted_slots(world.job.spec)) - living
            assert living <= set(wanted_slots(world.job.spec))
            assert all(self._may_be_missing(slot) for slot in missing), missing

    def _may_be_missing(self, slot: PodSlot) -> bool:
        """A place may stay empty whose last pod succeeded, or whose policy says so."""
        entry = self.world.history.get(slot)
        if entry is None or slot.role is Role.MASTER:
            return False
        return entry.succeeded or (
            slot.role is Role.EXTRA
            and self.world.job.spec.extra_roles[0].restart_policy.value == "Never"
        )


# The lines of the plan are covered by the tables beside this; here it is the orders that count.
TestPlans = pytest.mark.no_cover(Cluster.TestCase)
TestPlans.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
