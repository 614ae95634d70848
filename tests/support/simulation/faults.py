"""Effects of each fault on a running job. `scenario` has their names, weights and spans.

Belongs here: one function for each fault, and what ends it. Does not belong here: when it happens.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from holdfast_master.inputs import OperatorMessage, UserRequest
from holdfast_wire import messages as wire
from simulation.operator import GRACE
from simulation.oracle.accounts import Hurt
from simulation.oracle.health import Planted
from simulation.sampling import HANGS
from simulation.scenario import Fault

if TYPE_CHECKING:
    from simulation.agent import Agent
    from simulation.job import Job
    from simulation.local_round import Hung

_WEAR = ((0.0, 0.3), (0.4, 0.7), (0.7, 1.5))
"""Of a node that wears out: from which share of the span on it needs how much more for a step."""


def apply(job: Job, fault: Fault) -> None:
    """Let a fault happen."""
    FAULTS[fault.what](job, fault)


def _victim(job: Job, fault: Fault) -> Agent | None:
    living = [rank for rank, agent in sorted(job.agents.items()) if agent.able]
    if not living:
        return None
    return job.agents[next((rank for rank in living if rank >= fault.who), living[0])]


def _hit(hurt: Hurt, what: Callable[[Job, Agent, Fault], None]) -> Callable[[Job, Fault], None]:
    def happen(job: Job, fault: Fault) -> None:
        agent = _victim(job, fault)
        if agent is not None:
            job.checks.accounts.hurt(agent.rank, hurt, fault.span)
            what(job, agent, fault)

    return happen


def _exit(code: int, error: str) -> Callable[[Job, Agent, Fault], None]:
    def happen(_: Job, agent: Agent, fault: Fault) -> None:
        agent.workers.exit(fault.who % agent.local, code, error, delay=0.003)

    return happen


def _crash(job: Job, agent: Agent, _: Fault) -> None:
    job.kill_agent(agent)
    job.pod_failed(agent, 137)


def _vanish(job: Job, agent: Agent, _: Fault) -> None:
    """The machine is gone; nobody sees it for a while."""
    agent.cut_up += 1
    agent.cut_down += 1
    job.kill_agent(agent)
    job.time.after(9.0, job.pod_failed, agent, 255)


def _restart(job: Job, agent: Agent, _: Fault) -> None:
    """The container is started anew in the same pod."""
    job.kill_agent(agent)
    job.time.after(0.3, job.restart_in_pod, agent)


def _crash_zygote(_: Job, agent: Agent, __: Fault) -> None:
    agent.zygote_lost()


def _fail_agent(_: Job, agent: Agent, __: Fault) -> None:
    agent.give_up("a part of the agent failed")


def _freeze(job: Job, agent: Agent, fault: Fault) -> None:
    agent.freeze(node=False)
    job.time.after(fault.span, agent.thaw)


def _pause(job: Job, agent: Agent, fault: Fault) -> None:
    agent.freeze(node=True)
    job.time.after(fault.span, agent.thaw)


def _blip(_: Job, agent: Agent, __: Fault) -> None:
    if agent.stream is not None:
        agent.stream.reset()


def _cut(up: int, down: int) -> Callable[[Job, Agent, Fault], None]:
    def happen(job: Job, agent: Agent, fault: Fault) -> None:
        job.cut([agent], up, down, fault.span)

    return happen


def _cut_many(share: int, up: int = 1) -> Callable[[Job, Fault], None]:
    def happen(job: Job, fault: Fault) -> None:
        chosen = [a for rank, a in sorted(job.agents.items()) if a.alive and rank % share == 0]
        for agent in chosen:
            job.checks.accounts.hurt(agent.rank, Hurt.NETWORK, fault.span)
        job.cut(chosen, up, 1, fault.span)

    return happen


def _cut_peers(job: Job, fault: Fault) -> None:
    for agent in job.agents.values():
        agent.cut_peers += 1
        job.time.after(fault.span, agent.peers_reachable)


def _slow(job: Job, agent: Agent, fault: Fault) -> None:
    agent.lag, agent.drag = 0.3, 1.0
    job.time.after(fault.span, agent.quick_again)


def _straggle(job: Job, fault: Fault) -> None:
    """A node computes more slowly, by up to twice; now and then hardly at all."""
    agent = _victim(job, fault)
    if agent is not None:
        luck = _luck(job, fault)
        share = luck.uniform(0.01, 0.08) if luck.random() < 0.25 else luck.uniform(0.4, 1.0)
        planted = job.checks.health.planted(agent, fault)
        agent.workers.slow_down(share)
        job.time.after(fault.span, _as_fast_again, job, planted, share)


def _as_fast_again(job: Job, planted: Planted, share: float) -> None:
    job.checks.health.slow_ends(planted, share)
    planted.agent.workers.slow_down(0.0)


def _wear_out(job: Job, agent: Agent, fault: Fault) -> None:
    """A node gets slower and slower, then it is gone."""
    for at, share in _WEAR:
        job.time.after(fault.span * at, agent.workers.slow_down, share)
    job.time.after(fault.span, _break_down, job, agent)


def _break_down(job: Job, agent: Agent) -> None:
    if agent.alive:
        job.checks.promises.disturb()
        _crash(job, agent, Fault(job.time.now, "crash_agent"))


def _hang(job: Job, agent: Agent, fault: Fault) -> None:
    """A rank makes no more progress, in one of the ways that evidence tells apart."""
    luck = _luck(job, fault)
    planted = job.checks.health.planted(agent, fault)
    hung = agent.sampling.hang(luck.choice(HANGS), luck.randrange(agent.local))
    if hung is not None:
        job.checks.health.hangs_now(planted, hung)
        job.time.after(fault.span, _goes_on, job, planted, hung)


def _goes_on(job: Job, planted: Planted, hung: Hung) -> None:
    job.checks.health.hang_ends(planted)
    planted.agent.sampling.release(hung)


def _set_clock(job: Job, fault: Fault) -> None:
    """A node's Unix clock is set, or that of the masters' machine, by much or by little."""
    agent, luck = _victim(job, fault), _luck(job, fault)
    by = luck.choice((luck.uniform(0.005, 0.09), luck.uniform(0.1, 5.0))) * luck.choice((-1, 1))
    if luck.random() < 0.3:
        _jump_by(job, by)
    elif agent is not None:
        agent.sampling.clock.set(job.time.now, by)


def _luck(job: Job, fault: Fault) -> random.Random:
    """Return the luck of one fault: leaving another out changes nothing of it."""
    return random.Random(f"{job.scenario.seed}/{fault.what}/{fault.at}/{fault.who}")


def _evict(job: Job, agent: Agent, fault: Fault) -> None:
    job.operator.mark(agent.rank, conditions=("DisruptionTarget=True",))
    agent.on_signal(15, GRACE)
    job.time.after(fault.span, job.evicted, agent)


def _notice(job: Job, agent: Agent, fault: Fault) -> None:
    """Its cloud announces that it takes the machine away, and does."""
    agent.report(
        wire.NoticeReceived(
            kind=wire.NoticeKind.PREEMPTION,
            source="gce preempted",
            text="preempted",
            seconds_left=fault.span,
        )
    )
    job.time.after(fault.span, _take_away, job, agent)


def _take_away(job: Job, agent: Agent) -> None:
    if agent.alive:
        job.operator.mark(agent.rank, conditions=("DisruptionTarget=True",))
        job.evicted(agent)


def _leave(job: Job, agent: Agent, _: Fault) -> None:
    agent.workers.vanish()
    agent.report(wire.Goodbye(reason="leaves"))
    job.ended(agent, 0)


def _ask(make: Callable[[Fault, Agent], UserRequest]) -> Callable[[Job, Agent, Fault], None]:
    def happen(job: Job, agent: Agent, fault: Fault) -> None:
        job.ask(make(fault, agent))

    return happen


def _scale(job: Job, fault: Fault) -> None:
    spec = job.operator.spec
    most = max(spec.min_replicas, job.scenario.maximum)
    step = max(1, spec.node_unit)
    choices = range(spec.min_replicas, most + 1, step)
    job.ask(wire.ScaleRequest(replicas=choices[fault.who % len(choices)]))


def _checkpoint(job: Job, _: Fault) -> None:
    job.ask(wire.TriggerCheckpointRequest(timeout_seconds=20.0))


def _stacks(job: Job, _: Fault) -> None:
    job.ask(wire.DumpStacksRequest())


def _suspend(job: Job, fault: Fault) -> None:
    if not job.operator.spec.suspend:
        job.operator.change(suspend=True)
        job.time.after(fault.span, job.resume)


def _suspend_in_check(job: Job, fault: Fault) -> None:
    """Suspended while nodes look through what they are to start from, and they do not hear of it.

    For 2 s, or not at all.
    """
    _await_check(job, fault, job.time.now + fault.span - 2.0)


def _await_check(job: Job, fault: Fault, until: float, since: float = math.inf) -> None:
    origin, now = job.master.core.job.checkpoints.tracker.origin, job.time.now
    checking = origin is not None and not origin.go
    if checking and now > since + 0.04:  # they have heard of it by now
        _suspend(job, dataclasses.replace(fault, span=2.0))
        _cut_many(1, up=0)(job, dataclasses.replace(fault, span=1.5))
    elif now < until:
        since = min(since, now) if checking else math.inf
        job.time.after(0.01, _await_check, job, fault, until, since)


def _respec(job: Job, fault: Fault) -> None:
    """Minimum, maximum and join window change together."""
    spec, unit = job.operator.spec, max(1, job.operator.spec.node_unit)
    minimum = unit if fault.who % 2 else spec.min_replicas
    window = 2.0 if fault.who % 3 else 0.0
    maximum = max(spec.replicas, spec.min_replicas) + unit * (fault.who % 2)
    job.operator.change(
        min_replicas=minimum, max_replicas=maximum // unit * unit, join_window_seconds=window
    )


def _operator_gone(job: Job, fault: Fault) -> None:
    job.operator.leave()
    job.checks.accounts.look_away(fault.span)
    job.time.after(fault.span, job.operator.come_back)


def _operator_late(job: Job, fault: Fault) -> None:
    job.operator.lateness = 3.0
    job.time.after(fault.span, job.operator_prompt)


def _doubt(job: Job, agent: Agent, fault: Fault) -> None:
    job.operator.doubt(agent.rank, fault.span)


def _stall(job: Job, fault: Fault) -> None:
    master = job.master
    job.checks.accounts.stalled += fault.span
    master.freeze()
    job.time.after(fault.span, master.thaw)


def _kill_master(job: Job, fault: Fault) -> None:
    job.kill_master(fault.span, quickly=True)


def _tear(job: Job, fault: Fault) -> None:
    if job.master.up and job.master.segment is not None:
        job.disk.tear(job.master.segment, lost=1 + fault.who)
    job.kill_master(fault.span, quickly=False)


def _lose(job: Job, fault: Fault) -> None:
    if job.master.up:
        job.kill_master(fault.span, quickly=fault.who % 2 == 0)
        job.disk.lose()
        job.checks.accounts.lost_disk()
        job.checks.promises.lost_disk()
        job.checks.left = None


def _zombie(job: Job, fault: Fault) -> None:
    job.leave_zombie(fault.span)


def _twin(job: Job, fault: Fault) -> None:
    job.start_twin(fault.span)


def _slow_disk(job: Job, fault: Fault) -> None:
    job.disk.latency = 0.4
    job.time.after(fault.span, job.disk_quick)


def _full_disk(job: Job, fault: Fault) -> None:
    job.disk.full = True
    job.time.after(fault.span, job.disk_empty)


def _jump(job: Job, fault: Fault) -> None:
    _jump_by(job, 3600.0 * (fault.who % 5 - 2))


def _jump_by(job: Job, by: float) -> None:
    job.wall += by
    job.master.wall = job.wall
    job.jumped, job.checks.left = True, None


def _stores(job: Job, fault: Fault) -> None:
    job.store_failures = 1.0
    job.time.after(fault.span, job.stores_work)


def _stop_job(job: Job, fault: Fault) -> None:
    job.ask(wire.StopJobRequest(now=fault.who % 2 == 0))


def _stop_wish(job: Job, fault: Fault) -> None:
    if job.operator.up:
        job.master.push(
            OperatorMessage(wire.StopRequest(reason="deleted", grace_seconds=fault.span))
        )


FAULTS: Mapping[str, Callable[[Job, Fault], None]] = {
    "kill_worker": _hit(Hurt.FAILURE, _exit(-9, "")),
    "raise_worker": _hit(Hurt.RAISED, _exit(1, "ValueError")),
    "exit_worker": _hit(Hurt.RAISED, _exit(3, "")),
    "crash_agent": _hit(Hurt.FAILURE, _crash),
    "vanish": _hit(Hurt.FAILURE, _vanish),
    "restart_agent": _hit(Hurt.FAILURE, _restart),
    "crash_zygote": _hit(Hurt.FAILURE, _crash_zygote),
    "fail_agent": _hit(Hurt.FAILURE, _fail_agent),
    "freeze_agent": _hit(Hurt.FAILURE, _freeze),
    "pause_node": _hit(Hurt.FAILURE, _pause),
    "blip": _hit(Hurt.NETWORK, _blip),
    "cut": _hit(Hurt.NETWORK, _cut(1, 1)),
    "cut_up": _hit(Hurt.NETWORK, _cut(1, 0)),
    "cut_down": _hit(Hurt.NETWORK, _cut(0, 1)),
    "cut_half": _cut_many(2),
    "cut_all": _cut_many(1),
    "cut_peers": _cut_peers,
    "doubt_node": _hit(Hurt.NETWORK, _doubt),
    "slow_node": _hit(Hurt.NETWORK, _slow),
    "straggle": _straggle,
    "wear_out": _hit(Hurt.FAILURE, _wear_out),
    "hang_rank": _hit(Hurt.FAILURE, _hang),
    "set_clock": _set_clock,
    "evict": _hit(Hurt.PREEMPTION, _evict),
    "notice": _hit(Hurt.PREEMPTION, _notice),
    "leave": _hit(Hurt.LEFT, _leave),
    "drain": _hit(Hurt.ASKED, _ask(lambda _, agent: wire.DrainNodeRequest(node_rank=agent.rank))),
    "restart_round": _hit(Hurt.ASKED, _ask(lambda _, __: wire.RestartWorkerRequest())),
    "restart_node": _hit(
        Hurt.ASKED, _ask(lambda _, agent: wire.RestartWorkerRequest(node_rank=agent.rank))
    ),
    "scale": _scale,
    "stacks": _stacks,
    "checkpoint": _checkpoint,
    "suspend": _suspend,
    "suspend_in_check": _suspend_in_check,
    "respec": _respec,
    "operator_gone": _operator_gone,
    "operator_late": _operator_late,
    "operator_repeats": lambda job, _: job.operator.repeat(),
    "stall_master": _stall,
    "kill_master": _kill_master,
    "tear_journal": _tear,
    "lose_journal": _lose,
    "zombie_master": _zombie,
    "twin_master": _twin,
    "slow_disk": _slow_disk,
    "full_disk": _full_disk,
    "jump_clock": _jump,
    "stores_fail": _stores,
    "stop_job": _stop_job,
    "stop_request": _stop_wish,
}
