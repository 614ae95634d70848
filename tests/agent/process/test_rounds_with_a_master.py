"""An agent under a scripted master: rounds, stores, barriers, stacks, fences, reconnects."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import time
from typing import Any

import psutil
import pytest

from agents.agent_process import eventually, is_alive, wait_gone
from agents.scripted_node import Node
from holdfast_wire.messages import (
    BarrierAck,
    BarrierReached,
    ClockProbe,
    CommandDone,
    DumpStacks,
    FailureRule,
    HealthPolicy,
    Heartbeat,
    Leave,
    LeaveOutcome,
    RankSection,
    RoundStarted,
    RoundStopped,
    SetBarrier,
    SetPolicies,
    StateDigest,
    StopRound,
    StorePrepared,
    Welcome,
    WorkerExited,
)
from house.patience import patience
from masters.scripted_master import AgentStream, Identities, ScriptedMaster, assignment

pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]


TRAIN = """
import time
import holdfast
job = holdfast.init()
for n in range(1, 100_000):
    time.sleep(0.02)
    if job.step(n, samples=8, loss=1.0 / n) is holdfast.SAVE_AND_STOP:
        break
"""


async def _train(stream: AgentStream, number: int, nproc: int = 2) -> RoundStarted:
    """Have a round started and wait for its first step."""
    store = await stream.prepare_store(f"store-{number}")
    already = len(stream.all(RoundStarted))
    stream.send(assignment(store, nproc=nproc, restart_count=number - 1), number)
    await stream.wait(
        RoundStarted, lambda m: m.first_step and m in stream.all(RoundStarted)[already:]
    )
    return stream.all(RoundStarted)[-1]


def _all_run(beat: Heartbeat) -> bool:
    """Say whether there are ranks and each has a process."""
    return bool(beat.ranks) and all(rank.pid for rank in beat.ranks)


def _told(master: ScriptedMaster, kind: type[Any]) -> list[Any]:
    """Return the messages of a kind on any stream."""
    return [message for stream in master.streams for message in stream.all(kind)]


async def test_a_round_runs_from_hello_to_restart(node: Node) -> None:
    """Hello, warm, store, assignment, first step, heartbeats, and all of it again."""
    agent, stream = await node.start(TRAIN, "--max-restarts=7", nproc=2)
    hello = stream.hello
    assert (hello.node_rank, hello.local_world_size, hello.max_restarts) == (0, 2, 7)
    assert (hello.round, hello.workers, hello.assignment) == (0, (), None)
    assert hello.agent_pid == agent.pid
    assert not hello.unmanaged

    started = await _train(stream, 1)
    assert started.step == 1
    assert 0 <= started.spawned_seconds <= started.first_step_seconds
    assert started.cold_reason == ""
    # Nothing holds the ranks together: a busy machine starts the second one seconds later.
    beat = await stream.wait(
        Heartbeat, lambda m: len(m.ranks) == 2 and min(rank.step for rank in m.ranks) > 2
    )
    assert all(rank.has_sdk and rank.round == 1 for rank in beat.ranks)
    assert beat.ranks[0].section is RankSection.TRAIN
    assert beat.ranks[0].samples == beat.ranks[0].step * 8
    first = {rank.pid for rank in beat.ranks}

    started = await _train(stream, 2)
    assert started.killed_seconds > 0
    beat = await stream.wait(Heartbeat, lambda m: any(rank.round == 2 for rank in m.ranks))
    assert not first & {rank.pid for rank in beat.ranks}
    assert not any(psutil.pid_exists(pid) for pid in first)
    assert stream.all(WorkerExited) == [], "the agent's own SIGKILL is no evidence"


async def test_a_barrier_loses_no_step(node: Node) -> None:
    """A barrier is echoed, all ranks end at its step, and the node says so once."""
    agent, stream = await node.start(TRAIN, nproc=2)
    await _train(stream, 1)
    # Nothing holds the ranks together: one may be seconds ahead when both have begun.
    beat = await stream.wait(Heartbeat, _all_run)
    at = max(rank.step for rank in beat.ranks) + 300
    stream.send(SetBarrier(barrier_id=1, step=at, reason="test"), 1)
    ack = await stream.wait(BarrierAck)
    assert ack.seen_at_step < at
    assert await stream.wait(BarrierReached) == BarrierReached(barrier_id=1, step=at)
    exits = [await stream.exited(r) for r in (0, 1)]
    assert all((m.exit_code, m.barrier, m.step) == (0, True, at) for m in exits)

    stream.send(Leave(command_id=9, outcome=LeaveOutcome.RELEASED, reason="done"))
    assert await asyncio.to_thread(agent.wait) == 0
    assert stream.all(CommandDone)[-1].command_id == 9


async def test_an_agent_whose_place_is_taken_leaves_at_once(node: Node) -> None:
    """It is told so in place of a Welcome, ends itself and says that it was replaced."""
    node.master.sends_away = Leave(
        command_id=3, outcome=LeaveOutcome.REPLACED, reason="a newer pod"
    )
    assert await asyncio.to_thread(node.agent(TRAIN).wait) == 75
    assert len(node.master.streams) == 1


async def test_exits_are_evidence_with_their_reason(node: Node) -> None:
    """An exception comes with its type and text, a signal with its number, patterns with theirs."""
    rules = tuple(FailureRule(log_pattern=one) for one in ("no such", "(?i)bad LUCK"))
    node.master.welcome = Welcome(heartbeat_seconds=0.2, lease_seconds=60.0, failure_rules=rules)
    code = """
