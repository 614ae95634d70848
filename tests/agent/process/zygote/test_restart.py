"""A zygote that is started anew after the first one's end: its ranks find the same as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.plain_python import plain_python
from agents.zygote_driver import Driver

RESTART = """
import os, select, signal, sys
from holdfast.page import Page
from holdfast_agent.zygote.handle import Zygote
from holdfast_agent.zygote.preload import ZygoteError
from holdfast_agent.zygote.protocol import *
from holdfast_agent.zygote.settings import ZygoteSettings
page = Page.create(1)
zygote = Zygote()
os.environ["GIVEN"] = "before"
fork = sys.argv[2] != "cold"
zygote.start(ZygoteSettings(local_world_size=1, preload=(), fork=fork), page)
os.environ["GIVEN"] = "after"
def wait(kind):
    while True:
        select.select([zygote], [], [])
        for event in zygote.receive():
            if isinstance(event, kind):
                return event
def run(number):
    page.reset(0, number)
    zygote.send(Spawn(round=number, ranks=(SpawnRank(
        local_rank=0, slot=0, argv=tuple(sys.argv[1:]), stdout=f"{sys.argv[1]}.{number}"),)))
    forked = wait(WorkerStarted).forked
    wait(RoundDead)
    return forked
def told():
    ready = wait(Ready)
    return ready.reason
told(), run(1)
pids = {zygote.pid}
for number in (2, 3):
    os.kill(zygote.pid, signal.SIGKILL)
    wait(ZygoteExited)
    zygote.restart()
    pids.add(zygote.pid)
    print([told(), run(number)])
if len(pids) != 3:
    raise SystemExit(f"three zygotes had the pids {pids}")
try:
    zygote.restart()
except ZygoteError as error:
    print(error)
zygote.shutdown()
print(wait(ZygoteExited))
"""


def _restart(
    driver: Driver, code: str, argument: str = "argument", flags: tuple[str, ...] = ()
) -> tuple[list[str], list[str]]:
    """Return what is printed by the agent, and the output of the three rounds.

    argument: of the script; `cold`: its ranks are not forked.
    flags: of the agent's python.
    """
    script = driver.script(code)
    done = plain_python(*flags, "-c", RESTART, script, argument, check=False)
    assert done.returncode == 0, done.stderr
    said = [Path(f"{script}.{number}").read_text() for number in (1, 2, 3)]
    return done.stdout.splitlines(), said


def test_a_fresh_zygote_gives_ranks_what_the_first_one_gave(driver: Driver) -> None:
    """Forked, with the same environment, paths, signals and descriptors."""
    printed, said = _restart(
        driver,
        """
        import os, signal, sys
        handled = {n.name: str(signal.getsignal(n)) for n in signal.Signals}
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        given = {k: v for k, v in os.environ.items() if k != "HOLDFAST_ROUND"}
        given["HOLDFAST_PAGE"] = given["HOLDFAST_PAGE"].rpartition(":")[0]
        fds = sorted(map(int, os.listdir("/proc/self/fd")))
        print(sys.argv, sys.path, os.getcwd(), handled, mask, given, fds, sys.flags)
        """,
    )
    assert printed[:2] == ["['', True]"] * 2
    assert printed[2:] == [
        "only a zygote that has ended is started anew",
        "ZygoteExited(exit_code=0)",
    ]
    assert "'GIVEN': 'before'" in said[0]
    assert said[0] == said[1] == said[2]


def test_a_fresh_zygote_knows_that_the_script_cannot_be_forked(driver: Driver) -> None:
    """The first zygote has learned it; its successors need not."""
    printed, _ = _restart(driver, "import os; os.environ['OMP_NUM_THREADS'] = '3'")
    reason = "the script sets OMP_NUM_THREADS, which counts only at import"
    assert printed[:2] == [str([reason, False])] * 2


FLAGS = ("-OO", "-B", "-Xutf8", "-Xmine=3", "-Xfaulthandler", "-Werror::UserWarning")


@pytest.mark.parametrize("argument", ["forked", "cold"])
def test_ranks_have_the_flags_of_the_agents_python(driver: Driver, argument: str) -> None:
    """Forked or not, and from whichever zygote: `assert` is skipped in all rounds or in none."""
    code = "import sys; print(sys.flags, sorted(sys._xoptions.items()), sys.warnoptions)"
    own = plain_python(*FLAGS, "-c", code)
    _, said = _restart(driver, code, argument, FLAGS)
    assert "optimize=2" in own.stdout
    assert said == [own.stdout] * 3
