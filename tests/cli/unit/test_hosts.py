"""Workers of a job on other hosts: where each goes, and how it is started there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_cli.errors import BadInputError
from holdfast_cli.runner import remote
from holdfast_cli.runner.hosts import Hosts, read_hosts


def test_a_worker_goes_where_the_fewest_are() -> None:
    """In the order of the list; an excluded host only where there is no other."""
    hosts = Hosts(("a", "b", "c"), ("ssh", "{host}"))
    assert hosts.choose((), (), {}) == "a"
    assert hosts.choose(("a", "b"), (), {}) == "c"
    assert hosts.choose(("a", "b", "c", "a"), (), {}) == "b"
    assert hosts.choose(("b",), {"a"}, {}) == "c"
    assert hosts.choose((), {"a", "b", "c"}, {}) == "a"


def test_a_host_that_failed_comes_after_one_that_did_not() -> None:
    """A spare host is for this; without one, a host that failed is better than a crowded one."""
    hosts = Hosts(("a", "b", "c"), ("ssh", "{host}"))
    assert hosts.choose(("b",), (), {"a": 1.0}) == "c"
    assert hosts.choose(("b",), (), {"a": 1.0, "c": 2.0}) == "a"
    assert hosts.choose(("b", "c"), (), {"a": 1.0}) == "a"


def test_a_launcher_gets_the_host_and_the_program() -> None:
    """The name stands where the launcher has it."""
    hosts = read_hosts("n1, n2", "srun --nodelist={host} --comment='a b'", "10.0.0.1")
    assert hosts.names == ("n1", "n2")
    assert hosts.command("n2", ["train", "x"]) == (
        "srun",
        "--nodelist=n2",
        "--comment=a b",
        "train",
        "x",
    )


@pytest.mark.parametrize(
    ("names", "launcher", "words"),
    [
        (" , ", "ssh {host}", "names no host"),
        ("a,b,a", "ssh {host}", "a stands there twice"),
        ("a", "", "--hosts needs --launcher"),
        ("a", "", "or 'ssh -tt {host}'"),
        ("a", "ssh", "has no {host}"),
        ("a", "ssh '{host}", "close the quotes"),
    ],
)
def test_wrong_hosts_and_launchers_are_refused(names: str, launcher: str, words: str) -> None:
    """Each message has the flag, its value and the remedy."""
    with pytest.raises(BadInputError) as refused:
        read_hosts(names, launcher, "10.0.0.1")
    assert words in str(refused.value)


def test_a_program_starts_from_its_file(tmp_path: Path) -> None:
    """Directory, environment and command are the file's; what the launcher sets stays beside."""
    code = "import os; print(os.getcwd(), os.environ['A'], os.environ['B'])"
    file = tmp_path / "worker.json"
    given = {"cwd": str(tmp_path), "env": {"A": "1"}, "argv": [sys.executable, "-c", code]}
    file.write_text(json.dumps(given))
    command = [sys.executable, remote.__file__, str(file)]
    done = subprocess.run(command, env={"B": "2"}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(tmp_path), "1", "2"]


def test_a_file_that_the_host_does_not_see_is_named(tmp_path: Path) -> None:
    """Hosts that share no file system are the first mistake that people make."""
    command = [sys.executable, remote.__file__, str(tmp_path / "missing.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert "missing.json cannot be started" in done.stderr