import os, signal, sys, time
print("some stderr text", file=sys.stderr, flush=True)
if os.environ["RANK"] == "0":
    raise ValueError("bad luck of rank 0")
time.sleep(0.5)
os.kill(os.getpid(), signal.SIGSEGV)
"""
    agent, stream = await node.start(code, nproc=2)
    stream.send(assignment(await stream.prepare_store("s")), 1)
    raised = await stream.wait(WorkerExited, lambda m: m.rank == 0)
    assert (raised.exit_code, raised.error_type) == (1, "ValueError")
    assert "bad luck of rank 0" in raised.error_message
    assert "some stderr text" in raised.stderr_tail
    assert raised.matched_rules == (1,)
    killed = await stream.wait(WorkerExited, lambda m: m.rank == 1)
    assert (killed.exit_code, killed.error_type) == (-signal.SIGSEGV, "")
    assert "some stderr text" in agent.errors(), "captured text still reaches the console"
    more = (FailureRule(log_pattern="new"), *rules)
    node.master.welcome = Welcome(heartbeat_seconds=0.2, lease_seconds=60.0, failure_rules=more)
    stream.close()
    stream = await node.master.stream(1)
    again = await stream.wait(WorkerExited, lambda m: m.rank == 0)
    assert again.matched_rules == (2,), "the same rule under the newest Welcome"
    stream.send(Leave(outcome=LeaveOutcome.FAILED, reason="rank 0 raised ValueError"))
    assert await asyncio.to_thread(agent.wait) == 1
    errors = agent.errors()
    assert "Root Cause" in errors
    assert "rank 0 raised ValueError" in errors


async def test_an_agent_follows_an_edit_of_the_job_while_it_trains(node: Node) -> None:
    """Ranks are sampled from then on, and exits compared with the new rules as well."""
    first, second = (FailureRule(log_pattern=one) for one in ("no such", "bad luck"))
    node.master.welcome = Welcome(heartbeat_seconds=0.2, lease_seconds=60.0, failure_rules=(first,))
    code = TRAIN + "    if n == 2000:\n        raise ValueError('bad luck')\n"
    _, stream = await node.start(code.replace("0.02", "0.005"))
    await _train(stream, 1, nproc=1)
    await asyncio.sleep(1.0)
    assert stream.all(ClockProbe) == [], "a job without spec.health is not sampled"
    stream.send(SetPolicies(failure_rules=(first, second), health=HealthPolicy()), 1)
    await stream.wait(ClockProbe)
    assert (await stream.wait(WorkerExited)).matched_rules == (1,)


async def test_old_and_foreign_orders_are_dropped(node: Node) -> None:
    """An older epoch, a twin of the same epoch, an older round and a repeat change nothing."""
    _, stream = await node.start(TRAIN)
    await _train(stream, 5, nproc=1)
    beat = await stream.wait(Heartbeat, _all_run)
    pid = beat.ranks[0].pid
    world = assignment(await stream.prepare_store("next"), nproc=1)
    stream.send(world, 6, epoch=0)
    stream.send(StopRound(command_id=1), 4)
    stream.send(Leave(command_id=2, outcome=LeaveOutcome.FAILED), epoch=0)
    stream.send(world, 4)
    stream.send(world, 5)
    node.master.incarnation = "twin"
    stream.send(world, 7)
    node.master.incarnation = "one"
    beats = len(stream.all(Heartbeat))
    await stream.wait(Heartbeat, lambda _: len(stream.all(Heartbeat)) > beats + 3)
    last = stream.all(Heartbeat)[-1].ranks
    assert [(rank.pid, rank.round) for rank in last] == [(pid, 5)]


async def test_stacks_of_all_ranks_are_reported(node: Node) -> None:
    """It shows where each rank is, though C code holds the GIL; a signal would end its poll."""
    code = """
