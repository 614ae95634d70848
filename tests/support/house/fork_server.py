"""The process that has imported what programs of tests need, and forks them: `house.forks` asks it.

`python fork_server.py DESCRIPTOR MODULE…`. Belongs here: what makes a fork what a start would have
made. Standard library only, beside the modules that it is told to import.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

REQUEST_BYTES = 2**20


def _serve(channel: socket.socket) -> None:
    """Fork what is asked for, and tell of each end, until who asks has gone."""
    selector = selectors.DefaultSelector()
    selector.register(channel, selectors.EVENT_READ, 0)
    while True:
        for key, _ in selector.select():
            if key.data:
                selector.unregister(key.fd)
                os.close(key.fd)
                _, status, usage = os.wait4(key.data, 0)
                cpu = usage.ru_utime + usage.ru_stime
                told = {"code": os.waitstatus_to_exitcode(status), "cpu": cpu}
                channel.send(json.dumps({"ended": key.data, **told}).encode())
                continue
            words, files, _, _ = socket.recv_fds(channel, REQUEST_BYTES, 3)
            if not words:
                return
            child = os.fork()
            if not child:
                selector.close()
                channel.close()
                _begin(json.loads(words), files)
            for one in files:
                os.close(one)
            selector.register(os.pidfd_open(child), selectors.EVENT_READ, child)
            channel.send(json.dumps({"started": child}).encode())


def _begin(request: Mapping[str, Any], files: Sequence[int]) -> NoReturn:
    if "serve" not in request:
        become(request, files)
    die_with(os.getppid())
    (kept,) = files
    os.closerange(3, kept)
    os.closerange(kept + 1, 2**20)
    with contextlib.suppress(ConnectionError):  # its asker was killed
        _serve(socket.socket(fileno=kept))
    os._exit(0)


def become(
    request: Mapping[str, Any], files: Sequence[int], passed: Mapping[int, int] | None = None
) -> NoReturn:
    """Be the program that is asked for, in a process forked for it.

    Args:
        request: As `start` makes it.
        files: Its standard streams.
        passed: Further open files, by the number that each is to have.
    """
    code = 1
    try:
        _prepare(request, files, passed or {})
        _run(request["args"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException as error:  # noqa: BLE001 - as an interpreter does
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _prepare(request: Mapping[str, Any], files: Sequence[int], passed: Mapping[int, int]) -> None:
    die_with(os.getppid())
    for number, one in enumerate(files):
        os.dup2(one, number)
    _leave_open(passed)
    _open_streams()
    if request["new_session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None  # as TMPDIR says now
    sys.argv = list(request["args"])
    more = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    here = "" if sys.argv[0] in ("-c", "-m") else str(Path(sys.argv[0]).parent)
    sys.path[:] = [here, *(one for one in more if one not in sys.path), *sys.path[1:]]
    if os.environ.get("PYTHONWARNINGS") == "ignore":
        warnings.simplefilter("ignore")
    random.seed()


def _leave_open(passed: Mapping[int, int]) -> None:
    """Close all but the standard streams, and give what is passed on its numbers."""
    above = max([*passed, *passed.values(), 2]) + 1
    moved = [(number, above + place) for place, number in enumerate(passed)]
    for number, place in moved:
        os.dup2(passed[number], place)
    os.closerange(3, above)
    os.closerange(above + len(moved), 2**20)
    for number, place in moved:
        os.dup2(place, number)
    os.closerange(above, above + len(moved))


def _open_streams() -> None:
    """Make `sys.stdin` and the others anew, as an interpreter does: they close no file."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        mode, buffering = "w" if number else "r", 1 if number == 2 else -1
        made = open(number, mode, buffering, closefd=False)  # noqa: SIM115
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)


def _run(args: Sequence[str]) -> None:
    if args[0] == "-m":
        sys.argv = [args[1], *args[2:]]
        sys.modules.pop(args[1], None)  # runpy warns of one that is there already
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
        return
    if args[0] != "-c":
        runpy.run_path(args[0], run_name="__main__")
        return
    sys.argv = ["-c", *args[2:]]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(compile(args[1], "<string>", "exec"), vars(main))  # noqa: S102 - a test's own


def die_with(parent: int) -> None:
    """Ask for SIGKILL at the parent's death."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def _main() -> None:
    # It ends when the test process has gone, since nobody else holds the channel's other end. A
    # signal at the parent's death would come at the end of the thread that started it.
    channel, *modules = sys.argv[1:]
    gc.disable()  # it takes a seventh of the imports to find nothing
    for name in modules:
        importlib.import_module(name)
    if "torch" in modules:
        import torch

        # torch's pool of threads is made anew after a fork by who first asks for it: two threads of
        # autograd at once find none ("Invalid thread pool!"). So it is the main thread, in each.
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
    gc.freeze()  # forks share what they do not write
    gc.enable()
    _serve(socket.socket(fileno=int(channel)))


if __name__ == "__main__":
    _main()
