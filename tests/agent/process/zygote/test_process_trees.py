"""No process outlives what it belongs to: round, zygote, agent; however it has detached."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from agents.daemons import DAEMON, DAEMONS, STAY
from agents.plain_python import plain_python
from agents.zygote_driver import Driver
from holdfast_agent.zygote import process_tree
from holdfast_agent.zygote.protocol import (
    EndZygote,
    Failure,
    KillRound,
    RoundDead,
    ScriptMode,
    Spawn,
    WorkerExitedEvent,
    ZygoteExited,
)
from house.patience import patience


def _is_gone(driver: Driver) -> None:
    """Kill the round; no process of it is left."""
    driver.kill()
    driver.wait(RoundDead)
    assert driver.family() == []


def test_a_killed_round_takes_its_daemons_along(driver: Driver) -> None:
    """Children that changed session and parent die too; RoundDead comes after the last."""
    driver.start(STAY)
    assert len(driver.family()) == 1 + DAEMONS
    driver.kill()
    assert driver.wait(WorkerExitedEvent).exit_code == -signal.SIGKILL
    driver.wait(RoundDead)
    assert driver.family() == []


def test_a_round_is_not_dead_while_a_daemon_lives(driver: Driver) -> None:
    """Daemons left by workers that have ended still belong to the round."""
    driver.start(DAEMON)
    assert driver.wait(WorkerExitedEvent).exit_code == 0
    assert len(driver.family()) == DAEMONS
    assert not any(isinstance(event, RoundDead) for event in driver.unread)
    _is_gone(driver)


def test_stopped_processes_die_too(driver: Driver) -> None:
    """SIGKILL does not wait for SIGCONT, and neither do we."""
    driver.start(STAY)
    for pid in driver.family():
        os.kill(pid, signal.SIGSTOP)
    _is_gone(driver)


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
    _is_gone(driver)


def _stop_and_kill(driver: Driver) -> None:
    for pid in [driver.process.pid, *driver.family()]:
        os.kill(pid, signal.SIGSTOP)
    driver.process.kill()


def _close(driver: Driver) -> None:
    assert driver.process.stdin is not None
    driver.process.stdin.close()


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda driver: driver.process.kill(), id="killed"),
        pytest.param(_stop_and_kill, id="stopped-with-its-workers-and-killed"),
        pytest.param(_close, id="closes-its-end-without-a-shutdown"),
    ],
)
def test_nothing_is_left_after_the_agents_end(
    driver: Driver, end: Callable[[Driver], None]
) -> None:
    """Zygote, workers and daemons are gone, also if they were stopped."""
    driver.start(STAY)
    end(driver)
    driver.until(lambda: not driver.alive(), "an empty house", 5.0 * patience())


def test_workers_die_with_a_killed_zygote(driver: Driver) -> None:
    """The parent-death signal reaches the workers, and the agent hears of the zygote's end."""
    (worker,) = [driver.start(STAY).pid]
    os.kill(driver.zygote(), signal.SIGKILL)
    assert driver.wait(ZygoteExited).exit_code == -signal.SIGKILL
    driver.until(lambda: worker not in driver.alive(), "the worker's death", 10.0 * patience())
    for pid in driver.family():  # this agent does not call kill_orphans; the next test does
        os.kill(pid, signal.SIGKILL)


ORPHANS = """
import os, select, signal, sys, time
from holdfast.page import Page
from holdfast_agent.zygote.handle import Zygote
from holdfast_agent.zygote.protocol import Ready, Spawn, SpawnRank, ZygoteExited
from holdfast_agent.zygote.settings import ZygoteSettings
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
zygote.send(Spawn(round=0, ranks=(
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
    done = plain_python("-c", ORPHANS, script, str(driver.folder / "orphans.out"), check=False)
    found, spared = done.stdout.split()
    assert int(found) >= DAEMONS, done.stderr
    assert spared == "True"


def test_shutdown_leaves_nothing_and_says_so(driver: Driver) -> None:
    """Exits are reported, then the zygote's own."""
    driver.start(STAY)
    driver.send(EndZygote())
    assert driver.wait(WorkerExitedEvent).exit_code == -signal.SIGKILL
    driver.wait(RoundDead)
    assert driver.wait(ZygoteExited).exit_code == 0
    assert driver.family() == []


