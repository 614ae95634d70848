"""A pytest plugin: no file of tests leaves a thread or a process behind.

What one test forgets, a later one stumbles over, on a busy machine or in the stack dump of a
failure. Belongs here: what is left in and below this process. Not: what jobs leave on the machine,
which is their own tests' subject.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from house import forks

SECONDS = 10.0
"""For what is ending already: gRPC ends its threads when it notices that their call is over."""


@pytest.fixture(autouse=True, scope="module")
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails the last test of a file that has left threads or child processes."""
    threads, processes = set(threading.enumerate()), set(_processes())
    yield
    deadline = time.monotonic() + SECONDS
    while left := _left(threads, processes):
        if time.monotonic() > deadline:
            pytest.fail(f"{request.node.nodeid} leaves behind: " + ", ".join(left), pytrace=False)
        time.sleep(0.02)


def _left(threads: set[threading.Thread], processes: set[psutil.Process]) -> list[str]:
    left = [thread.name for thread in set(threading.enumerate()) - threads if _ours(thread)]
    for process in set(_processes()) - processes:
        try:
            left.append(f"process {process.pid} {process.status()} {process.cmdline()}")
        except psutil.NoSuchProcess:
            continue
    return sorted(left)


def _ours(thread: threading.Thread) -> bool:
    # grpc.aio starts one poller for the whole process, with the first channel or server.
    return not thread.name.endswith("(_poll_wrapper)")


def _processes() -> list[psutil.Process]:
    found = psutil.Process().children(recursive=True)
    return [process for process in found if process.pid not in forks.kept()]
