"""Signals that a shell or the kernel sends to a run of tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

_ORPHANED = """
import os, signal, subprocess, sys
os.setsid()
heard = []
signal.signal(signal.SIGHUP, lambda *_: heard.append(True))
still = subprocess.Popen(["sleep", "60"])
os.kill(still.pid, signal.SIGSTOP)
join = f"import os; os.setpgid(0, {os.getpgid(0)}); os.execvp('sleep', ['sleep', '0.2'])"
words = [sys.executable, "-c", join]
apart = f"import os, subprocess; os.setpgid(0, 0); subprocess.run({words!r})"
subprocess.run([sys.executable, "-c", apart], check=True)
still.kill()
print(bool(heard))
"""


def test_the_kernel_hangs_up_a_group_with_a_stopped_process() -> None:
    """Why the tests have a handler: without one such a run ends in the middle."""
    command = [sys.executable, "-c", _ORPHANED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_a_hang_up_ends_no_run_of_tests_and_what_they_start() -> None:
    """This process goes on; a program that it starts has the default."""
    os.kill(os.getpid(), signal.SIGHUP)
    with subprocess.Popen(["sleep", "60"]) as started:
        started.send_signal(signal.SIGHUP)
        assert started.wait(10) == -signal.SIGHUP