# --- signals, grace, order -------------------------------------------------------------------

POLITE = """
    import signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(21))
    print("up", flush=True)
    while True:
        time.sleep(0.05)  # a signal just before one long sleep began would wait for its end
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
    assert driver.wait(WorkerExitedEvent).exit_code == 21
    driver.wait(RoundDead)
    assert time.monotonic() - begun < 18.0


def test_a_deaf_worker_is_killed_after_its_grace(driver: Driver) -> None:
    """SIGKILL follows when the grace is over, not before."""
    driver.start(DEAF)
    begun = time.monotonic()
    driver.kill(signal.SIGTERM, grace_s=0.6)
    assert driver.wait(WorkerExitedEvent).exit_code == -signal.SIGKILL
    assert 0.6 <= time.monotonic() - begun < 0.6 + 5.0 * patience()
    driver.wait(RoundDead)


def test_a_kill_cuts_a_grace_short(driver: Driver) -> None:
    """Whoever has no time any more says SIGKILL."""
    driver.start(DEAF)
    begun = time.monotonic()
    driver.kill(signal.SIGTERM, grace_s=60.0)
    driver.kill(signal.SIGKILL)
    driver.wait(RoundDead)
    assert time.monotonic() - begun < 30.0


def test_a_grace_is_never_lengthened(driver: Driver) -> None:
    """The earliest deadline holds: a drain that becomes a stop does not start anew."""
    driver.start(DEAF)
    begun = time.monotonic()
    driver.kill(signal.SIGTERM, grace_s=0.5)
    driver.kill(signal.SIGTERM, grace_s=60.0)
    driver.wait(RoundDead)
    assert time.monotonic() - begun < 30.0


SAVES_WITH_HELPERS = """
    import os, signal, subprocess, sys, time
    helper = subprocess.Popen(["sleep", "600"])
    def save(*_):
        time.sleep(0.3)
        print("saved with", "a living" if helper.poll() is None else "no", "helper", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    print("up", flush=True)
    while True:
        time.sleep(0.05)
"""


def test_a_workers_helpers_live_while_it_saves(driver: Driver) -> None:
    """The signal is for the worker alone: data loaders of its process group die after it."""
    driver.start(SAVES_WITH_HELPERS)
    driver.kill(signal.SIGTERM, grace_s=20.0)
    assert driver.wait(WorkerExitedEvent).exit_code == 0
    driver.wait(RoundDead)  # the helper got the signal once the worker was gone
    assert "saved with a living helper" in (driver.folder / "stdout0").read_text()


def test_a_program_in_a_shell_hears_of_the_end_too(driver: Driver) -> None:
    """The shell is the worker and goes at once; what it leaves behind gets the signal then."""
    script = driver.script(SAVES_WITH_HELPERS)
    command = f"cd /; {sys.executable} -u {script}; echo after"
    rank = driver.rank(argv=("sh", "-c", command), mode=ScriptMode.BINARY)
    driver.spawn(rank)
    out = driver.folder / "stdout0"
    driver.until(lambda: out.exists() and "up" in out.read_text(), "the script")
    driver.kill(signal.SIGTERM, grace_s=20.0)
    driver.wait(RoundDead)
    assert "saved with a living helper" in out.read_text()


UPLOADER = """
    import subprocess, sys
    subprocess.Popen(["sleep", "601"], start_new_session=True)
    subprocess.Popen(["sleep", "0.05"], start_new_session=True)
    sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_script_leaves_behind_after_success_is_named_when_it_is_ended(
    driver: Driver, sig: signal.Signals
) -> None:
    """Pid and command, on the agent's stderr: it may be an upload; what ends by itself is not."""
    driver.spawn(driver.rank(argv=(driver.script(UPLOADER), "0")))
    assert driver.wait(WorkerExitedEvent).exit_code == 0
    (pid,) = [pid for pid in driver.family() if process_tree.command_line(pid) == "sleep 601"]
    driver.kill(sig, grace_s=5.0)
    driver.wait(RoundDead)
    log = (driver.folder / "agent.err").read_text()
    expected = f"process {pid} (sleep 601) was left behind by a script that succeeded: {sig.name}"
    assert log.count("left behind") == 1
    assert expected in log


def test_what_a_failed_script_leaves_behind_is_no_news(driver: Driver) -> None:
    """A failure's helpers go with it, as always."""
    driver.spawn(driver.rank(argv=(driver.script(UPLOADER), "3")))
    assert driver.wait(WorkerExitedEvent).exit_code == 3
    driver.kill()
    driver.wait(RoundDead)
    assert "left behind" not in (driver.folder / "agent.err").read_text()


def test_a_command_is_shown_on_one_short_line() -> None:
    """Neither newlines nor a thousand arguments reach the log; a process that is gone has none."""
    argument = "a\nb" + "c" * 1000
    command = [sys.executable, "-c", "import time; time.sleep(600)", argument]
    with subprocess.Popen(command) as process:
        try:
            deadline = time.monotonic() + 20
            # exec sets it at its very end
            while not (shown := process_tree.command_line(process.pid)):
                assert time.monotonic() < deadline
                time.sleep(0.005)
        finally:
            process.kill()
    assert "sleep(600) a bccc" in shown
    assert len(shown) <= 200
    assert shown.isprintable()
    assert process_tree.command_line(2**22 + 1) == ""


def test_a_term_right_after_the_fork_is_not_lost(driver: Driver) -> None:
    """The signal waits until the worker has python's own handlers, and then ends it."""
    for _ in range(20):
        number = driver.round = driver.round + 1
        driver.page.reset(0, number)
        rank = driver.rank(argv=(driver.script("import time; time.sleep(600)"),))
        driver.send(Spawn(round=number, ranks=(rank,)))
        driver.send(KillRound(number, signal.SIGTERM, 20.0))
        exited = driver.wait(WorkerExitedEvent, round=number)
        assert exited.exit_code == -signal.SIGTERM
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
    driver.send(Spawn(round=2, ranks=(rank,)))
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
    exits = [driver.wait(WorkerExitedEvent) for _ in ranks]
    assert {event.local_rank: event.exit_code for event in exits} == {0: 10, 1: 11}
    driver.wait(RoundDead)


def test_a_round_with_a_huge_environment_starts(driver: Driver) -> None:
    """A description too long for a datagram travels all the same."""
    ended = driver.run(
        "import os; print(len(os.environ['BIG'] + os.environ['BIGGER']))",
        env={"BIG": "x" * 100_000, "BIGGER": "y" * 100_000},
    )
    assert ended.out == "200000\n"


def test_the_kill_is_fast(driver: Driver) -> None:
    """From the command to RoundDead takes milliseconds for small processes.

    The median of 10 beside that of their starts: a neighbour makes both longer.
    """
    took, starts = [], []
    for _ in range(10):
        begun = time.monotonic()
        driver.start("print('up', flush=True)\nimport time; time.sleep(600)")
        starts.append(time.monotonic() - begun)
        begun = time.monotonic()
        driver.kill()
        driver.wait(RoundDead, round=driver.round)
        took.append(time.monotonic() - begun)
    assert sorted(took)[5] < max(0.1, 2 * sorted(starts)[5]), (took, starts)


@pytest.mark.parametrize("files", [True, False], ids=["children-files", "stat-scan"])
def test_children_are_found_either_way(monkeypatch: pytest.MonkeyPatch, *, files: bool) -> None:
    """With the kernel's list of children, and without it."""
    monkeypatch.setattr(process_tree, "_CHILDREN_FILES", files)
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"]) as shell:
        try:
            deadline = time.monotonic() + 5
            while not (below := process_tree.children(shell.pid)) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert shell.pid in process_tree.children(os.getpid())
            assert process_tree.descendants([shell.pid]) == [shell.pid, *below]
            assert len(below) == 1
        finally:
            process_tree.kill_below(shell.pid)
            shell.kill()
    assert process_tree.children(shell.pid) == []
