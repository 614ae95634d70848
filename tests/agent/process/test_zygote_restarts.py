"""An agent whose zygote ends: its round fails, another zygote follows, and the agent goes on."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from agents.agent_process import (
    AgentProcess,
    clean_environment,
    eventually,
    is_alive,
    wait_gone,
)
from agents.scripted_node import Node
from holdfast_wire.messages import (
    DumpStacks,
    Goodbye,
    Leave,
    LeaveOutcome,
    PrepareStore,
    RoundStarted,
    RoundStopped,
    StopRound,
    StorePrepared,
    WorkerExited,
)
from masters.scripted_master import AgentStream, assignment

pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]


FAMILY = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"term\\n"))
# A grandchild in a session of its own, whose parent is gone: nothing but its ancestry tells.
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "4321"])
    os._exit(0)
os.wait()
os.write(1, b"ready\\n")
while True:
    time.sleep(0.05)
"""

PARTING = """
import os, signal, sys, time
os.write(1, b"ready\\n")
while not os.path.exists("go"):
    time.sleep(0.01)
sys.exit(int(os.environ["RANK"]) * 3)
"""


async def _another(agent: AgentProcess, than: psutil.Process) -> psutil.Process:
    """Wait for the next zygote."""

    def look() -> psutil.Process | None:
        found = agent.find_zygote()
        return found if found is not None and found.pid != than.pid else None

    found: psutil.Process = await eventually(look)
    return found


async def _killed(agent: AgentProcess) -> psutil.Process:
    """Kill the zygote and wait until the agent has seen it."""
    found: psutil.Process = await eventually(agent.find_zygote)
    ends = agent.errors().count("the zygote ended")
    found.kill()
    await eventually(lambda: agent.errors().count("the zygote ended") > ends)
    return found


async def _run(
    stream: AgentStream, agent: AgentProcess, number: int = 1, nproc: int = 1
) -> RoundStarted:
    """Have a round started whose ranks say that they are ready."""
    ready, told = agent.output().count("ready"), len(stream.all(RoundStarted))
    stream.send(assignment(await stream.prepare_store(f"s{number}"), nproc=nproc), number)
    await eventually(lambda: agent.output().count("ready") == ready + nproc)
    await eventually(lambda: len(stream.all(RoundStarted)) > told)
    return stream.all(RoundStarted)[-1]


async def _leave(stream: AgentStream, agent: AgentProcess) -> None:
    """End the agent in order; nothing is left."""
    family = agent.family()
    stream.send(Leave(outcome=LeaveOutcome.SUCCEEDED, reason="done"))
    assert await asyncio.to_thread(agent.wait) == 0
    assert wait_gone(family, 3.0) == []


async def test_a_killed_zygote_fails_its_ranks_and_the_next_round_runs(node: Node) -> None:
    """The ranks are told of with the reason, all that they left dies, and orders are not lost."""
    agent, stream = await node.start(FAMILY, nproc=2)
    await _run(stream, agent, nproc=2)
    waiting = await stream.prepare_store("waits")
    before = agent.family()
    await _killed(agent)
    ends = [await stream.exited(rank) for rank in (0, 1)]
    assert [end.exit_code for end in ends] == [-signal.SIGKILL] * 2
    assert all("the zygote ended with signal 9 (SIGKILL)" in end.error_message for end in ends)
    assert wait_gone(before, 1.0) == []
    await stream.wait(StorePrepared, lambda m: m.store_id == waiting.store_id and m.port == 0)
    lost = [one for one in stream.all(StorePrepared) if one.port == 0]
    assert {one.store_id for one in lost} == {"s1", "waits"}
    assert all("the zygote ended" in one.error for one in lost)
    started = await _run(stream, agent, 2, nproc=2)
    assert started.cold_reason == "", "ranks are forked again"
    assert len(stream.all(WorkerExited)) == 2
    assert len(node.master.streams) == 1
    await _leave(stream, agent)


async def test_what_a_shell_had_started_before_it_became_the_agent_lives_on(node: Node) -> None:
    """An entry point may begin `node_exporter & exec holdfast-run`: not the agent's to end."""
    entry = ("sh", "-c", 'sleep 4322 & exec "$@"', "sh")
    agent, stream = await node.start(FAMILY, wrap=entry)
    await _run(stream, agent)
    [helper] = [one for one in agent.family() if one.cmdline() == ["sleep", "4322"]]
    try:
        before = agent.family()
        await _killed(agent)
        await _run(stream, agent, 2)
        assert [one for one in before if is_alive(one)] == [helper]
        stream.send(Leave(outcome=LeaveOutcome.SUCCEEDED, reason="done"))
        assert await asyncio.to_thread(agent.wait) == 0
        assert is_alive(helper)
    finally:
        helper.kill()


