"""Environment and command line of a worker, beside a real torchrun."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agents.agent_process import AgentProcess, environment
from agents.scripted_node import Node
from holdfast_wire.messages import Leave, LeaveOutcome, RoundStarted
from house import forks
from masters.scripted_master import Identities, assignment

pytestmark = [pytest.mark.train, pytest.mark.timeout(180)]

PROBE = """
import json, os, sys
import torch
out = sys.argv[1]
text = json.dumps({
    "environ": dict(os.environ), "argv": sys.argv[2:], "threads": torch.get_num_threads(),
    "name": __name__, "cwd": os.getcwd(), "main": sys.modules["__main__"].__file__,
})
with open(f"{out}.{os.environ['RANK']}", "w") as file:
    file.write(text)
"""

DIFFERENT = {
    # The same names with values of their own.
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_MAX_RESTARTS",
    # What an agent adds for the SDK.
    "HOLDFAST_ARENA",
    "HOLDFAST_CHECKPOINT",
    "HOLDFAST_DATA",
    "HOLDFAST_PAGE",
    "HOLDFAST_ROUND",
    "HOLDFAST_SCHEDULE",
    "HOLDFAST_SYNC_CHOICES",
    # What an agent keeps from its workers, and what its operator told it.
    "HOLDFAST_JOB",
    "HOLDFAST_JOB_UID",
    "HOLDFAST_NODE_RANK",
    "HOLDFAST_MASTER",
    "HOLDFAST_TLS_DIR",
}


def _read(path: Path, ranks: int) -> list[dict[str, Any]]:
    return [json.loads(Path(f"{path}.{rank}").read_text()) for rank in range(ranks)]


async def _torchrun(
    args: list[str], env: dict[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    words = ["-m", "torch.distributed.run", *args]
    done = await asyncio.to_thread(forks.run, words, env=env, cwd=folder, timeout=90)
    assert done.returncode == 0, done.stderr
    return done


async def _holdfast(node: Node, args: list[str], nproc: int, **options: Any) -> AgentProcess:
    """Return an agent that has ended after a round."""
    agent = node.start_agent(*args, **options)
    stream = await node.master.warm_stream()
    stream.send(assignment(await stream.prepare_store("s"), nproc=nproc), 1)
    for rank in range(nproc):
        await stream.exited(rank)
    stream.send(Leave(command_id=1, outcome=LeaveOutcome.SUCCEEDED, reason="done"))
    assert await asyncio.to_thread(agent.wait) == 0
    return agent


def _plain(identities: Identities, env: dict[str, str]) -> dict[str, str]:
    """Return torchrun's environment: an agent's without what is Holdfast's."""
    given = environment(identities, "") | env
    return {name: value for name, value in given.items() if not name.startswith("HOLDFAST_")}


MORE = pytest.mark.extended(
    "thread counts that a user sets reach workers in a test of their own",
    held_by=[
        "agent/process/zygote/test_torch_workers.py::test_the_users_own_thread_count_reaches_the_workers"
    ],
)


@pytest.mark.parametrize(
    "threads",
    [pytest.param(None, id="threads-unset"), pytest.param("3", id="threads-set", marks=MORE)],
)
async def test_workers_find_torchruns_environment(
    threads: str | None, identities: Identities, node: Node, tmp_path: Path
) -> None:
    """Every variable that torchrun sets is there, with torchrun's value."""
    env = {} if threads is None else {"OMP_NUM_THREADS": threads}
    flags = ["--nproc-per-node=2", "--role=trainer", "--standalone", node.script(PROBE)]
    tail = ["--lr", "0.1", "${local_rank}"]
    plain = _plain(identities, env)
    await _torchrun([*flags, str(tmp_path / "theirs"), *tail], plain, tmp_path)
    await _holdfast(node, [*flags, str(tmp_path / "ours"), *tail], 2, env=env, forked=False)
    theirs, ours = _read(tmp_path / "theirs", 2), _read(tmp_path / "ours", 2)
    for expected, found in zip(theirs, ours, strict=True):
        left = {k: v for k, v in expected["environ"].items() if k not in DIFFERENT}
        right = {k: v for k, v in found["environ"].items() if k not in DIFFERENT}
        assert right == left
        for name in ("argv", "threads", "name", "cwd", "main"):
            assert found[name] == expected[name], name
        names = DIFFERENT - {n for n in DIFFERENT if n.startswith("HOLDFAST_")}
        assert names <= found["environ"].keys()
        assert "HOLDFAST_TLS_DIR" not in found["environ"]
        assert "HOLDFAST_MASTER" not in found["environ"]
    assert [found["environ"]["RANK"] for found in ours] == ["0", "1"]
    assert ours[1]["argv"] == ["--lr", "0.1", "1"]


