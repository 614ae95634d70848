"""One job of two nodes that has to bear one thing after another, and trains on each time.

Belongs here: what leaves two nodes that train, whatever came before. A job takes ten seconds to
start, and real ones are hit more than once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_cli.job_directory import Endpoint
from holdfast_cli.runner.processes import descendants
from holdfast_wire.messages import BudgetKind, JobPhase, JobStatus
from jobs.local_job import TRAIN, RunningJob, alive, elastic_job, loss_lines

pytestmark = [pytest.mark.train, pytest.mark.deadline]
STEPS_BETWEEN = 10
"""The job has to have got on since the test before: else its failure would be no news."""


@pytest.fixture(scope="module")
def long_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningJob]:
    """The job of this file's tests: it would train for days."""
    directory = tmp_path_factory.mktemp("long")
    script = [*TRAIN, "--steps=1000000", f"--checkpoint-dir={directory / 'checkpoints'}"]
    script.append(f"--loss-log={directory / 'loss.jsonl'}")
    with RunningJob(elastic_job("long", script), directory) as job:
        job.wait_step(1)
        yield job


@pytest.fixture
def job(long_job: RunningJob) -> RunningJob:
    """That job, two nodes training, some steps after the test before."""
    _both_train(long_job, 0)
    long_job.wait_step(long_job.status().step + STEPS_BETWEEN)
    return long_job


def _both_train(job: RunningJob, above: int) -> JobStatus:
    def there() -> JobStatus | None:
        status = job.status()
        trains = status.phase is JobPhase.TRAINING and status.round > above
        return status if trains and status.world_size == 2 else None

    status = job.wait_for("two nodes that train", there)
    assert status is not None
    return status


def _ranks(job: RunningJob) -> set[int]:
    return {job.rank_pid(0), job.rank_pid(1)}


def _master(job: RunningJob) -> Endpoint:
    endpoint = job.home.endpoint()
    assert endpoint is not None
    return endpoint


def test_a_second_job_of_the_same_name_is_refused(job: RunningJob) -> None:
    """Two jobs cannot share a directory: exit code 2, and what to do."""
    done = job.cli("run", str(job.directory / "job.yaml"))
    assert done.returncode == 2
    assert f"holdfast stop {job.name}" in done.stderr


def test_a_killed_master_is_replaced_and_the_ranks_train_on(job: RunningJob) -> None:
    """Kill -9 of the master: its successor reads the journal, no rank is restarted."""
    before, ranks = job.status(), _ranks(job)
    os.kill(_master(job).pid, signal.SIGKILL)
    job.wait_for("a new epoch", lambda: job.status().epoch > before.epoch)
    after = job.wait_step(before.step + 10)
    assert after.round == before.round
    assert _ranks(job) == ranks


def test_a_port_taken_by_another_is_waited_for(job: RunningJob) -> None:
    """A stranger listens where the killed master did: its successor serves there once it may."""
    before, ranks, old = job.status(), _ranks(job), _master(job)
    log = job.home.logs / "master.log"
    refused = log.read_text().count("cannot be listened on")
    job.process.send_signal(signal.SIGSTOP)  # so that the port can be taken before the successor
    os.kill(old.pid, signal.SIGKILL)
    with _listen(old.port):
        job.process.send_signal(signal.SIGCONT)
        job.wait_for(
            "a refused successor",
            lambda: log.read_text().count("cannot be listened on") > refused,
        )
    job.wait_for("a new epoch", lambda: job.status().epoch > before.epoch + 1)
    after = job.wait_step(before.step + 10)
    assert after.round == before.round
    assert _ranks(job) == ranks


def _listen(port: int) -> socket.socket:
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            assert time.monotonic() < deadline, f"port {port} is never free"
            time.sleep(0.02)