async def test_what_ranks_had_ended_with_is_not_laid_to_the_zygote(
    node: Node, tmp_path: Path
) -> None:
    """A rank that was at its very end has finished, or failed by itself."""
    agent, stream = await node.start(PARTING, nproc=2)
    await _run(stream, agent, nproc=2)
    zygote = agent.zygote()
    ranks = [one for one in zygote.children() if one.name().startswith("hf-rank")]
    zygote.suspend()  # it tells of no end any more
    (tmp_path / "go").touch()
    await eventually(lambda: not any(is_alive(rank) for rank in ranks))
    await _killed(agent)
    assert [(await stream.exited(rank)).exit_code for rank in (0, 1)] == [0, 3]
    assert not any("zygote" in end.error_message for end in stream.all(WorkerExited))
    await _leave(stream, agent)


@pytest.mark.extended(
    "one zygote's end is followed by another in each of the other tests",
    held_by=[
        "agent/process/test_zygote_restarts.py::test_a_killed_zygote_fails_its_ranks_and_the_next_round_runs",
        "agent/process/test_zygote_restarts.py::test_a_run_without_a_master_goes_on_from_memory_after_its_zygotes_end",
    ],
)
async def test_zygotes_that_end_one_after_another_are_followed_by_another(node: Node) -> None:
    """Between rounds, at once when it is ready, and while it imports: a store is still made."""
    agent, stream = await node.start(FAMILY)
    first = await _killed(agent)
    stream.send(PrepareStore(store_id="owed"))
    await eventually(lambda: "fresh zygote is ready" in agent.errors())
    assert (await stream.wait(StorePrepared, lambda m: m.store_id == "owed")).port > 0
    second = await _killed(agent)
    assert second.pid != first.pid
    await _another(agent, second)
    await _killed(agent)
    assert stream.all(WorkerExited) == []
    await _run(stream, agent)
    assert stream.all(Goodbye) == []
    await _leave(stream, agent)


async def test_a_zygote_that_was_never_ready_ends_the_agent(node: Node, tmp_path: Path) -> None:
    """A preloaded module that ends the zygote ends the agent. The next zygote would end, too."""
    (tmp_path / "deadly.py").write_text("import os; os._exit(0)")
    env = {"HOLDFAST_PRELOAD": "deadly", "PYTHONPATH": str(tmp_path)}
    agent = node.agent(FAMILY, env=env)
    assert await asyncio.to_thread(agent.wait) == 1
    reason = "the zygote ended with exit code 0; it ended before it was ready"
    assert reason in agent.errors()
    assert node.master.streams == [] or (await node.master.streams[0].wait(Goodbye)).failed


async def test_sigterm_to_all_processes_leaves_the_ranks_their_grace(node: Node) -> None:
    """A supervisor may signal every process of a service: the agent alone ends the ranks."""
    agent, stream = await node.start(FAMILY)
    await _run(stream, agent)
    zygote = agent.zygote()
    zygote.terminate()
    await eventually(lambda: "SIGTERM is ignored" in agent.errors())
    stream.send(DumpStacks(command_id=1))
    assert (await stream.done(1)).ok, "it works on"
    assert stream.all(WorkerExited) == []
    assert "term" not in agent.output()


async def test_a_zygote_that_is_killed_in_the_ranks_grace_ends_the_wait_for_them(
    node: Node,
) -> None:
    """The agent reports the stopped rank as killed and not as failed. It waits out no grace."""
    agent, stream = await node.start(FAMILY)
    await _run(stream, agent)
    stream.send(StopRound(command_id=1, grace_seconds=120.0, reason="test"), 1)
    await eventually(lambda: "term" in agent.output())
    await _killed(agent)
    assert (await stream.wait(RoundStopped)).exit_codes == (-signal.SIGKILL,)
    await stream.done(1)
    assert stream.all(WorkerExited) == []