async def test_a_place_in_a_larger_world_shows(node: Node, tmp_path: Path) -> None:
    """Ranks follow the assignment, with unequal local world sizes, and so does the count."""
    node.start_agent("--nproc-per-node=2", node.script(PROBE), str(tmp_path / "out"))
    stream = await node.master.warm_stream()
    store = await stream.prepare_store("s")
    world = assignment(
        store, group_rank=1, group_world_size=3, base_rank=3, world_size=6, restart_count=4
    )
    stream.send(world, 9)
    await stream.wait(RoundStarted)
    for rank in (3, 4):
        await stream.exited(rank)
    for local_rank, rank in enumerate((3, 4)):
        found = json.loads((tmp_path / f"out.{rank}").read_text())["environ"]
        expected = {
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": "6",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "1",
            "GROUP_WORLD_SIZE": "3",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": "6",
            "MASTER_ADDR": store.host,
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_RESTART_COUNT": "4",
            "TORCHELASTIC_MAX_RESTARTS": "3",
            "TORCHELASTIC_RUN_ID": "job",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "HOLDFAST_ROUND": "9",
        }
        assert {name: found.get(name) for name in expected} == expected


MODULE = """
import sys
if __name__ == "__main__":
    print("module", sys.argv[1:], flush=True)
"""


@pytest.mark.parametrize(
    ("args", "printed"),
    [
        pytest.param(["-m", "probe_module", "a", "b"], "module ['a', 'b']", id="module"),
        pytest.param(["--no-python", "sh", "-c", 'echo "rank $RANK"'], "rank 0", id="program"),
    ],
)
async def test_modules_and_programs_are_started_as_by_torchrun(
    args: list[str], printed: str, node: Node, tmp_path: Path
) -> None:
    """-m and --no-python do what they do under torchrun."""
    (tmp_path / "probe_module.py").write_text(MODULE)
    assert printed in (await _holdfast(node, args, 1)).output()


TALK = """
import os, sys
# One write each: both launchers run python -u, where print() writes a line in pieces.
sys.stdout.write(f"out of {os.environ['RANK']}\\n")
sys.stderr.write(f"err of {os.environ['RANK']}\\n")
"""


def _tree(base: Path) -> dict[str, str]:
    """Return the log files below the run's directory, whose name is random."""
    (run,) = base.iterdir()
    return {
        str(path.relative_to(run)): path.read_text() for path in run.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["--redirects=3"], id="redirects"),
        pytest.param(["--tee=3"], id="tee"),
        pytest.param(["--redirects=0:1", "--tee=1:2"], id="by-rank"),
        pytest.param(["--tee=3", "--local-ranks-filter=1"], id="filter"),
        pytest.param(["--tee=1", "--log-line-prefix-template=<${rank}> "], id="prefix"),
        pytest.param(["--tee=3", "--duplicate-stdout-filters=of 1"], id="duplicate"),
    ],
)
async def test_output_goes_where_torchrun_would_put_it(
    flags: list[str], identities: Identities, node: Node, tmp_path: Path
) -> None:
    """The files of --log-dir, their contents and what the console shows are torchrun's."""
    common, plain = ["--nproc-per-node=2", *flags, node.script(TALK)], _plain(identities, {})
    theirs = await _torchrun([f"--log-dir={tmp_path}/theirs", *common], plain, tmp_path)
    ours = await _holdfast(node, [f"--log-dir={tmp_path}/ours", *common], 2)
    assert _tree(tmp_path / "ours") == _tree(tmp_path / "theirs")
    assert sorted(ours.output().splitlines()) == sorted(theirs.stdout.splitlines())
    talk = [line for line in ours.errors().splitlines() if "err of" in line]
    assert sorted(talk) == sorted(x for x in theirs.stderr.splitlines() if "err of" in x)
