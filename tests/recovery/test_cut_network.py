"""A network that is cut between halves of synchronous replicas, and comes back.

Needs networks of its own (root): each node is in a namespace, and reaches its master by a bridge.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness.launch import free_port
from bench.local_sgd.worlds import NetworkError, networks
from holdfast.data.counting import count
from holdfast.data.record import files_of, lines_of
from holdfast.data.samples_report import is_once
from jobs.local_job import RunningJob, elastic_job

pytestmark = [pytest.mark.train, pytest.mark.deadline, pytest.mark.timeout(300)]
NODES = 4
BRIDGE = "10.77.0.254"
CUT_SECONDS = 30.0
"""Three times the time of a hang here; TCP alone would be silent for up to as long again."""


_RELAY = """
import asyncio, sys

async def pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()

async def meet(reader, writer):
    far = await asyncio.open_connection("127.0.0.1", int(sys.argv[3]))
    await asyncio.gather(pump(reader, far[1]), pump(far[0], writer))

async def serve():
    await (await asyncio.start_server(meet, sys.argv[1], int(sys.argv[2]))).serve_forever()

asyncio.run(serve())
"""


@contextlib.contextmanager
def _relay(job: RunningJob, port: int) -> Iterator[None]:
    """Forward connections from the namespaces to the master, once there is one."""
    where = job.wait_for("a master", job.address)
    assert where is not None
    words = [sys.executable, "-c", _RELAY, BRIDGE, str(port), str(where[1])]
    with subprocess.Popen(words) as process:
        try:
            yield
        finally:
            process.kill()


@pytest.fixture
def names() -> Iterator[list[str]]:
    """The namespaces of the nodes."""
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(networks(NODES, None))
            bridge = made[0].removesuffix("n0")
            subprocess.run(["ip", "addr", "add", f"{BRIDGE}/24", "dev", bridge], check=True)
            _rule(made[0], "-F", "INPUT")
        except (NetworkError, OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"networks cannot be made and cut here: {error}")
        yield made


def _cut(names: list[str]) -> None:
    """Have the first half and the other one hear nothing of each other."""
    first, other = range(NODES // 2), range(NODES // 2, NODES)
    for one, far in [*itertools.product(first, other), *itertools.product(other, first)]:
        _rule(names[one], "-A", "INPUT", "-s", f"10.77.0.{far + 1}", "-j", "DROP")


def _heal(names: list[str]) -> None:
    for name in names:
        _rule(name, "-F", "INPUT")


def _rule(name: str, *words: str) -> None:
    subprocess.run(["ip", "netns", "exec", name, "iptables", *words], check=True)


def _job(names: list[str], folder: Path, port: int) -> dict[str, object]:
    script = ["examples/with_replicas/train.py", "--steps=100000", "--pause=0.02"]
    script += ["--micro-batches=8", f"--record={folder / 'samples'}"]
    script.append(f"--checkpoint-dir={folder / 'checkpoints'}")
    job = elastic_job(
        "cut",
        script,
        replicas=NODES,
        minReplicas=1,
        replicaPolicy={"nodesPerReplica": 1},
        health={"hang": {"mode": "Act", "minSeconds": 10}},
    )
    [container] = job["spec"]["worker"]["template"]["spec"]["containers"]
    cases = " ".join(f"{rank}) name={name};;" for rank, name in enumerate(names))
    inside = f"exec ip netns exec $name env GLOO_SOCKET_IFNAME=eth0 HOLDFAST_MASTER={BRIDGE}:{port}"
    route = f'case $HOLDFAST_NODE_RANK in {cases} esac; {inside} "$@"'
    container["command"] = ["sh", "-c", route, "route", *container["command"]]
    return job


@pytest.mark.extended(
    "half a minute without a network: what the master does then is tested by itself",
    held_by=[
        "master/unit/job/test_frozen_replicas.py::test_replicas_that_all_stand_still_meet_anew_first",
        "master/unit/job/test_frozen_replicas.py::test_replicas_that_cannot_meet_are_not_restarted",
    ],
)
def test_replicas_go_on_soon_after_a_cut_between_halves(names: list[str], tmp_path: Path) -> None:
    """No process restarts, each sample is used once, and neither half goes on alone."""
    port = free_port()
    with (
        RunningJob(_job(names, tmp_path, port), tmp_path, cold=True) as job,
        _relay(job, port),
    ):
        job.wait_for("all in step", lambda: len(job.status().outer_replicas) == NODES)
        job.wait_step(10)
        before = {rank: [one.pid for one in node.ranks] for rank, node in job.nodes().items()}
        _cut(names)
        time.sleep(CUT_SECONDS)
        stood = job.status().step
        time.sleep(2.0)
        assert job.status().step == stood, "neither half may go on alone"
        _heal(names)
        job.wait_step(stood + 5, timeout_s=15.0)
        after = {rank: [one.pid for one in node.ranks] for rank, node in job.nodes().items()}
        assert after == before, job.evidence()
        assert job.cli("stop", job.name).returncode == 0
        job.finish()
    counted = count(map(lines_of, files_of(tmp_path / "samples")))
    assert is_once(counted), counted
