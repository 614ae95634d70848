"""Facts about the run for a reader of figures: machine, versions, date. No measurements."""

import os
import platform
import subprocess
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from bench import ROOT

_WORDS = {
    "cpu": "{cores} × {cpu}",
    "memory_gib": "{memory_gib} GiB",
    "kernel": "Linux {kernel}",
    "python": "Python {python}",
    "torch": "torch {torch}",
}


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


def words(
    facts: Mapping[str, Any], *more: str, without: Collection[str] = (), plan: str = ""
) -> str:
    """Return a run's date, code and machine, then `more` about it; all of them formats."""
    parts = [text for name, text in _WORDS.items() if name not in without]
    text = f"{{date}}, commit {{commit}}{plan}: {', '.join([*parts, *more])}"
    return text.format_map(facts)


def sentence(facts: Mapping[str, Any]) -> str:
    """Return a page's sentence about a run's date, code and machine."""
    return f"{words(facts)}."


def _commit() -> str:
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
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
