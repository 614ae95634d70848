"""Temporary directories of agents that were killed go at a later agent's start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast_agent import temporary_directories

OWNER_PROGRAM = """
import sys
from holdfast_agent import temporary_directories
for kind in ("", "run_"):
    print(temporary_directories.make(kind), flush=True)
sys.stdin.read()
"""
Leave = Callable[[], list[Path]]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def owner(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], list[Path]]]:
    """A process that owns two directories, each with a file in it."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER_PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temporary)},
        text=True,
    )
    assert process.stdout is not None
    folders = [Path(process.stdout.readline().strip()) for _ in range(2)]
    for folder in folders:
        (folder / "round_1").mkdir()
        (folder / "round_1" / "key.pem").write_text("secret")
    with process:
        yield process, folders
        process.kill()


@pytest.fixture
def left(owner: tuple[subprocess.Popen[str], list[Path]]) -> list[Path]:
    """Two directories of a process that was killed."""
    process, folders = owner
    process.kill()
    process.wait(20)
    return folders


def _tell(folder: Path, **changes: object) -> None:
    path = folder / temporary_directories.OWNER
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _swept(folders: list[Path]) -> list[bool]:
    """Sweep; return which of the directories are gone."""
    temporary_directories.sweep()
    return [not folder.exists() for folder in folders]


def test_what_a_killed_process_left_is_removed(left: list[Path]) -> None:
    """SIGKILL leaves nobody to clean up."""
    assert all(folder.exists() for folder in left)
    assert _swept(left) == [True, True]


def test_what_a_living_process_owns_stays(owner: tuple[subprocess.Popen[str], list[Path]]) -> None:
    """Another agent of this user runs on this machine."""
    temporary_directories.sweep()
    assert all((folder / "round_1" / "key.pem").exists() for folder in owner[1])


def test_a_killed_process_that_nobody_waited_for_is_dead(
    owner: tuple[subprocess.Popen[str], list[Path]],
) -> None:
    """Its parent may never ask how it ended."""
    process, folders = owner
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert _swept(folders) == [True, True]


def test_a_process_id_that_is_used_again_saves_nothing(left: list[Path]) -> None:
    """The owner is who started then, not who has its number now."""
    _tell(left[0], pid=os.getpid())
    assert _swept(left) == [True, True]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"pids": "pid:[1]"}, id="another-namespace"),
        pytest.param({"boot": "another"}, id="another-machine"),
        pytest.param({"pid": "1"}, id="no-number"),
        pytest.param({"pid": True}, id="a-boolean"),
    ],
)
def test_an_owner_that_cannot_be_judged_counts_as_alive(
    left: list[Path], changes: dict[str, object]
) -> None:
    """Process ids of another container or machine on the same volume say nothing here."""
    _tell(left[0], **changes)
    assert _swept(left) == [False, True]


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff"])
def test_an_owner_file_that_cannot_be_read_is_left_alone(left: list[Path], text: str) -> None:
    """Nor does it end the sweep."""
    (left[0] / temporary_directories.OWNER).write_text(text)
    assert _swept(left) == [False, True]


def test_directories_without_an_owner_stay(temporary: Path, left: list[Path]) -> None:
    """Kept on purpose, being made, or made by somebody else."""
    (left[0] / temporary_directories.LOGS / "0").mkdir(parents=True)
    (left[0] / temporary_directories.LOGS / "0" / "error.json").write_text("{}")
    assert temporary_directories.keep_logs(left[0])
    (temporary / "holdfast_mine").mkdir()
    (temporary / "holdfast_file").write_text("x")
    temporary_directories.sweep()
    assert left[0].exists()
    assert (temporary / "holdfast_mine").exists()
    assert (temporary / "holdfast_file").exists()


def test_logs_in_which_nothing_was_written_are_not_kept(left: list[Path]) -> None:
    """Of a run that failed, or that a signal ended, only what somebody can read stays."""
    for folder in left[:2]:
        (folder / temporary_directories.LOGS / "0").mkdir(parents=True)
        (folder / "round_1" / "stacks_0.txt").touch()
    (left[0] / temporary_directories.LOGS / "0" / "error.json").write_text("{}")
    (left[1] / temporary_directories.LOGS / "0" / "stdout.log").touch()
    assert temporary_directories.keep_logs(left[0])
    assert not temporary_directories.keep_logs(left[1])
    assert [path.name for path in left[0].iterdir()] == [temporary_directories.LOGS]
    assert not left[1].exists()


def test_a_link_to_a_directory_is_not_followed(
    temporary: Path, tmp_path_factory: pytest.TempPathFactory, left: list[Path]
) -> None:
    """Neither as the directory nor in it."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "precious").write_text("x")
    (elsewhere / temporary_directories.OWNER).write_text(
        (left[0] / temporary_directories.OWNER).read_text()
    )
    (temporary / "holdfast_link").symlink_to(elsewhere)
    (left[0] / "link").symlink_to(elsewhere)
    temporary_directories.sweep()
    assert (elsewhere / "precious").exists()
    assert not left[0].exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_directory_of_another_user_is_left_alone(left: list[Path]) -> None:
    """Even where this one could remove it."""
    os.chown(left[0], 12345, 12345)
    assert _swept(left) == [False, True]


def test_what_the_ranks_of_a_killed_agent_printed_stays(left: list[Path]) -> None:
    """It may say why it was killed; everything else goes."""
    log = left[0] / temporary_directories.LOGS / "attempt_0" / "0" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("out of memory")
    (left[1] / temporary_directories.LOGS / "attempt_0").mkdir(parents=True)
    temporary_directories.sweep()
    assert [path.name for path in left[0].iterdir()] == [temporary_directories.LOGS]
    assert log.read_text() == "out of memory"
    assert not left[1].exists()
    temporary_directories.sweep()
    assert log.exists()


def test_sweeps_at_the_same_time_do_no_harm(temporary: Path, left: list[Path]) -> None:
    """Several agents of a node start together."""
    text = (left[0] / temporary_directories.OWNER).read_text()
    for number in range(50):
        (temporary / f"holdfast_{number}" / "a" / "b").mkdir(parents=True)
        (temporary / f"holdfast_{number}" / temporary_directories.OWNER).write_text(text)
    with ThreadPoolExecutor(4) as pool:
        for sweep in [pool.submit(temporary_directories.sweep) for _ in range(4)]:
            sweep.result(30)
    assert list(temporary.glob("holdfast_*")) == []


def test_no_descriptor_stays_open(temporary: Path) -> None:
    """The zygote must not inherit one."""
    before = set(Path("/proc/self/fd").iterdir())
    temporary_directories.make()
    temporary_directories.sweep()
    assert set(Path("/proc/self/fd").iterdir()) == before
    assert len(list(temporary.glob("holdfast_*"))) == 1