@pytest.mark.slow
async def test_a_stopped_zygote_is_killed_when_it_does_not_obey(node: Node) -> None:
    """SIGSTOP is no matter while ranks train; an order that is not carried out in 15 s is."""
    agent, stream = await node.start(FAMILY)
    await _run(stream, agent)
    store = await stream.prepare_store("next")
    zygote = agent.zygote()
    zygote.suspend()
    stream.send(assignment(store, nproc=1), 2)
    lost = await stream.wait(StorePrepared, lambda m: m.store_id == "next" and m.port == 0)
    assert "or the zygote is stopped" in lost.error
    told = await stream.wait(WorkerExited)
    assert told.error_type == "StoreLost", "round 2 does not begin on a store that is gone"
    await _run(stream, agent, 3)
    assert len(stream.all(WorkerExited)) == 1
    assert agent.output().count("ready") == 2
    await _leave(stream, agent)


TRAIN = """
import os, sys, time
import torch
import torch.distributed as dist
import holdfast
from holdfast.flash.schedule import Schedule

dist.init_process_group("gloo")
model = torch.nn.Linear(300, 200)
flash = holdfast.Checkpointer(None, model=model, schedule=Schedule(storage_every=0))
start = flash.load()
value = float(model.weight.detach().double().mean()) if start else 0.0
def say(*words):  # one write: lines of two ranks must not mix
    os.write(1, " ".join(map(str, (*words, "\\n"))).encode())
say("start", start, value)
for step in range(start + 1, int(sys.argv[1]) + 1):
    time.sleep(0.01)
    dist.barrier()
    with torch.no_grad():
        model.weight.fill_(step)
    flash.step(step)
    say("step", step)
flash.close()
"""


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    """Start a standalone run of two ranks."""
    (tmp_path / "train.py").write_text(TRAIN)
    started: list[AgentProcess] = []

    def begin(*args: str) -> AgentProcess:
        env = {**clean_environment(), "HOLDFAST_PRELOAD": "-torch"}
        started.append(AgentProcess(("--nproc-per-node=2", *args), env, tmp_path, forked=True))
        return started[-1]

    yield begin
    for agent in started:
        agent.end()


def _said(agent: AgentProcess, word: str) -> list[list[str]]:
    lines = [line.split() for line in agent.output().splitlines()]
    return [words[1:] for words in lines if words and words[0] == word]


async def _started(agent: AgentProcess, times: int) -> None:
    """Wait until both ranks have begun that often."""
    await eventually(lambda: len(_said(agent, "start")) == 2 * times, 120)


async def _trains(agent: AgentProcess, starts: int) -> None:
    """Wait until both ranks have begun that often, and stepped since."""
    await _started(agent, starts)
    steps = len(_said(agent, "step"))
    await eventually(lambda: len(_said(agent, "step")) > steps + 20)


async def test_a_run_without_a_master_goes_on_from_memory_after_its_zygotes_end(
    alone: Callable[..., AgentProcess],
) -> None:
    """At random instants; what the ranks had saved in memory is the agent's, and outlives them."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    luck = random.Random(seed)
    agent, deaths = alone("train.py", "1500"), 2
    for death in range(1, deaths + 1):
        await _trains(agent, death)
        await asyncio.sleep(luck.uniform(0.0, 1.0))
        reached = max(int(words[0]) for words in _said(agent, "step"))
        await _killed(agent)
        await _started(agent, death + 1)
        begun = {int(words[0]) for words in _said(agent, "start")[-2:]}
        assert len(begun) == 1, "both ranks go on from one step"
        assert min(begun) >= reached - 3, "memory has the newest steps"
        values = {float(words[1]) for words in _said(agent, "start")[-2:]}
        assert values == {float(min(begun))}, "with the weights of that step"
    assert agent.wait(120) == 0, agent.errors()
    assert max(int(words[0]) for words in _said(agent, "step")) == 1500


async def test_the_end_of_a_zygote_spends_a_restart(alone: Callable[..., AgentProcess]) -> None:
    """--max-restarts=0 allows none; the run's last words name the zygote."""
    agent = alone("--max-restarts=0", "train.py", "100000")
    await _trains(agent, 1)
    began = time.monotonic()
    await _killed(agent)
    assert await asyncio.to_thread(agent.wait) == 1
    assert time.monotonic() - began < 60
    last = agent.errors().rpartition("the job failed:")[2]
    assert "the zygote ended with signal 9 (SIGKILL)" in last
    assert "failures allows 0" in last
