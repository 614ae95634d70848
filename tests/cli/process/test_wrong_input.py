"""Wrong words on the command line end with one sentence and exit code 2, never a traceback."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from holdfast_cli.errors import BadInputError
from holdfast_cli.main import main
from holdfast_cli.runner.start import RunOptions, run_job
from house.programs import holdfast
from jobs.local_job import elastic_job


def _job_file(directory: Path) -> Path:
    job = elastic_job("odd", [])
    (container,) = job["spec"]["worker"]["template"]["spec"]["containers"]
    container["command"] = ["sleep", "1"]
    file = directory / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    return file


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("scale loop 99999999999999999999", "99999999999999999999"),
        ("scale loop 0", "0"),
        ("drain loop 99999999999", "99999999999"),
        ("restart loop --node 99999999999", "99999999999"),
        ("stacks loop --node=-1", "-1"),
        ("events loop --limit -1", "-1"),
        ("events loop --limit 0", "0"),
        ("events loop --limit 99999999999999", "99999999999999"),
        ("events loop --after -5", "-5"),
    ],
)
def test_a_number_out_of_range_is_refused(words: str, value: str) -> None:
    """Before the job is looked for."""
    done = CliRunner().invoke(main, words.split())
    assert done.exit_code == 2, done.output
    assert f"{value} is not in the range" in done.output


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("root", ["/etc/passwd", "/proc/x"])
def test_a_home_that_cannot_be_one_is_refused(tmp_path: Path, root: str, *, detach: bool) -> None:
    """The variable, its value and the remedy."""
    with pytest.raises(BadInputError, match=f"HOLDFAST_HOME='{root}'.*may write"):
        run_job(_job_file(tmp_path), RunOptions(detach=detach), {"HOLDFAST_HOME": root})


def test_two_runs_of_one_name_cannot_start_at_once(tmp_path: Path) -> None:
    """The second one is refused even where the first has not written its record yet."""
    jobs = tmp_path / "home" / "jobs"
    jobs.mkdir(parents=True)
    with (jobs / ".odd.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BadInputError, match="'odd': a job of that name runs already"):
            run_job(_job_file(tmp_path), RunOptions(), {"HOLDFAST_HOME": str(tmp_path / "home")})
    assert not (jobs / "odd").exists()


def test_a_detached_job_that_cannot_start_ends_with_its_own_code(tmp_path: Path) -> None:
    """The command passes on the background part's error and its exit code."""
    jobs = tmp_path / "home" / "jobs"
    jobs.mkdir(parents=True)
    environ = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")}
    with (jobs / ".odd.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = holdfast("run", "--detach", str(_job_file(tmp_path)), env=environ)
    assert done.returncode == 2, done.stderr
    assert "metadata.name 'odd': a job of that name runs already" in done.stderr
    assert "log: " in done.stderr
    assert done.stderr.count("holdfast: ") == 1


def test_detach_and_logs_exclude_each_other(tmp_path: Path) -> None:
    """Nobody would see them; the error says where they are."""
    done = CliRunner().invoke(main, ["run", "--detach", "--logs", str(_job_file(tmp_path))])
    assert done.exit_code == 2
    assert "under logs/" in done.output


def test_a_detached_start_shows_the_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the terminal, not only in the background part's log."""
    monkeypatch.setattr("holdfast_cli.runner.start._detach", lambda *_: 0)
    file = _job_file(tmp_path)
    job = yaml.safe_load(file.read_text())
    job["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    file.write_text(yaml.safe_dump(job))
    environ = {"HOLDFAST_HOME": str(tmp_path / "home")}
    assert run_job(file, RunOptions(detach=True), environ) == 0
    assert "notice: spec.managedBy: not used on this machine" in capsys.readouterr().err
