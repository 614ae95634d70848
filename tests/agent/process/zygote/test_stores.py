"""The store process, and ranks that meet at it: real rendezvous, real gloo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agents.zygote_driver import Driver
from holdfast_agent.zygote.protocol import (
    PrepareStoreCommand,
    ReleaseStore,
    RoundDead,
    StoreExited,
    StoreReady,
    WorkerExitedEvent,
)

pytestmark = [pytest.mark.train, pytest.mark.timeout(180)]

GLOO = """
    import os, sys, time, torch, torch.distributed as dist, holdfast
    job = holdfast.init()
    dist.init_process_group("gloo")
    x = torch.ones(4) * (dist.get_rank() + 1)
    dist.all_reduce(x)
    print("sum", x[0].item(), flush=True)
    print("up", flush=True)
"""


def _store(driver: Driver, store_id: str, host: str = "127.0.0.1") -> int:
    """Have a store started; return its port."""
    driver.send(PrepareStoreCommand(store_id, host))
    return driver.wait(StoreReady).port


def _release(driver: Driver, store_id: str) -> None:
    driver.send(ReleaseStore(store_id))
    assert driver.wait(StoreExited).reason == ""


def _gloo_ranks(driver: Driver, port: int) -> list[Path]:
    """Spawn two ranks that rendezvous at a store; return their outputs."""
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    ranks = [
        driver.rank(rank, argv=(driver.script(GLOO),), env=common | {"RANK": str(rank)})
        for rank in range(2)
    ]
    driver.spawn(*ranks)
    return [Path(rank.stdout or "") for rank in ranks]


def test_ranks_meet_at_the_store_process(warm: Driver) -> None:
    """A world of two forms through the store that the zygote made, and reduces."""
    port = _store(warm, "meeting")
    outputs = _gloo_ranks(warm, port)
    assert [warm.wait(WorkerExitedEvent).exit_code for _ in range(2)] == [0, 0]
    warm.wait(RoundDead)
    assert [file.read_text() for file in outputs] == ["sum 3.0\nup\n"] * 2
    _release(warm, "meeting")


CLIENT = """
import sys
from torch.distributed import TCPStore
store = TCPStore(sys.argv[1], int(sys.argv[2]), is_master=False, wait_for_workers=False)
for line in sys.stdin:
    store.add("count", 1)
    print(store.get("count").decode(), flush=True)
"""


def test_a_store_answers_while_the_agent_is_frozen(warm: Driver) -> None:
    """Its clients in other processes do not notice that the agent is stopped."""
    port = _store(warm, "steady")
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, "127.0.0.1", str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        print(file=client.stdin, flush=True)
        assert client.stdout.readline() == "1\n"
        os.kill(warm.process.pid, signal.SIGSTOP)
        print(file=client.stdin, flush=True)
        answer = client.stdout.readline()
        os.kill(warm.process.pid, signal.SIGCONT)
        client.stdin.close()
    assert answer == "2\n"
    _release(warm, "steady")


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("localhost", "'localhost': expected an IP address"),
        ("", "expected an IP address"),
        ("203.0.113.7", "Cannot assign requested address"),
    ],
)
def test_a_store_on_a_wrong_host_says_why(warm: Driver, host: str, reason: str) -> None:
    """Names and foreign addresses are refused with a reason, and nothing is left."""
    warm.send(PrepareStoreCommand("wrong", host))
    assert reason in warm.wait(StoreExited, store_id="wrong").reason
    assert warm.family() == []


def test_a_store_listens_on_its_own_address_only(warm: Driver) -> None:
    """The store's traffic is plain: it must not be reachable by other addresses of the node."""
    port = _store(warm, "narrow", "127.0.0.3")
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    lines = [line.split()[1] for line in listening.splitlines() if f":{port:04X} " in line[:50]]
    assert "0300007F" in {line.split(":")[0] for line in lines}
    assert not {line.split(":")[0] for line in lines} & {"00000000", "0" * 32}
    _release(warm, "narrow")


def test_two_stores_of_one_name_are_refused(warm: Driver) -> None:
    """The first one goes on."""
    _store(warm, "twin")
    warm.send(PrepareStoreCommand("twin", "127.0.0.1"))
    assert warm.wait(StoreExited).reason == "store 'twin' exists already"
    _release(warm, "twin")
