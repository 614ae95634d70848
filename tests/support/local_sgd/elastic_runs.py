"""Scenarios of elastic replicas (`elastic_jobs`), run by a test in a process of their own.

Belongs here: what every scenario must show. Does not belong here: what one of them shows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from typing import Any

from house import forks
from house.patience import patience
from local_sgd import elastic_jobs

Lines = list[dict[str, Any]]


def start(**scenario: Any) -> subprocess.CompletedProcess[str]:
    """Run a scenario to its end, good or bad."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    if scenario.get("kind") != "megatron":  # that changes torch before its import
        words = [elastic_jobs.__file__, json.dumps(scenario)]
        return forks.run(words, timeout=280, env=environment)
    return subprocess.run(
        [sys.executable, elastic_jobs.__file__, json.dumps(scenario)],
        capture_output=True,
        text=True,
        timeout=280 * patience(),
        check=False,
        env=environment,
    )


def run(**scenario: Any) -> dict[str, Any]:
    """Return what the control plane did, and what each rank wrote down."""
    ended = start(**scenario)
    assert ended.returncode == 0, f"{scenario}: {ended.stderr[-5000:]}"
    told: dict[str, Any] = json.loads(ended.stdout)
    return told


def steps_of(lines: Lines) -> Lines:
    """Return a rank's steps."""
    return [line for line in lines if "own" in line]


def check_kept(
    told: dict[str, Any], why: str, least: int = 10, place: str = "place", *, by_time: bool = False
) -> None:
    """Hold all ranks to one process and all steps in a row, and replicas to equal anchors.

    Replicas of one round are at one step, place in the data and learning rate, whatever befell
    them.

    Args:
        told: What `run` has returned.
        why: For a message.
        least: Rounds that there were.
        place: The field of a line that has the place in the data.
        by_time: Each replica counts its own steps.
    """
    digests: dict[tuple[int, str], set[str]] = defaultdict(set)
    places: dict[int, dict[str, tuple[int, int, float]]] = defaultdict(dict)
    for name, lines in told["ranks"].items():
        steps = steps_of(lines)
        assert [line["own"] for line in steps] == list(range(1, len(steps) + 1)), why
        assert len({line["pid"] for line in steps}) <= 1, why
        for line in steps:
            if "round" in line:
                digests[line["round"], name.split()[1]].add(line["digest"])
                places[line["round"]][name] = line["step"], line[place], round(line["lr"], 9)
    assert len(digests) >= least
    assert {at: len(found) for at, found in digests.items() if len(found) > 1} == {}, why
    apart = {at: one for at, one in places.items() if len(set(one.values())) > 1}
    assert by_time or apart == {}, why
