"""What a rank prints arrives, whatever its standard output is."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast_agent.zygote import files

LINES = "".join(f"{number:07d}\n" for number in range(100_000))


def _all_of(fd: int) -> str:
    with os.fdopen(fd, encoding="utf-8") as pipe:
        return pipe.read()


@pytest.mark.parametrize("is_blocking", [True, False])
def test_a_full_pipe_loses_nothing(is_blocking: bool) -> None:  # noqa: FBT001 - a parameter
    """A signal cuts a write short; a neighbour makes the pipe non-blocking: it takes nothing."""
    assert threading.current_thread() is threading.main_thread()
    reading, writing = os.pipe()
    os.set_blocking(writing, is_blocking)
    stream = files._unbuffered(writing, None)
    assert stream is not None
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(_all_of, reading)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        try:
            stream.write(LINES)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            os.close(writing)
        assert found.result(timeout=60) == LINES
