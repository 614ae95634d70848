"""Trials: a fault is planted into a copy of the tree, and its tests must fail there.

The checkout is never changed: each trial has a copy of its own, with an environment that takes the
product from the copy and everything else from the checkout. Belongs here: one trial, its verdict.
Not: which faults there are (`catalogue`), many trials and their page (`plant`).
"""

from __future__ import annotations

import ast
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from planted_faults.catalogue import Fault, planted

LIMIT_SECONDS: Final = 600.0
"""Seconds for the tests of one fault; a test has its own limit, of 120 s."""
END_SECONDS: Final = 30.0
"""Seconds for pytest to end its processes after SIGTERM."""
_PARTS: Final = ("operator", "master", "worker_agent", "proto", "cli")
"""Folders on the path of an editable install: see `dev-mode-dirs` in pyproject.toml."""
_LEFT_OUT: Final = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", ".hypothesis", "build", "dist", "htmlcov"
)
_MARK: Final = "PLANTED_IN"
"""Variable by which the processes of a trial are found."""
_OTHER_REASONS: Final = ("ImportError", "ModuleNotFoundError", "NameError", "SyntaxError")
"""A test that fails with one of these has met a text that cannot run, and not the fault."""


@dataclass(frozen=True, slots=True)
class Caught:
    """Outcome of one test while a fault is planted."""

    test: str
    ok: bool
    """The test failed, by its own judgement."""
    said: str
    """First line of its failure, or the reason why this outcome proves nothing."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Case:
    """One test in a report of pytest's."""

    outcome: str
    said: str
    seconds: float


@contextlib.contextmanager
def copied(root: Path, environment: Path) -> Iterator[Path]:
    """Yield a copy of a tree, with `.venv` beside it that runs the copy; remove it afterwards.

    environment: an installed `.venv`, whose other packages the copy uses.
    """
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(root, copy, ignore=_LEFT_OUT)  # with times: byte code stays valid
        _make_environment(copy, environment)
        try:
            yield copy
        finally:
            _end_processes(copy)


def _make_environment(copy: Path, old: Path) -> None:
    """Make the copy's `.venv`: programs, and a path to the copy and to the old one's packages."""
    new = copy / ".venv"
    (packages,) = (old / "lib").glob("python3.*/site-packages")
    mine = new / packages.relative_to(old)
    mine.mkdir(parents=True)
    paths = [*(str(copy / part) for part in _PARTS), str(packages)]
    (mine / "planted.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")
    shutil.copy(old / "pyvenv.cfg", new)
    (new / "bin").mkdir()
    for program in (old / "bin").iterdir():
        _put_program(program, new / "bin" / program.name, bytes(old), bytes(new))


def _put_program(program: Path, place: Path, old: bytes, new: bytes) -> None:
    """Make a script run the new environment's interpreter; link to anything else."""
    with program.open("rb") as file:
        is_script = file.read(2) == b"#!"
    if program.is_symlink():
        place.symlink_to(program.readlink())
    elif is_script:
        place.write_bytes(program.read_bytes().replace(old, new))
        place.chmod(0o755)
    else:
        place.symlink_to(program)


def plant(fault: Fault, copy: Path) -> None:
    """Plant a fault into a copy; raises `ValueError` where that is impossible."""
    path = copy / fault.file
    text = planted(fault, path.read_text(encoding="utf-8"))
    if path.suffix == ".py":
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise ValueError(f"{fault.file}: with `wrong` it is no Python: {error}") from error
    path.write_text(text, encoding="utf-8")
    # Byte code knows the time of its source in whole seconds.
    os.utime(path, (time.time() + 10, time.time() + 10))


