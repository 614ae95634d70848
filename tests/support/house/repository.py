"""The repository as the tests of the house see it: its root and the files that belong to it."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {
    "holdfast": ROOT / "worker_agent" / "holdfast",
    "holdfast_agent": ROOT / "worker_agent" / "holdfast_agent",
    "holdfast_cli": ROOT / "cli" / "holdfast_cli",
    "holdfast_master": ROOT / "master" / "holdfast_master",
    "holdfast_operator": ROOT / "operator" / "holdfast_operator",
    "holdfast_wire": ROOT / "proto" / "holdfast_wire",
}


@cache
def tracked_files() -> tuple[Path, ...]:
    """Lists the files that git tracks, or is about to: new ones that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return tuple(sorted({path for path in paths if path.is_file()}))


def is_generated(path: Path) -> bool:
    """Tells whether `make proto` wrote this file."""
    twins = PACKAGES["holdfast_wire"] / "messages"
    return path.stem.endswith(("_pb2", "_pb2_grpc")) or path.is_relative_to(twins)


def python_files() -> list[Path]:
    """Lists the Python files that people write."""
    return [path for path in tracked_files() if path.suffix == ".py" and not is_generated(path)]
