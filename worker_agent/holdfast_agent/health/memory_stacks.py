"""Python's stacks of a process, read from its memory by py-spy.

Belongs here: the call of the program, its answer as text. Does not belong here: the worker server,
which has better stacks while the GIL is free (`worker_server`).

The process is not stopped and gets no signal: a call of C that a signal would interrupt sleeps on.
It may be stopped, hold the GIL or be in the kernel. What it changes meanwhile may be missing from
its stacks. The kernel asks for the right to trace it: the same user, and no Yama or seccomp
profile that forbids it (`zygote.process_tree.allow_reading`).
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from typing import Any, Final

PROGRAM: Final = "py-spy"
HOLDS_THE_GIL: Final = "holds the GIL"
"""In the head of a thread."""
_MOST_TEXT: Final = 300
"""Characters of a name, or of an error."""


class UnreadableError(Exception):
    """No stacks could be read: the text says why, and what helps."""


async def read(pid: int, seconds: float) -> str:
    """Return the stacks of all threads as faulthandler writes them, the main thread last.

    Raises:
        UnreadableError: They could not be read within `seconds`.
    """
    program = shutil.which(PROGRAM) or shutil.which(PROGRAM, path=sysconfig.get_path("scripts"))
    if program is None:
        raise UnreadableError(f"reading it from outside needs {PROGRAM}: pip install {PROGRAM}")
    return _text(await asyncio.to_thread(_run, program, pid, max(0.0, seconds)), pid)


def _run(program: str, pid: int, seconds: float) -> bytes:
    """Return what the program writes. The agent may reap it first, so its status says nothing."""
    command = (program, "dump", "--nonblocking", "--json", "--pid", str(pid))
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UnreadableError(f"{PROGRAM} took longer than {seconds:.1f} s") from error
    except OSError as error:
        raise UnreadableError(f"{program}: {error}") from error
    if not done.stdout:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise UnreadableError(
            f"{PROGRAM} says: {said[:_MOST_TEXT]} (it needs what ptrace needs: the same user, "
            "and a seccomp profile that allows process_vm_readv)"
        )
    return done.stdout


def _text(answer: bytes, pid: int) -> str:
    """Return the stacks in faulthandler's form; the names come from a process of the user."""
    try:
        threads = sorted(json.loads(answer), key=lambda one: one["os_thread_id"] == pid)
        return "\n".join([line for thread in threads for line in _thread(thread)])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UnreadableError(f"{PROGRAM} gave no stacks: {error!r:.{_MOST_TEXT}}") from error


def _thread(thread: dict[str, Any]) -> Iterator[str]:
    held = f", {HOLDS_THE_GIL}" if thread["owns_gil"] else ""
    yield f"Thread {int(thread['os_thread_id'])}{held} (most recent call first):"
    for frame in thread["frames"]:
        file, name = _line(frame["filename"]), _line(frame["name"])
        yield f'  File "{file}", line {int(frame["line"])} in {name}'
    yield ""


def _line(text: object) -> str:
    """Return a name without line breaks, which would make up frames."""
    return "".join([one if one.isprintable() else "?" for one in str(text)[:_MOST_TEXT]])