def run_tests(
    copy: Path, tests: Sequence[str], *options: str, limit_seconds: float = LIMIT_SECONDS
) -> tuple[str, dict[str, list[Case]]]:
    """Run tests in a copy; return why pytest had nothing to report, and cases by test."""
    report = copy.parent / "report.xml"
    command = [str(copy / ".venv/bin/python"), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not extended"]  # other values of a test may be for `make test-all` only
    command += [f"--junitxml={report}", f"--basetemp={copy.parent / 't'}", *options, *tests]
    own = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    path = f"{copy / '.venv/bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    with (copy.parent / "out").open("wb") as out:
        running = subprocess.Popen(
            command,
            cwd=copy,
            env=own | {_MARK: str(copy), "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        late = not _ended(running, limit_seconds)
    if not report.exists():
        said = (copy.parent / "out").read_text(errors="replace").strip().splitlines()[-3:]
        why = (
            f"no end in {limit_seconds:.0f} s"
            if late
            else f"pytest ended with {running.returncode}"
        )
        return f"{why}: {' / '.join(said)}", {}
    return "", cases(report.read_text(encoding="utf-8"), tests)


def _ended(running: subprocess.Popen[bytes], limit_seconds: float) -> bool:
    """Wait for pytest; return False if it took too long and was ended."""
    for seconds, sig in ((limit_seconds, signal.SIGTERM), (END_SECONDS, signal.SIGKILL)):
        try:
            running.wait(seconds)
        except subprocess.TimeoutExpired:
            running.send_signal(sig)
        else:
            return sig is signal.SIGTERM
    running.wait()
    return False


def cases(report: str, tests: Sequence[str]) -> dict[str, list[Case]]:
    """Return the cases of each test in a JUnit report; a test with parameters may have many."""
    found: dict[str, list[Case]] = {test: [] for test in tests}
    for element in ET.fromstring(report).iter("testcase"):  # noqa: S314 - as above
        case = _case(element)
        for test in tests:
            path, *inside = test.split("::", maxsplit=test.partition("[")[0].count("::"))
            module = path.removesuffix(".py").replace("/", ".")
            name = element.get("name", "")
            same = name == inside[-1] or name.startswith(f"{inside[-1]}[")
            if same and element.get("classname") == ".".join([module, *inside[:-1]]):
                found[test].append(case)
    return found


def _case(element: ET.Element) -> Case:
    seconds = float(element.get("time", "0"))
    for outcome in ("failure", "error", "skipped"):
        if (one := element.find(outcome)) is not None:
            said = (one.get("message") or "").strip().splitlines() or [""]
            return Case(outcome, said[0], seconds)
    return Case("passed", "", seconds)


def verdict(test: str, found: Sequence[Case]) -> Caught:
    """Judge one test: at least one of its cases failed, by itself."""
    seconds = sum(case.seconds for case in found)
    failed = [case for case in found if case.outcome == "failure"]
    for case in failed:
        if not case.said.startswith(_OTHER_REASONS):
            return Caught(test, True, case.said, seconds)
    if failed:
        return Caught(test, False, f"fails for another reason: {failed[0].said}", seconds)
    for case in found:
        if case.outcome != "passed":
            return Caught(test, False, f"{case.outcome}: {case.said}", seconds)
    return Caught(test, False, "passes with the fault" if found else "did not run", seconds)


def tried(fault: Fault, root: Path, environment: Path) -> list[Caught]:
    """Plant one fault into a copy of `root` and run its tests there; return their outcomes."""
    with copied(root, environment) as copy:
        try:
            plant(fault, copy)
        except (OSError, ValueError) as error:
            return [Caught(test, False, str(error), 0.0) for test in fault.caught_by]
        why, found = run_tests(copy, fault.caught_by)
        if why:
            return [Caught(test, False, why, 0.0) for test in fault.caught_by]
        return [verdict(test, found[test]) for test in fault.caught_by]


def _end_processes(copy: Path) -> None:
    """Kill what a trial has left: a fault may be that nobody ends a process."""
    mark = f"{_MARK}={copy}".encode()
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


def here() -> Path:
    """Return the environment that runs this program."""
    return Path(sys.prefix)
