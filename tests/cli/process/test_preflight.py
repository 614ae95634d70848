"""A command that cannot be started is refused by its field, before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast_cli.errors import BadInputError
from holdfast_cli.runner.start import read_file
from house.programs import holdfast
from jobs.local_job import elastic_job


def _job(directory: Path, command: list[str] | None = None, **container: Any) -> Path:
    job = elastic_job("odd", [])
    (main,) = job["spec"]["worker"]["template"]["spec"]["containers"]
    main.update({"command": command or ["holdfast-run", "--version-of-none"], **container})
    file = directory / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    return file


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Return a script that exists."""
    file = tmp_path / "train.py"
    file.touch()
    return file


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            ["holdfast-run", "--nprocpernode=2", "train.py"],
            ["'--nprocpernode=2'", "nproc-per-node"],
        ),
        (["holdfast-run", "--nproc-per-node=0", "train.py"], ["--nproc-per-node", "'0'"]),
        (["holdfast-run", "--max-restarts=many", "train.py"], ["--max-restarts", "'many'"]),
        (["holdfast-run", "--nnodes=3:1", "train.py"], ["--nnodes", "'3:1'"]),
        (["holdfast-run", "--start-method=thread", "train.py"], ["--start-method", "'thread'"]),
        (["holdfast-run", "--nproc-per-node=2"], ["no script to start"]),
        (["holdfast-run", "-m", "--no-python", "train"], ["--no-python and --module"]),
        (["holdfast-run", "missing.py"], ['"missing.py"', "no such file in"]),
        (["holdfast-run", "--no-python", "no-such-program"], ['"no-such-program"', "no program"]),
        (["nosuchcommand"], ["command[0]", '"nosuchcommand"', "no program"]),
        (["./train.py"], ["command[0]", '"./train.py"', "no program"]),
        (["", "a"], ["command[0]", '""', "not a program"]),
        (["echo", "x" * 200_000], ["word 1", "200001 bytes", "131072"]),
    ],
)
def test_a_command_that_cannot_start_is_refused(
    tmp_path: Path,
    script: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    words: list[str],
) -> None:
    """The error names the field, the word and what is wrong with it."""
    monkeypatch.chdir(script.parent)
    with pytest.raises(BadInputError) as caught:
        read_file(_job(tmp_path, command))
    text = str(caught.value)
    assert "spec.worker.template.spec.containers[0].command" in text
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({"workingDir": "/nonexistent/dir"}, ['.workingDir: "/nonexistent/dir" is no directory']),
        ({"workingDir": "beside"}, ['.workingDir: "beside" is no directory']),
        ({"env": [{"name": "BIG", "value": "x" * 200_000}]}, ['.env: "BIG"', "200005 bytes"]),
    ],
)
def test_surroundings_that_no_process_can_have_are_refused(
    tmp_path: Path, container: dict[str, Any], words: list[str]
) -> None:
    """A working directory that is not there, a variable that the kernel does not take."""
    with pytest.raises(BadInputError) as caught:
        read_file(_job(tmp_path, ["sleep", "1"], **container))
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    "command",
    [
        ["holdfast-run", "--nproc_per_node", "2", "train.py", "--nprocpernode=2"],
        ["holdfast-run", "--nproc-per-node=$(N)", "--max-restarts=$(N)", "$(SCRIPT)"],
        ["holdfast-run", "-m", "a.module.of.the.image", "--flag"],
        ["holdfast-run", "--no-python", "sleep", "1"],
        ["holdfast-run", "--redirect=3", "train.py"],
        ["$(PROGRAM)", "--x"],
        ["env", "A=b", "holdfast-run", "anything.py"],
    ],
)
def test_what_may_start_is_left_alone(
    tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """The script's own flags, references, modules, and shortened flags as argparse takes them."""
    monkeypatch.chdir(script.parent)
    assert read_file(_job(tmp_path, command)).name == "odd"


def test_the_command_line_says_it_with_code_2(tmp_path: Path) -> None:
    """One line, no traceback, nothing started."""
    environ = {"HOLDFAST_HOME": str(tmp_path / "home"), "PATH": "/usr/bin"}
    done = holdfast("run", str(_job(tmp_path, ["nosuchcommand"])), env=environ)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("holdfast: ")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "home").exists()