import ctypes, os
def stuck_here():
    os.write(1, b"stuck\\n")
    ctypes.PyDLL(None).poll(None, 0, 1000000)
stuck_here()
"""
    agent, stream = await node.start(code, nproc=2)
    stream.send(assignment(await stream.prepare_store("s")), 1)
    await stream.wait(RoundStarted)
    await eventually(lambda: agent.output().count("stuck") == 2)
    for command in (11, 12):
        stream.send(DumpStacks(command_id=command))
        done = await stream.done(command)
        assert done.ok
        assert [stack.rank for stack in done.stacks] == [0, 1]
        texts = [stack.text for stack in done.stacks]
        assert all(text.count("in stuck_here") == 1 for text in texts), texts
    stream.send(DumpStacks(command_id=12))
    await stream.wait(CommandDone, lambda _: len(stream.all(CommandDone)) == 3)


async def test_a_stop_gives_grace_and_then_kills(node: Node) -> None:
    """SIGTERM reaches the script; one that ignores it gets SIGKILL after the grace."""
    code = """
import os, signal, sys, time
def leave(*_):
    os.write(1, f"terminated {os.environ['RANK']}\\n".encode())  # one write: lines stay whole
    if os.environ["RANK"] == "0":
        sys.exit(0)
signal.signal(signal.SIGTERM, leave)
os.write(1, b"ready\\n")
while True:
    time.sleep(0.1)
