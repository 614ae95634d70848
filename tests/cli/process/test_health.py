"""`holdfast health` of a job that has ended, on a terminal and elsewhere."""

from __future__ import annotations

import json
import os
import pty
from pathlib import Path

import pytest

from house.programs import holdfast
from jobs.ended_job import ended_job


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which the job "gpt" has ended."""
    ended_job(tmp_path)
    return {**os.environ, "HOLDFAST_HOME": str(tmp_path)}


def test_it_answers_for_a_job_that_has_ended(environ: dict[str, str]) -> None:
    """One line, and no traceback."""
    done = holdfast("health", "gpt", env=environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Nobody is judged: the job has ended, and no world runs\n"


def test_a_watch_ends_with_the_job_and_separates_its_screens(environ: dict[str, str]) -> None:
    """A pipe gets a line with the time before each screen; JSON is a line each."""
    done = holdfast("health", "gpt", "--watch", env=environ)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].startswith("--- ")
    line = holdfast("health", "gpt", "--watch", "-o", "json", env=environ).stdout
    assert len(line.splitlines()) == 1
    assert json.loads(line)["not_judged"].startswith("the job has ended")


def test_a_watch_on_a_terminal_clears_it(environ: dict[str, str]) -> None:
    """Each screen takes the place of the one before."""
    ours, theirs = pty.openpty()
    holdfast("health", "gpt", "--watch", env=environ, stdout=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 10_000)
    os.close(ours)
    assert shown.startswith(b"\x1b[2J")
    assert b"---" not in shown
