"""Faults that the long run on real processes looks for; each is planted and found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import soak
from bench.harness import machine
from bench.soak import LEAST, SLACK, Descriptors, kept

LEAKS = "import os, sys\nfor line in sys.stdin: os.open('/dev/null', 0); print(flush=True)"
KEEPS = (
    "import os, sys\nfor line in sys.stdin: os.close(os.open('/dev/null', 0)); print(flush=True)"
)


@pytest.mark.parametrize(
    ("counts", "grew"),
    [
        ([20] * 100, False),
        ([20, 60, 25, 80] * 25, False),
        ([5] + [40] * 99, False),
        ([20 + at // 2 for at in range(100)], True),
        ([20, 60] * 50 + [40, 80] * 50, True),
        ([20] * (LEAST // 2 - 1) + [90] * (LEAST // 2), False),
    ],
    ids=["steady", "up and down", "a beginning", "a leak", "a leak under noise", "too short"],
)
def test_only_quiet_moments_tell_of_a_leak(counts: Sequence[int], *, grew: bool) -> None:
    """Connections come and go; what stays counts."""
    assert kept("runner", 1, counts).grew is grew


@pytest.mark.parametrize(("script", "grew"), [(LEAKS, True), (KEEPS, False)])
def test_a_process_that_gathers_descriptors_is_found(script: str, *, grew: bool) -> None:
    """One a turn, and none."""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        descriptors = Descriptors(process.pid)
        for _ in range(LEAST + 2 * SLACK):
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()
            descriptors.count()
        process.stdin.close()
    (found,) = descriptors.kept()
    assert (found.what, found.grew) == ("runner", grew), found.text()


def test_what_is_left_is_found_before_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process and its port, and a file that only the sweep would remove."""
    monkeypatch.setattr(soak, "SETTLE_SECONDS", 0.0)
    soak.temporary(tmp_path).mkdir()
    before = soak.things(tmp_path)
    listens = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", listens],
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (soak.temporary(tmp_path) / "holdfast-a").mkdir()
        now = soak.left_behind(before, tmp_path, soak.ENDED_AT_ONCE)
        whole = soak.left_behind(before, tmp_path)
        process.communicate(b"\n")
    assert now["processes"] == [process.pid]
    assert len(now["ports"]) == 1
    assert set(whole) >= {"processes", "ports", "temporary"}
    assert "processes" not in soak.left_behind(before, tmp_path)


def test_the_page_counts_the_faults_of_all_jobs() -> None:
    """By their kinds; whatever a job left is listed by its number."""
    job = {"faults": 3, "kinds": {"kill": 2, "freeze": 1}, "verdict": "as in peace", "option": "x"}
    jobs = [job | {"unswept": {"shared_memory": ["a"]}, "descriptors": []}] * 2
    text = soak.page(jobs, 1.6, machine.about("soak", []))
    assert "**6 faults in a row over 2 jobs in 2 minutes" in text
    assert "| kill | 4 |" in text
    assert "- job 2: 1 of shared memory" in text