"""
    agent, stream = await node.start(code, nproc=2)
    stream.send(assignment(await stream.prepare_store("s")), 1)
    await stream.wait(RoundStarted)
    await eventually(lambda: agent.output().count("ready") == 2)
    began = time.monotonic()
    stream.send(StopRound(command_id=3, grace_seconds=6.0, reason="test"), 1)
    stopped = await stream.wait(RoundStopped)
    assert stopped == RoundStopped(exit_codes=(0, -signal.SIGKILL))
    assert 5.9 <= time.monotonic() - began <= 6.0 + 5.0 * patience()
    await stream.wait(CommandDone, lambda m: m.command_id == 3)
    assert sorted(agent.output().split("\n")[2:4]) == ["terminated 0", "terminated 1"]
    assert stream.all(WorkerExited) == [], "who was asked to end has not failed"


async def test_a_blip_changes_nothing_and_everything_is_told_again(node: Node) -> None:
    """After a lost stream the hello tells the truth, evidence is repeated, workers train on."""
    _, stream = await node.start(TRAIN, nproc=2)
    stream.send(StateDigest(fence=None, sequence=4))
    await _train(stream, 1)
    waiting = await stream.prepare_store("waiting")
    beat = await stream.wait(Heartbeat, _all_run)
    pids = {rank.pid for rank in beat.ranks}
    os.kill(min(pids), signal.SIGKILL)
    await stream.wait(WorkerExited)
    began = time.monotonic()
    stream.close()
    again = await node.master.stream(1)
    assert time.monotonic() - began < 10.0 * patience()
    hello = again.hello
    assert hello.agent_id == stream.hello.agent_id
    assert (hello.round, hello.store, hello.digest) == (1, waiting, StateDigest(sequence=4))
    assert {worker.pid for worker in hello.workers} == pids - {min(pids)}
    assert hello.assignment is not None
    assert hello.step >= 1
    repeated = await again.wait(WorkerExited)
    assert repeated.exit_code == -signal.SIGKILL
    assert repeated.pid == min(pids)
    assert all(message.first_step for message in again.all(RoundStarted)), "one rank has ended"
    assert psutil.pid_exists(max(pids))


async def test_workers_of_a_round_that_the_master_does_not_know_are_killed(node: Node) -> None:
    """Welcome.round differs: the workers belong to the past."""
    _, stream = await node.start(TRAIN)
    await _train(stream, 1, nproc=1)
    beat = await stream.wait(Heartbeat, _all_run)
    node.master.welcome_round = lambda _: 2
    stream.close()
    again = await node.master.stream(1)
    await again.wait(RoundStopped)
    assert not psutil.pid_exists(beat.ranks[0].pid)
    started = await _train(again, 3, nproc=1)
    assert started.step == 1


async def test_an_older_master_is_not_obeyed(node: Node, identities: Identities) -> None:
    """A zombie of an older epoch gets no hello answered twice; its successor does."""
    node.master.epoch = 5
    _, stream = await node.start(TRAIN)
    await _train(stream, 1, nproc=1)
    port = node.master.port
    await node.master.stop()
    zombie = ScriptedMaster(identities, epoch=4, incarnation="old")
    await zombie.start(port)
    await zombie.stream(1, within=30)
    await zombie.stop()
    successor = ScriptedMaster(identities, epoch=6, incarnation="new")
    await successor.start(port)
    try:
        again = await successor.stream(0, within=30)
        assert again.hello_fence is not None
        assert (again.hello_fence.epoch, again.hello.round) == (5, 1)
        assert again.hello.workers, "the workers were not disturbed"
    finally:
        await successor.stop()


async def test_a_lost_store_is_told_and_another_prepared(node: Node) -> None:
    """A store process that dies before its round is news; the next one works."""
    agent, stream = await node.start(TRAIN)
    await stream.prepare_store("one")
    (store,) = agent.zygote().children()
    store.kill()
    gone = await stream.wait(StorePrepared, lambda m: m.store_id == "one" and m.port == 0)
    assert gone.error
    await _train(stream, 2, nproc=1)


async def test_standing_still_costs_the_workers_their_lives(node: Node) -> None:
    """A frozen agent's workers are dead within the lease; later it says so and is of use again."""
    node.master.welcome = dataclasses.replace(node.master.welcome, lease_seconds=4.0)
    agent, stream = await node.start(TRAIN, nproc=2)
    await _train(stream, 1)
    beat = await stream.wait(Heartbeat, _all_run)
    workers = [psutil.Process(rank.pid) for rank in beat.ranks]
    began = time.monotonic()
    agent.send(signal.SIGSTOP)
    assert await asyncio.to_thread(wait_gone, workers, 20.0) == []
    assert 2.0 <= time.monotonic() - began <= 4.0 + 5.0 * patience()
    agent.send(signal.SIGCONT)
    stopped = await eventually(lambda: _told(node.master, RoundStopped))
    assert stopped[0].lease_expired
    assert _told(node.master, WorkerExited) == []
    await _train(node.master.streams[-1], 2)


async def test_a_whole_node_that_stood_still_does_not_train_on(node: Node) -> None:
    """Agent, zygote and workers frozen together: after SIGCONT no old step is completed."""
    node.master.welcome = dataclasses.replace(node.master.welcome, lease_seconds=4.0)
    agent, stream = await node.start(TRAIN)
    await _train(stream, 1, nproc=1)
    beat = await stream.wait(Heartbeat, _all_run)
    everyone = [psutil.Process(agent.pid), *agent.family()]
    for process in everyone:
        process.suspend()
    await asyncio.sleep(5.0)  # longer than the lease
    for process in everyone:
        if is_alive(process):
            process.resume()
    worker = [p for p in everyone if p.pid == beat.ranks[0].pid]
    assert await asyncio.to_thread(wait_gone, worker, 20.0) == []
    stopped = await eventually(lambda: _told(node.master, RoundStopped))
    assert stopped[0].lease_expired
