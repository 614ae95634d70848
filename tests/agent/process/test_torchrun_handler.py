"""An unmodified torchrun that rendezvous through a real job master."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from agents.agent_process import clean_environment
from holdfast_agent.config.launch import Launch
from holdfast_agent.config.settings import Settings
from holdfast_agent.torchrun import handler as torchrun_handler
from holdfast_agent.torchrun.handler import HoldfastHandler
from holdfast_agent.torchrun.node import TorchrunNode
from holdfast_wire import keys
from holdfast_wire.identity import Identity
from holdfast_wire.messages import GetJobRequest, Goodbye, JobPhase, ListEventsRequest
from holdfast_wire.reasons import EndReason
from house import forks
from house.patience import patience
from masters.master_process import JOB, SPEC, MasterProcess, master_process
from messages import certificates

TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
os.write(1, f"start {rank} {world} {os.getpid()} ;\\n".encode())
value = torch.ones(1)
for n in range(int(sys.argv[1])):
    dist.all_reduce(value)
    value /= world
    time.sleep(0.05)
os.write(1, b"end ;\\n")
"""


FAILS_ON_ONE_NODE = """
import os, sys, time
os.write(1, f"start {os.environ['RANK']} {os.environ['WORLD_SIZE']} {os.getpid()} ;\\n".encode())
if os.environ["GROUP_RANK"] == sys.argv[1]:
    raise SystemExit(17)
time.sleep(600)
"""