@pytest.mark.extended(
    "one real job: what a stall means is tested by itself",
    held_by=[
        "master/unit/server/test_loop.py::test_a_stall_is_told_before_what_arrived_and_before_deadlines",
    ],
)
def test_a_master_frozen_for_20_s_expires_nobody(job: RunningJob) -> None:
    """SIGSTOP of the master for 20 s: the ranks train on, and no round is begun."""
    before, ranks, seen = job.status(), _ranks(job), job.newest_event()
    _frozen_for(_master(job).pid, 20.0)
    after = job.wait_step(before.step + 20)
    assert after.round == before.round
    assert _ranks(job) == ranks
    assert all(event.reason != "NodeLost" for event in job.events(seen))


def _frozen_for(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        threading.Event().wait(seconds)  # the time that passes is what is tested
    finally:
        os.kill(pid, signal.SIGCONT)


def test_restart_by_a_person_costs_no_budget(job: RunningJob) -> None:
    """Holdfast restart: new processes in a new round, no budget."""
    used, before, ranks = job.charged(), job.status(), _ranks(job)
    assert job.cli("restart", job.name).returncode == 0
    job.wait_step(before.step, round_above=before.round)
    assert not ranks & _ranks(job)
    assert job.charged() == used, job.evidence()


def test_the_culprit_is_named_and_exactly_one_budget_is_charged(job: RunningJob) -> None:
    """The incident blames the killed rank, not the survivor whose collective broke."""
    used, before, seen = job.charged(), job.status(), job.newest_event()
    incidents = len(job.goodput().incidents)
    os.kill(job.rank_pid(1), signal.SIGKILL)
    job.wait_step(before.step, round_above=before.round)
    job.wait_event("IncidentClosed", after=seen)
    (incident,) = job.goodput().incidents[incidents:]
    assert incident.culprit_rank == "1"
    assert incident.culprit_node in {str(n) for n, info in job.nodes().items() if info.ranks}
    assert incident.charged is BudgetKind.FAILURES
    assert job.charged() == {**used, BudgetKind.FAILURES: used[BudgetKind.FAILURES] + 1}


def test_two_ranks_at_once_are_one_incident(job: RunningJob) -> None:
    """Both ranks killed in the same moment: one restart, one charge."""
    used, before, seen = job.charged(), job.status(), job.newest_event()
    incidents = len(job.goodput().incidents)
    for pid in _ranks(job):
        os.kill(pid, signal.SIGKILL)
    job.wait_step(before.step, round_above=before.round)
    job.wait_event("IncidentClosed", after=seen)
    assert len(job.goodput().incidents) == incidents + 1
    assert job.status().round == before.round + 1
    assert job.charged()[BudgetKind.FAILURES] == used[BudgetKind.FAILURES] + 1


def test_sigterm_of_an_agent_is_a_preemption_and_spends_no_failure(job: RunningJob) -> None:
    """An agent that is told to end leaves at a barrier; the failure budget is untouched."""
    used, before = job.charged(), job.status()
    os.kill(job.agent_pid(1), signal.SIGTERM)
    _both_train(job, before.round)
    assert job.charged() == {**used, BudgetKind.PREEMPTIONS: used[BudgetKind.PREEMPTIONS] + 1}


def test_a_killed_zygote_is_a_failure(job: RunningJob) -> None:
    """Its ranks die with it; its agent goes on and starts another."""
    used, before = job.charged(), job.status()
    incidents = len(job.goodput().incidents)
    node = job.nodes()[1]
    [zygote] = {_parent(rank.pid) for rank in node.ranks}
    assert zygote != node.agent_pid
    os.kill(zygote, signal.SIGKILL)
    _both_train(job, before.round)
    spent = {**used, BudgetKind.FAILURES: used[BudgetKind.FAILURES] + 1}
    assert job.charged() == spent, job.evidence()
    causes = [incident.cause for incident in job.goodput().incidents[incidents:]]
    assert causes == ["WorkerCrashed"], job.evidence()
    assert job.nodes()[1].agent_pid == node.agent_pid


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_frozen_agent_is_left_behind_and_its_ranks_are_dead_first(job: RunningJob) -> None:
    """SIGSTOP of an agent: its lease ends its ranks before the smaller world starts.

    A failure is charged, also where its pod was deleted because of it.
    """
    used, before, seen = job.charged(), job.status(), job.newest_event()
    agent, rank = job.agent_pid(1), next(one.pid for one in job.nodes()[1].ranks)
    os.kill(agent, signal.SIGSTOP)
    job.wait_for("the frozen agent's rank is dead", lambda: not alive(rank))
    dead_at = time.time()
    shrunk = _until_shrunk(job, before)
    events = job.events(seen)
    (decided,) = [e for e in events if e.reason == "WorldDecided" and e.round == shrunk.round]
    assert dead_at < decided.unix_time, "the new round began before the old rank was dead"
    _signal(agent, signal.SIGCONT)
    _both_train(job, shrunk.round)
    assert job.charged() == {**used, BudgetKind.FAILURES: used[BudgetKind.FAILURES] + 1}
    _no_old_round_writes(job)


def test_a_node_frozen_whole_takes_no_step_after_it_wakes(job: RunningJob) -> None:
    """Agent, zygote and ranks are stopped and continued: no step of the old round follows.

    The script writes a step's line before it reports the step, which is where the stale lease ends
    it. So a rank that was stopped in between may write that line; a second one would be a step.
    """
    before, node = job.status(), job.agent_pid(0)
    ranks = [one.pid for one in job.nodes()[0].ranks]
    os.kill(node, signal.SIGSTOP)  # first, so that it starts and ends no process meanwhile
    tree = [node, *descendants(node)]
    for pid in tree:
        _signal(pid, signal.SIGSTOP)
    assert set(ranks) <= set(tree)
    _until_shrunk(job, before)
    for pid in tree:
        _signal(pid, signal.SIGCONT)
    job.wait_for("the old ranks are gone", lambda: not any(map(alive, ranks)))
    _no_old_round_writes(job, late=1)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _until_shrunk(job: RunningJob, before: JobStatus) -> JobStatus:
    """Wait until one node trains alone.

    It may have gone back some steps: on a slow machine the other one can be back before these are
    made again.
    """
    shrunk = job.wait_step(1, round_above=before.round)
    assert shrunk.world_size == 1, job.evidence()
    return shrunk


def _no_old_round_writes(job: RunningJob, *, late: int = 0) -> None:
    """Look at the lines of rank 0: at most so many come behind a line of a newer round."""
    newest, old = 0, []
    for line in loss_lines(job.directory / "loss.jsonl"):
        newest = max(newest, line["round"])
        if line["round"] < newest:
            old.append(line)
    assert len(old) <= late, f"old rounds' ranks wrote after a newer round had begun: {old}"


def test_scaling_above_the_first_size_adds_a_node(job: RunningJob) -> None:
    """Without maxReplicas the bound follows replicas: 2 -> 3, and back."""
    before = job.status()
    done = job.cli("scale", job.name, "3")
    assert done.returncode == 0, done.stderr
    large = job.wait_step(before.step, round_above=before.round)
    assert large.world_size == 3
    assert job.cli("scale", job.name, "2").returncode == 0
    assert _both_train(job, large.round).step >= large.step


def test_a_drained_node_leaves_at_a_barrier_and_costs_no_budget(job: RunningJob) -> None:
    """Holdfast drain: the world goes on without the node, no step is lost, nothing is charged."""
    used, before, seen = job.charged(), job.status(), job.newest_event()
    node = max(rank for rank, info in job.nodes().items() if info.ranks)
    done = job.cli("drain", job.name, str(node))
    assert done.returncode == 0, done.stderr
    after = job.wait_step(before.step, round_above=before.round)
    assert after.world_size == 1
    job.wait_event("NodeReleased", after=seen)
    assert all(event.reason != "RolledBack" for event in job.events(seen)), job.evidence()
    assert job.charged() == used, job.evidence()
