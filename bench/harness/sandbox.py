"""Runs one trial in a PID namespace of its own and ends all of it for certain.

Two reasons. Whatever a system leaves behind (daemons in sessions of their own, stopped processes,
orphans) dies with the namespace's first process, by the kernel. And DLRover's agent SIGKILLs every
orphan that it finds in /proc with torchrun's variables in its environment: outside a namespace
that includes the jobs of other people.

Run as a module, this is that first process: it starts the trial, reaps orphans and leaves when the
trial ends or when whoever started it is gone (end of file on standard input).
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import ROOT
from bench.harness import venvs


class SandboxError(RuntimeError):
    """No PID namespace can be made here."""


def enter(command: Sequence[str]) -> list[str]:
    """Return the command line that runs ``command`` in a fresh PID and mount namespace."""
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    first = [sys.executable, "-m", "bench.harness.sandbox", *command]
    return ["unshare", *as_root, "--pid", "--fork", "--kill-child", "--mount-proc", *first]


def check() -> None:
    """Raise `SandboxError` with the remedy unless a sandbox can be made."""
    if shutil.which("unshare") is None:
        raise SandboxError("the command 'unshare' is missing: install util-linux")
    tried = subprocess.Popen(
        enter([sys.executable, "-c", ""]),
        stdin=subprocess.PIPE,  # held open: its end would end the sandbox
        stderr=subprocess.PIPE,
        text=True,
    )
    with tried:
        code = tried.wait(timeout=30)
        said = tried.stderr.read().strip() if tried.stderr else ""
    if code != 0:
        raise SandboxError(
            f"unshare failed ({said or code}): run as root, or allow "
            "user namespaces (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces)"
        )


def run(
    command: Sequence[str], log: Path, limit_s: float, variables: Mapping[str, str] | None = None
) -> str:
    """Run a command in a sandbox, its output in `log`; return what went wrong, or an empty text."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            enter(command),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**venvs.environment(), **(variables or {})},
            cwd=ROOT,
        )
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"was ended after {limit_s:.0f} s"
    finally:
        # The namespace's first process leaves at this end of file, and all others with it.
        if process.stdin:
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
    said = log.read_text(errors="replace").strip().splitlines()
    return f"exited with {code}: {said[-1] if said else ''}" if code else ""


def trial(
    module: str,
    request: object,
    folder: Path,
    limit_s: float,
    variables: Mapping[str, str] | None = None,
    words: Sequence[str] = (),
) -> str:
    """Run `python -m module FOLDER/request.json` and more `words` in a sandbox; return as `run`.

    It finds the request as JSON, and what it prints is in FOLDER/trial.log.
    """
    path = folder / "request.json"
    path.write_text(json.dumps(request))
    command = [sys.executable, "-m", module, str(path), *words]
    return run(command, folder / "trial.log", limit_s, variables)


def _leave_with_starter() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


def main(command: Sequence[str]) -> int:
    """Be the namespace's first process: start ``command``, reap, answer its exit code."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_leave_with_starter, daemon=True).start()
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            return os.waitstatus_to_exitcode(status) & 0xFF


if __name__ == "__main__":
    # Not sys.exit: it would wait for nobody, but it would also run at-exit code for nothing.
    os._exit(main(sys.argv[1:]))
