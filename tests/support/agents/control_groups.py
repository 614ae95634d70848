"""Control groups for tests: files as a kernel shows them, and real groups with a limit."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest


def tree(root: Path, groups: str, mounts: str, files: Mapping[str, str]) -> Path:
    """Make what a kernel shows of control groups below `root`."""
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/self/mountinfo").write_text(mounts)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@contextlib.contextmanager
def limited(kinds: Sequence[tuple[Path, Mapping[str, str]]]) -> Iterator[Path]:
    """A real control group, of the first kind that this machine lets the test make.

    kinds: Mount of a controller, with the files that set its limit; those after the first are set
        where the kernel has them.
    """
    made = (_limited_group(mount, limits) for mount, limits in kinds)
    folder = next((one for one in made if one is not None), None)
    if folder is None:
        pytest.skip("no control group with such a limit can be made here")
    try:
        yield folder
    finally:
        _remove(folder)


def _limited_group(mount: Path, limits: Mapping[str, str]) -> Path | None:
    folder = mount / f"holdfast-test-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError:
        return None
    try:
        for place, (name, text) in enumerate(limits.items()):
            if place == 0 or (folder / name).exists():
                (folder / name).write_text(text)
    except OSError:
        folder.rmdir()
        return None
    return folder


def _remove(folder: Path) -> None:
    """Remove a group once its last process, which may be dying, has left it."""
    until = time.monotonic() + 20.0
    while True:
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return
