"""Facts about the run for a reader of figures: machine, versions, date. No measurements."""

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]


def about(plan: str, left_out: Any) -> dict[str, Any]:
    """Return the facts, with what was left out of the plan and why."""
    return {
        "plan": plan,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "holdfast": metadata.version("holdfast"),
        "dlrover": "0.6.1",
        "left_out": left_out,
    }


def sentence(facts: Mapping[str, Any]) -> str:
    """Return what a page says of a run's date, code and machine."""
    return (
        "{date}, commit {commit}: {cores} × {cpu}, {memory_gib} GiB, Linux {kernel}, "
        "Python {python}, torch {torch}."
    ).format_map(facts)


def _commit() -> str:
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    return said.stdout.strip() or "unknown"


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
