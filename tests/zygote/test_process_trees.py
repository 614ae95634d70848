"""No process outlives what it belongs to: round, zygote, agent; however it has detached."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from daemons import DAEMON, DAEMONS, STAY
from holdfast_agent.zygote import Failure, RoundDead, SpawnRank, WorkerExited, ZygoteExited, tree
from holdfast_agent.zygote.messages import KillRound, Shutdown, Spawn, SpawnRound
from zygote_driver import Driver


def test_a_killed_round_takes_its_daemons_along(driver: Driver) -> None:
    """Children that changed session and parent die too; RoundDead comes after the last."""
    driver.start(STAY)
    assert len(driver.family()) == 1 + DAEMONS
    driver.kill()
    exited = driver.wait(WorkerExited)
    assert (exited.signal, exited.exit_code) == (signal.SIGKILL, None)
    driver.wait(RoundDead)
    assert driver.family() == []


def test_a_round_is_not_dead_while_a_daemon_lives(driver: Driver) -> None:
    """When the workers have ended by themselves, what they left still belongs to the round."""
    driver.start(DAEMON)
    assert driver.wait(WorkerExited).exit_code == 0
    assert len(driver.family()) == DAEMONS
    assert not any(isinstance(event, RoundDead) for event in driver.unread)
    driver.kill()
    driver.wait(RoundDead)
    assert driver.family() == []


def test_stopped_processes_die_too(driver: Driver) -> None:
    """SIGKILL does not wait for SIGCONT, and neither do we."""
    driver.start(STAY)
    for pid in driver.family():
        os.kill(pid, signal.SIGSTOP)
    driver.kill()
    driver.wait(RoundDead)
    assert driver.family() == []


def test_a_forking_process_cannot_outrun_the_kill(driver: Driver) -> None:
    """A tree that forks all the time is gone in the end: each pass finds what the last missed."""
    driver.start(
        """
        import os, time
        print("up", flush=True)
        for _ in range(2):
            os.fork()
        while True:
            if not os.fork():
                os.setsid()
                if os.fork():
                    os._exit(0)
                time.sleep(0.5)
                os._exit(0)
            os.wait()
        """
    )
    driver.kill()
    driver.wait(RoundDead)
    assert driver.family() == []


def test_nothing_is_left_a_second_after_the_agent_is_killed(driver: Driver) -> None:
    """SIGKILL of the agent: zygote, workers, daemons are gone within a second."""
    driver.start(STAY)
    driver.process.kill()
    took = driver.until(lambda: not driver.alive(), "an empty house", 5.0)
    assert took < 1.0


def test_nothing_is_left_when_agent_and_workers_are_stopped_and_the_agent_is_killed(
    driver: Driver,
) -> None:
    """Stopped workers hold nothing up."""
    driver.start(STAY)
    for pid in [driver.process.pid, *driver.family()]:
        os.kill(pid, signal.SIGSTOP)
    driver.process.kill()
    assert driver.until(lambda: not driver.alive(), "an empty house", 5.0) < 1.0


def test_an_agent_that_closes_its_end_ends_everything(driver: Driver) -> None:
    """An agent that exits in order, without a shutdown, leaves nothing either."""
    driver.start(STAY)
    assert driver.process.stdin is not None
    driver.process.stdin.close()
    assert driver.until(lambda: not driver.alive(), "an empty house", 5.0) < 1.0


def test_workers_die_with_a_killed_zygote(driver: Driver) -> None:
    """The parent-death signal reaches the workers, and the agent hears of the zygote's end."""
    (worker,) = [driver.start(STAY).pid]
    os.kill(driver.zygote(), signal.SIGKILL)
    exited = driver.wait(ZygoteExited)
    assert (exited.exit_code, exited.signal) == (None, signal.SIGKILL)
    driver.until(lambda: worker not in driver.alive(), "the worker's death", 1.0)
    for pid in driver.family():  # this agent does not call kill_orphans; the next test does
        os.kill(pid, signal.SIGKILL)


