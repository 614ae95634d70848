"""Directories in which local jobs keep their files, and how they are found again."""

from __future__ import annotations

import dataclasses
import os
import stat
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from holdfast_cli import job_directory
from holdfast_cli.errors import JobNotFoundError
from holdfast_cli.main import main
from holdfast_cli.target import list_jobs
from jobs.ended_job import recorded_home


def test_state_root_prefers_our_variable_over_xdg_and_home() -> None:
    """HOLDFAST_HOME wins, then XDG_STATE_HOME, then the home directory."""
    assert job_directory.state_root({"HOLDFAST_HOME": "/a", "XDG_STATE_HOME": "/b"}) == Path("/a")
    assert job_directory.state_root({"XDG_STATE_HOME": "/b", "HOME": "/c"}) == Path("/b/holdfast")
    assert job_directory.state_root({"HOME": "/c"}) == Path("/c/.local/state/holdfast")


def test_unknown_job_is_refused_with_the_names_that_exist(tmp_path: Path) -> None:
    """A typo shows which jobs there are."""
    environ = {"HOLDFAST_HOME": str(tmp_path)}
    recorded_home(tmp_path)
    with pytest.raises(JobNotFoundError, match="known jobs: gpt"):
        job_directory.find_job(environ, "gtp")
    assert job_directory.find_job(environ, "gpt").record().name == "gpt"


def test_a_jobs_files_can_be_read_by_their_owner_only(tmp_path: Path) -> None:
    """Directories are 0700 and records 0600, whatever the umask is."""
    before = os.umask(0)
    try:
        job = recorded_home(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(job.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(job.record_file.stat().st_mode) == 0o600


def test_a_reused_pid_is_not_taken_for_the_runner() -> None:
    """A process with the recorded pid but another start time is somebody else."""
    started = job_directory.process_started(os.getpid())
    assert started is not None
    mine = job_directory.JobRecord("gpt", "u", os.getpid(), started, "/x.yaml")
    assert job_directory.is_running(mine)
    assert not job_directory.is_running(dataclasses.replace(mine, runner_started=started + 1))
    assert job_directory.process_started(2**22 + 1) is None


def test_a_damaged_record_blocks_nothing(tmp_path: Path) -> None:
    """The list of jobs shows it, and the other jobs."""
    environ = {"HOLDFAST_HOME": str(tmp_path)}
    recorded_home(tmp_path, "bad").record_file.write_text("{torn")
    recorded_home(tmp_path, "good")
    found = [(job.name, job.state) for job in list_jobs(environ)]
    assert found == [("bad", "damaged"), ("good", "ended")]


def test_a_shell_completes_the_names_of_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one whose record is damaged."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    for name in ("gpt", "gpt-2", "bert"):
        job_directory.job_home(os.environ, name).create()
        job_directory.job_home(os.environ, name).record_file.touch()
    shell = ShellComplete(main, {}, "holdfast", "_HOLDFAST_COMPLETE")
    for command in ("status", "watch", "stop"):
        found = shell.get_completions([command], "gp")
        assert [item.value for item in found] == ["gpt", "gpt-2"]
