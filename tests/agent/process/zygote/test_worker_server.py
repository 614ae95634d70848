"""Torch's worker server in a rank: it is there beside any script, and costs it nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.zygote_driver import Driver, agent
from holdfast_agent.health.worker_server import WorkerServer
from holdfast_agent.zygote.protocol import Ready

pytestmark = pytest.mark.train

_SERVED = """
import sys, time
from pathlib import Path
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.ones(2))
print("up", flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("fork", [True, False], ids=["forked", "fresh"])
def test_a_scripts_collectives_are_served_and_nothing_is_printed(
    tmp_path: Path, *, fork: bool
) -> None:
    """In a fork at once, in a fresh interpreter as soon as the script has imported torch."""
    folder = tmp_path / ("x" * 110)  # longer than a socket's address
    folder.mkdir()
    path, end = folder / "0.sock", tmp_path / "end"
    with agent(tmp_path, torch=True, fork=fork, preload=("torch",)) as driver:
        driver.wait(Ready)
        rank = driver.rank(argv=(driver.script(_SERVED), str(end)), server=str(path))
        driver.spawn(rank)
        out = Path(rank.stdout or "")
        driver.until(lambda: out.exists() and "up\n" in out.read_text(), "the script to say up")
        assert WorkerServer(path).flight_trace(20).count(b'"gloo:all_reduce"') == 3
        end.touch()
        driver.settle()
    assert Path(rank.stderr or "").read_text() == ""


@pytest.mark.parametrize(
    ("folder", "env", "said"),
    [
        ("", {"TORCH_FR_BUFFER_SIZE": "0"}, "TORCH_FR_BUFFER_SIZE=0 switches"),
        ("missing", {}, "missing/0.sock"),
    ],
    ids=["recorder-off", "no-folder"],
)
def test_a_rank_that_cannot_serve_says_so_once_and_goes_on(
    warm: Driver, folder: str, env: dict[str, str], said: str
) -> None:
    """The reason is on standard error; the script runs as without a server."""
    path = warm.folder / folder / "0.sock"
    ended = warm.run("print('done')", server=str(path), env=env)
    assert (ended.status, ended.out) == (0, "done\n")
    assert ended.err.count("slow and hanging ranks are not seen from this one") == 1
    assert said in ended.err
