"""An agent that is frozen loses its workers in time, and may start again when it wakes up."""

from __future__ import annotations

import os
import signal
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agents.daemons import STAY
from agents.plain_python import plain_python
from agents.zygote_driver import Driver, agent, ready
from holdfast.page_layout import DEFAULT_LEASE_LIMIT_NS
from holdfast_agent.zygote.protocol import (
    Failure,
    LeaseExpired,
    RoundDead,
    Spawn,
    WorkerExitedEvent,
)
from house.patience import patience

LEASE_SECONDS = 4.0
STEPPING = """
    import time, holdfast
    job = holdfast.init()
    n = 0
    print("up", flush=True)
    while True:
        n += 1
        job.step(n)
        time.sleep(0.01)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers_stopped", [False, True], ids=["running", "stopped"])
def test_workers_of_a_frozen_agent_are_dead_after_the_lease(
    tmp_path: Path, *, workers_stopped: bool
) -> None:
    """SIGSTOP of the agent: all its workers and their daemons are dead once its lease ends."""
    with agent(tmp_path, lease_limit_s=DEFAULT_LEASE_LIMIT_NS / 1e9) as driver:
        ready(driver).start(STAY)
        if workers_stopped:
            for pid in driver.family():
                os.kill(pid, signal.SIGSTOP)
        os.kill(driver.process.pid, signal.SIGSTOP)
        frozen = time.monotonic_ns()
        renewed = frozen - (driver.page.lease_age_ns(frozen) or 0)
        driver.until(lambda: not driver.family(), "the workers' death")
        assert 4.0 <= (time.monotonic_ns() - renewed) / 1e9 < 4.0 + 4.0 * patience()
        os.kill(driver.process.pid, signal.SIGCONT)
        assert driver.wait(LeaseExpired).rounds == (1,)
        assert driver.wait(WorkerExitedEvent).exit_code == -signal.SIGKILL
        driver.wait(RoundDead)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    """An agent whose lease is short, and longer than a busy machine stands still."""
    with agent(tmp_path, lease_limit_s=LEASE_SECONDS) as running:
        yield ready(running)


def test_a_woken_agent_starts_again_after_a_new_lease(driver: Driver) -> None:
    """Until it begins a lease its spawns are refused with the reason; then the next round runs."""
    driver.start(STAY)
    os.kill(driver.process.pid, signal.SIGSTOP)
    driver.until(lambda: not driver.family(), "the workers' death")
    os.kill(driver.process.pid, signal.SIGCONT)
    driver.wait(LeaseExpired)
    driver.wait(RoundDead)
    rank = driver.rank(argv=(driver.script("print('again')"),))
    driver.send(Spawn(round=2, ranks=(rank,)))
    assert "lease has expired" in driver.wait(Failure).text
    assert driver.wait(RoundDead).round == 2
    driver.send("begin-lease")
    driver.round = 2
    assert driver.run("print('again')").out == "again\n"


def test_a_silent_agent_is_as_good_as_frozen(driver: Driver) -> None:
    """An agent whose loop is stuck, so that it renews nothing, loses its workers as well."""
    driver.start(STAY)
    driver.send("stop-renewing")
    assert driver.wait(LeaseExpired).age_s >= LEASE_SECONDS
    driver.wait(RoundDead)
    assert driver.family() == []


def test_a_node_frozen_whole_wakes_up_without_its_workers(driver: Driver) -> None:
    """Agent, zygote and workers stopped, then continued: no worker completes many more steps.

    Nobody could kill anybody during the freeze. Whoever wakes first, the lease stays stale: the
    worker's next step or the zygote's next look ends it.
    """
    for freeze in range(1, 4):
        driver.start(STEPPING)
        driver.until(lambda: driver.page.read(0).step > 0, "steps")
        everybody = driver.alive()
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        before = driver.page.read(0).step
        time.sleep(LEASE_SECONDS + 0.2)  # the freeze itself
        for pid in everybody:  # the agent first: it must not renew
            with suppress(ProcessLookupError):  # the zygote woke, and was quicker
                os.kill(pid, signal.SIGCONT)
        driver.wait(LeaseExpired)
        driver.wait(RoundDead, round=freeze)
        assert driver.page.read(0).step <= before + 1
        driver.send("begin-lease")
        driver.until(lambda: not driver.page.lease_is_stale(time.monotonic_ns()), "a new lease")


def test_a_worker_kills_itself_when_its_zygote_cannot(driver: Driver) -> None:
    """With the zygote stopped for good, the next step under a stale lease is the last."""
    driver.start(STEPPING)
    zygote = driver.zygote()
    os.kill(zygote, signal.SIGSTOP)
    driver.send("stop-renewing")
    worker = driver.page.read(0).pid
    driver.until(lambda: _state(worker) == "Z", "the worker's end")
    os.kill(zygote, signal.SIGCONT)
    assert driver.wait(WorkerExitedEvent).exit_code == -signal.SIGKILL


RENEWED_IN_BETWEEN = """
    import os, select, sys, time
    from holdfast.page import Page
    from holdfast_agent.zygote.settings import ZygoteSettings
    from holdfast_agent.zygote import protocol
    from holdfast_agent.zygote.loop import live
    from holdfast_agent.zygote.store_processes import StoreProcesses

    page = Page.create(1, 30_000_000_000)
    # A machine that was just started has a small clock.
    page.begin_lease(time.monotonic_ns() - 31_000_000_000)
    ours, theirs = protocol.pair()
    agent = os.getpid()
    if os.fork() == 0:
        def held_up(self, read=StoreProcesses.read_reports):
            read(self)
            while page.lease_is_stale(time.monotonic_ns()):
                select.select([theirs], [], [], 0.001)
        StoreProcesses.read_reports = held_up
        live(theirs, page, ZygoteSettings(local_world_size=1, preload=()), agent, "")
    rank = protocol.SpawnRank(local_rank=0, slot=0, argv=(sys.argv[1],))
    ended = False
    while not ended:
        select.select([ours], [], [])
        for event in ours.receive():
            print(type(event).__name__, flush=True)
            if isinstance(event, protocol.Ready):
                ours.send(protocol.ReleaseStore("none"))
            if isinstance(event, protocol.LeaseExpired):
                page.reset(0, 1)
                ours.send(protocol.Spawn(round=1, ranks=(rank,)))
                page.begin_lease(time.monotonic_ns())
            ended |= isinstance(event, protocol.RoundDead)
"""


def test_a_round_that_is_ordered_under_a_new_lease_starts(tmp_path: Path) -> None:
    """The agent renewed the lease between the zygote's look at it and at the order."""
    script = tmp_path / "script.py"
    script.write_text("print('it ran', flush=True)")
    done = plain_python("-c", textwrap.dedent(RENEWED_IN_BETWEEN), str(script))
    seen = done.stdout.splitlines()
    assert seen[:2] == ["Ready", "LeaseExpired"], done.stderr
    assert "it ran" in done.stdout
    assert "Failure" not in seen


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
