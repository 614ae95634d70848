"""Commands whose reader has gone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from house.programs import python

SAY = "from holdfast_cli.output import say\nsay('one')\nsay('two')\nraise SystemExit(7)"


def _into(output: int, words: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "HOLDFAST_HOME": str(home)}
    return python(*words, env=environ, stdin=subprocess.DEVNULL, stdout=output)


def _unread(words: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with a standard output that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    try:
        return _into(write, words, home)
    finally:
        os.close(write)


@pytest.mark.parametrize("output", ["text", "json"])
def test_an_answer_that_nobody_reads_ends_as_with_sigpipe(tmp_path: Path, output: str) -> None:
    """As `head` ends other programs: 141, without a word."""
    done = _unread(["-m", "holdfast_cli.main", "status", "-o", output], tmp_path)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_running_job_goes_on_unread(tmp_path: Path) -> None:
    """It says so once, where errors go, and ends with its own code."""
    done = _unread(["-c", SAY], tmp_path)
    assert done.returncode == 7
    assert done.stderr.count("the job goes on") == 1
    assert len(done.stderr.splitlines()) == 1


def test_a_running_job_goes_on_where_the_disk_behind_its_output_is_full() -> None:
    """Output that cannot be written is left out. The job ends with its own code."""
    with Path("/dev/full").open("w") as full:
        done = _into(full.fileno(), ["-c", SAY], Path())
    assert (done.returncode, done.stderr) == (7, "")
