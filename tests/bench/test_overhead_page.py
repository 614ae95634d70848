"""The page of the overhead benchmark judges what was measured."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
import time

import pytest

from bench.harness import machine
from bench.overhead.__main__ import overhead, page_of
from bench.overhead.measure import SdkCost, TrainingRun, cpu_seconds, sampling

ABOUT = machine.about("record", {})


def _results(call_ns: float, launcher_us: float) -> list[SdkCost | TrainingRun]:
    trials = [
        TrainingRun("torchrun", pair, 30_000.0, 1.0, 0.0, 2, 2.0 + pair) for pair in range(3)
    ] + [TrainingRun("holdfast", pair, 30_300.0, launcher_us, 90.0, 2, 2.0) for pair in range(3)]
    return [SdkCost("under an agent", call_ns, 1.0, 2.0, 3.0), *trials]


def _pair(trial: TrainingRun) -> tuple[TrainingRun, TrainingRun]:
    return TrainingRun("torchrun", 0, 20_000.0, 1.0, 0.0, 2, 2.0, sampling_us=0.0), trial


def test_what_runs_beside_the_ranks_and_the_calls_make_the_overhead() -> None:
    """A launcher's CPU time counts as if one rank had lost it, and so does a call's."""
    cost, *trials = _results(3000.0, 60.6)
    assert isinstance(cost, SdkCost)
    share = overhead([cost], [one for one in trials if isinstance(one, TrainingRun)])
    assert share == pytest.approx(60.6 / 30_300 + 3 / 30_300)


def test_samples_in_a_rank_are_part_of_the_overhead() -> None:
    """The threads that answer them take a CPU from the rank's own training."""
    trial = TrainingRun("holdfast", 0, 20_000.0, 60.0, 0.0, 2, 2.0, sampling_us=20.0)
    assert overhead([SdkCost("x", 0.0, 0.0, 0.0, 0.0)], [trial]) == pytest.approx(0.004)
    assert "| 0.10% (0.10%–0.10%) |" in page_of(
        ABOUT, [SdkCost("x", 1.0, 1.0, 1.0, 1.0), *_pair(trial)]
    )


def test_only_the_threads_of_the_worker_server_are_samples() -> None:
    """A rank's own work is training."""
    release = threading.Event()

    def work() -> None:
        ctypes.CDLL(None).prctl(15, b"pt_workerserver")  # PR_SET_NAME
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        done.set()
        release.wait(10)

    done = threading.Event()
    before, thread = sampling(os.getpid()), threading.Thread(target=work)
    thread.start()
    try:
        assert done.wait(30)
        assert before == 0.0
        assert 0.04 <= sampling(os.getpid()) <= 0.2
    finally:
        release.set()
        thread.join()


def test_the_cpu_time_of_a_process_is_finer_than_a_tick() -> None:
    """It is the clock that Python reads for itself; a process that is gone is an error."""
    before = time.process_time()
    assert before <= cpu_seconds(os.getpid()) <= time.process_time()
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    with pytest.raises(ProcessLookupError, match=f"process {gone.pid}"):
        cpu_seconds(gone.pid)


@pytest.mark.parametrize(
    ("call_ns", "launcher_us", "kept"), [(900, 60, 2), (2001, 60, 1), (900, 200, 1)]
)
def test_a_promise_is_kept_or_not(call_ns: float, launcher_us: float, kept: int) -> None:
    """Each of the two bars is judged by itself."""
    text = page_of(ABOUT, _results(call_ns, launcher_us))
    assert text.count("| yes |") == kept
    assert text.count("| **no** |") == 2 - kept
    assert "1.010 × torchrun's (1.010–1.010)" in text
    assert "load average 2.0–4.0" in text