class Torchrun:
    """One node's torchrun."""

    def __init__(self, folder: Path, node_rank: int, port: int, *args: str) -> None:
        self.output = folder / f"torchrun-{node_rank}.log"
        env = clean_environment() | {
            keys.ENV_JOB: "job",
            keys.ENV_JOB_UID: JOB,
            keys.ENV_NODE_RANK: str(node_rank),
            keys.ENV_TLS_DIR: str(certificates.issue(folder, Identity(JOB, "agent", node_rank))),
        }
        launcher = ["-m", "torch.distributed.run", "--rdzv-backend=holdfast"]
        with Path(os.devnull).open("rb") as nothing, self.output.open("wb") as output:
            self.process = forks.start(
                [*launcher, f"--rdzv-endpoint=127.0.0.1:{port}", "--nnodes=1:4", *args],
                env=env,
                cwd=folder,
                files=[nothing.fileno(), output.fileno(), output.fileno()],
            )

    def starts(self) -> list[list[str]]:
        """Return the words of each start: rank, world size, pid."""
        lines = self.output.read_text(errors="replace").splitlines()
        return [line.split()[1:4] for line in lines if line.startswith("start")]

    def end(self) -> None:
        """Kill it and its workers."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        for process in family:
            process.kill()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MasterProcess]:
    """A job of two nodes without an operator, which can be asked after its end."""
    with master_process(tmp_path, initial_spec=SPEC, exit_when_finished=600) as running:
        yield running


@pytest.fixture
def torchrun(tmp_path: Path, master: MasterProcess) -> Iterator[Callable[..., Torchrun]]:
    """Start torchrun for a node with arguments; ended afterwards."""
    started: list[Torchrun] = []
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "fails.py").write_text("raise SystemExit(17)")
    (tmp_path / "fails_on_one_node.py").write_text(FAILS_ON_ONE_NODE)

    def start(node_rank: int, *args: str) -> Torchrun:
        started.append(Torchrun(tmp_path, node_rank, master.port, *args))
        return started[-1]

    yield start
    for run in started:
        if run.process.poll() is None:
            run.end()


def _until(look: Callable[[], object], runs: list[Torchrun], within: float = 120.0) -> None:
    deadline = time.monotonic() + within
    while not look():
        logs = "\n".join(run.output.read_text() for run in runs)
        assert time.monotonic() < deadline, logs
        time.sleep(0.05)


@pytest.mark.train
@pytest.mark.timeout(300)
def test_two_nodes_train_and_restart_through_the_master(
    master: MasterProcess, torchrun: Callable[..., Torchrun]
) -> None:
    """A killed worker leads to a new round on both nodes; the end of both ends the job."""
    common = ("--nproc-per-node=1", "--max-restarts=3", "train.py", "200")
    runs = [torchrun(rank, *common) for rank in (0, 1)]
    _until(lambda: all(len(run.starts()) == 1 for run in runs), runs)
    first = [run.starts()[0] for run in runs]
    assert sorted(start[:2] for start in first) == [["0", "2"], ["1", "2"]]
    psutil.Process(int(first[1][2])).kill()
    _until(lambda: all(len(run.starts()) >= 2 for run in runs), runs)
    assert [run.process.wait(120) for run in runs] == [0, 0]
    status = master.ask("GetJob", GetJobRequest()).status
    assert status.phase is JobPhase.SUCCEEDED
    assert status.round == 2


@pytest.mark.train
@pytest.mark.timeout(300)
def test_a_run_that_fails_is_told_to_the_master(
    master: MasterProcess, torchrun: Callable[..., Torchrun]
) -> None:
    """A torchrun that gives up ends with its own code and says why, and so does one after it."""
    runs = [torchrun(rank, "--nproc-per-node=1", "fails.py") for rank in (0, 1)]
    assert [run.process.wait(120) for run in runs] == [1, 1]
    texts = [event.text for event in master.ask("ListEvents", ListEventsRequest()).events]
    assert any("exit code 17" in text for text in texts), texts
    late = torchrun(2, "--nproc-per-node=1", "fails.py")
    assert late.process.wait(120) == 1
    assert "exit code 17" in late.output.read_text()


@pytest.mark.train
@pytest.mark.timeout(300)
@pytest.mark.parametrize("failing", [0, 1])
def test_a_torchrun_without_restarts_ends_the_others_too(
    master: MasterProcess, torchrun: Callable[..., Torchrun], failing: int
) -> None:
    """The others do not wait in a new round for a torchrun that has given up."""
    arguments = ("--nproc-per-node=1", "fails_on_one_node.py", str(failing))
    runs = [torchrun(rank, *arguments) for rank in (0, 1)]
    assert [run.process.wait(120) for run in runs] == [1, 1]
    status = master.ask("GetJob", GetJobRequest()).status
    assert status.phase is JobPhase.FAILED
    assert status.reason == EndReason.FAILURE_BUDGET_EXHAUSTED
    assert "exit code 17" in status.text
    assert "--max-restarts" in status.text
    assert "exit code 17" in runs[1 - failing].output.read_text()


@pytest.mark.train
def test_a_node_that_ends_before_it_joined_its_round_holds_nobody_up(
    tmp_path: Path, master: MasterProcess
) -> None:
    """Torchrun would wait for it in the store until a time-out, deaf to the next world."""
    pytest.importorskip("torch")
    ghost = TorchrunNode(_settings(tmp_path, master, 1), "ghost", "127.0.0.1", _no_store)
    ghost.start()
    handler = HoldfastHandler(_settings(tmp_path, master, 0), "run", "127.0.0.1", 60.0)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(handler.next_rendezvous)
        with ghost.changed:
            assert ghost.changed.wait_for(lambda: ghost.place is not None, 30)
        ghost.report(Goodbye(reason="a test", failed=True), 1)
        joined = joining.result(60)
        handler.shutdown()
    ghost.stop(2)
    assert (joined.rank, joined.world_size) == (0, 1)


def _settings(folder: Path, master: MasterProcess, node_rank: int) -> Settings:
    return Settings(
        launch=Launch(script="torchrun"),
        standalone=False,
        master=f"127.0.0.1:{master.port}",
        job="job",
        job_uid=JOB,
        node_rank=node_rank,
        tls_dir=certificates.issue(folder, Identity(JOB, "agent", node_rank)),
    )


def _no_store(_: str) -> int:
    raise OSError("a ghost serves no store")


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        pytest.param(["--nproc-per-node=2", "train.py"], "2", id="equals"),
        pytest.param(["--nproc_per_node", "3", "train.py", "x"], "3", id="underscores"),
        pytest.param(["--nnodes", "1:2", "train.py", "--nproc-per-node=9"], "1", id="the-script's"),
        pytest.param(["--something-else"], None, id="no-torchrun"),
    ],
)
def test_the_process_count_is_read_from_torchruns_command_line(
    argv: list[str], found: str | None
) -> None:
    """Torch does not tell a handler how many processes its node has."""
    pytest.importorskip("torch")
    assert torchrun_handler.nproc_of(argv) == found


def test_the_entry_point_needs_neither_torch_nor_grpc() -> None:
    """Torch loads the module whenever its launcher is imported, also before a zygote is forked."""
    code = (
        "import sys; from holdfast_agent.torchrun.handler import register; register();"
        "sys.exit(bool({'torch', 'grpc'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60 * patience())