ORPHANS = """
import os, select, signal, sys, time
from holdfast.page import Page
from holdfast_agent.zygote import *
page = Page.create(1)
zygote = Zygote()
zygote.start(ZygoteSettings(local_world_size=1, preload=()), page)
bystander = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "60")
def wait(kind):
    while True:
        select.select([zygote], [], [])
        if any(isinstance(event, kind) for event in zygote.receive()):
            return
wait(Ready)
out = sys.argv[2]
zygote.spawn(SpawnRound(round=0, ranks=(
    SpawnRank(local_rank=0, slot=0, argv=(sys.argv[1],), stdout=out),)))
while not os.path.exists(out) or "up" not in open(out).read():
    time.sleep(0.01)
os.kill(zygote.pid, signal.SIGKILL)
wait(ZygoteExited)
found = zygote.kill_orphans(spare=[bystander])
left = [pid for pid in os.listdir("/proc") if pid.isdigit() and os.path.exists(f"/proc/{pid}/stat")
        and open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1] == str(os.getpid())]
print(found, left == [str(bystander)])
os.kill(bystander, signal.SIGKILL)
"""


def test_the_agent_kills_what_a_killed_zygote_left(driver: Driver) -> None:
    """Daemons of dead workers come to the agent, which kills them and spares its other children."""
    script = driver.script(STAY)
    done = subprocess.run(
        [sys.executable, "-c", ORPHANS, script, str(driver.folder / "orphans.out")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    found, spared = done.stdout.split()
    assert int(found) >= DAEMONS, done.stderr
    assert spared == "True"


def test_shutdown_leaves_nothing_and_says_so(driver: Driver) -> None:
    """Exits are reported, then the zygote's own."""
    driver.start(STAY)
    driver.send(Shutdown())
    assert driver.wait(WorkerExited).signal == signal.SIGKILL
    driver.wait(RoundDead)
    assert driver.wait(ZygoteExited).exit_code == 0
    assert driver.family() == []


# --- signals, grace, order -------------------------------------------------------------------

POLITE = """
    import signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(21))
    print("up", flush=True)
    time.sleep(600)
"""

DEAF = """
    import signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("up", flush=True)
    time.sleep(600)
"""


def test_a_polite_worker_ends_within_its_grace(driver: Driver) -> None:
    """SIGTERM first; a worker that obeys ends by its own status, long before the grace is over."""
    driver.start(POLITE)
    begun = time.monotonic()
    driver.kill(signal.SIGTERM, grace_s=20.0)
    assert driver.wait(WorkerExited).exit_code == 21
    driver.wait(RoundDead)
    assert time.monotonic() - begun < 5.0


def test_a_deaf_worker_is_killed_after_its_grace(driver: Driver) -> None:
    """SIGKILL follows when the grace is over, not before."""
    driver.start(DEAF)
    begun = time.monotonic()
    driver.kill(signal.SIGTERM, grace_s=0.6)
    assert driver.wait(WorkerExited).signal == signal.SIGKILL
    assert 0.6 <= time.monotonic() - begun < 1.6
    driver.wait(RoundDead)


def test_a_kill_cuts_a_grace_short(driver: Driver) -> None:
    """Whoever has no time any more says SIGKILL."""
    driver.start(DEAF)
    driver.kill(signal.SIGTERM, grace_s=60.0)
    driver.kill(signal.SIGKILL)
    driver.wait(RoundDead, timeout_s=5.0)


def test_a_grace_is_never_lengthened(driver: Driver) -> None:
    """The earliest deadline holds: a drain that becomes a stop does not start anew."""
    driver.start(DEAF)
    begun = time.monotonic()
    driver.kill(signal.SIGTERM, grace_s=0.5)
    driver.kill(signal.SIGTERM, grace_s=60.0)
    driver.wait(RoundDead)
    assert time.monotonic() - begun < 3.0


def test_a_term_right_after_the_fork_is_not_lost(driver: Driver) -> None:
    """The signal waits until the worker has python's own handlers, and then ends it."""
    for _ in range(20):
        number = driver.round = driver.round + 1
        driver.page.reset(0, number)
        rank = driver.rank(argv=(driver.script("import time; time.sleep(600)"),))
        driver.send(Spawn(SpawnRound(round=number, ranks=(rank,))))
        driver.send(KillRound(number, signal.SIGTERM, 20.0))
        assert driver.wait(WorkerExited, round=number, timeout_s=5.0).signal == signal.SIGTERM
        driver.wait(RoundDead, round=number)


def test_a_round_of_nobody_is_dead_at_once(driver: Driver) -> None:
    """Killing an unknown round, or spawning one without ranks, is answered all the same."""
    driver.round = 41
    driver.kill()
    assert driver.wait(RoundDead).round == 41
    driver.spawn()
    assert driver.wait(RoundDead).round == 42


def test_two_rounds_never_run_together(driver: Driver) -> None:
    """A second round is refused with the reason while the first has processes."""
    driver.start(STAY)
    rank = driver.rank(1, argv=("x.py",))
    driver.send(Spawn(SpawnRound(round=2, ranks=(rank,))))
    failure = driver.wait(Failure)
    assert (failure.round, failure.text) == (2, "spawn of round 2: round 1 still has processes")
    assert driver.wait(RoundDead).round == 2
    driver.kill()
    assert driver.wait(RoundDead).round == 1


def test_all_ranks_of_a_round_are_told_apart(driver: Driver) -> None:
    """Each exit names its rank, and the round is dead after the last."""
    ranks = [
        driver.rank(n, argv=(driver.script(f"import sys; sys.exit({10 + n})", f"{n}.py"),))
        for n in range(2)
    ]
    driver.spawn(*ranks)
    statuses = {event.local_rank: event.exit_code for event in _exits(driver, 2)}
    assert statuses == {0: 10, 1: 11}
    driver.wait(RoundDead)


def _exits(driver: Driver, count: int) -> list[WorkerExited]:
    return [driver.wait(WorkerExited) for _ in range(count)]


def test_a_round_with_a_huge_environment_starts(driver: Driver) -> None:
    """A description too long for a datagram travels all the same."""
    ended = driver.run(
        "import os; print(len(os.environ['BIG'] + os.environ['BIGGER']))",
        env={"BIG": "x" * 100_000, "BIGGER": "y" * 100_000},
    )
    assert ended.out == "200000\n"


def test_the_kill_is_fast(driver: Driver) -> None:
    """From the command to RoundDead takes milliseconds for small processes (the median of 10)."""
    took = []
    for _ in range(10):
        driver.start("print('up', flush=True)\nimport time; time.sleep(600)")
        begun = time.monotonic()
        driver.kill()
        driver.wait(RoundDead, round=driver.round)
        took.append(time.monotonic() - begun)
    assert sorted(took)[5] < 0.1


@pytest.mark.parametrize("files", [True, False], ids=["children-files", "stat-scan"])
def test_children_are_found_either_way(monkeypatch: pytest.MonkeyPatch, *, files: bool) -> None:
    """With the kernel's list of children, and without it."""
    monkeypatch.setattr(tree, "_CHILDREN_FILES", files)
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"]) as shell:
        try:
            deadline = time.monotonic() + 5
            while not (below := tree.children(shell.pid)) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert shell.pid in tree.children(os.getpid())
            assert tree.descendants([shell.pid]) == [shell.pid, *below]
            assert len(below) == 1
        finally:
            tree.kill_below(shell.pid)
            shell.kill()
    assert tree.children(shell.pid) == []


def test_rank_description_defaults_are_pythons() -> None:
    """A rank is a script with inherited streams unless it says otherwise."""
    rank = SpawnRank(local_rank=0, slot=0, argv=("x.py",))
    assert (rank.mode.value, rank.stdout, rank.cwd, rank.numa) == ("script", None, None, None)
