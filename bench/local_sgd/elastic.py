"""Elastic replicas measured: what a loss costs the others, 4 -> 2 -> 6, a kill each ten seconds.

Belongs here: the scenarios' settings, and figures from what the ranks wrote down. Does not belong
here: the scenarios (`local_sgd.elastic_jobs` of the tests).

Compute is a sleep. The control plane is the tests' own: it knows of a death when the process is
gone, and writes the next roster at once. A replacement is forked from a process that has imported
torch, so a real one takes some seconds more. `job_kills` has kills under `holdfast run`: of such
replicas, and of DDP.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from bench.harness import launch
from bench.harness.launch import SHARED_MEMORY
from bench.local_sgd import job_kills

INTERVAL: Final = 10
"""Steps between two rounds, where a replica is killed again and again."""
_PACE: Final = 0.1
"""Seconds of a step's computation, slept, under kills."""
Told = dict[str, Any]
Values = dict[str, float]


def run(**scenario: Any) -> Told:
    """Return the acts of the control plane, and the lines of each rank.

    Roster and logs lie in memory: no rank waits for a disk on which others write.

    Raises:
        WorldError: a rank failed; the text has the last words.
    """
    memory = {"TMPDIR": str(SHARED_MEMORY)} if SHARED_MEMORY.is_dir() else {}
    variables = launch.variables(
        "tests/support", PYTHONWARNINGS="ignore", GLOO_SOCKET_IFNAME="lo", **memory
    )
    command = [sys.executable, "-m", "local_sgd.elastic_jobs", json.dumps(scenario)]
    told: Told = json.loads(launch.said(command, f"{scenario}", env=variables))
    return told


def losses(seed: int, count: int = 52) -> Iterator[tuple[str, Values]]:
    """Measure syncs after a loss and after a join, beyond the median sync without a change.

    A sync takes from the last survivor's arrival until the last has left. A part of it may be the
    control plane's, until the roster without the lost one is there: a second row leaves that out.
    """
    told = run(
        scenario="losses", kind="ddp", count=count, pace=0.01, pause=0.15, seed=seed, limit=120.0
    )
    rounds = _rounds(told)
    took = {at: _span(rows) for at, rows in rounds.items()}
    epochs = {at: max(row["epoch"] for row in rows) for at, rows in rounds.items()}
    kinds = _kinds(told)
    calm = [took[at] for at in took if at - 1 in epochs and epochs[at] == epochs[at - 1]]
    usual = statistics.median(calm)
    changed = [at for at in took if at - 1 in epochs and epochs[at] != epochs[at - 1]]
    published = _published(told)
    for kind in ("loss", "join"):
        mine = [at for at in changed if kinds[epochs[at]] == kind]
        yield kind, _spread([took[at] - usual for at in mine])
        waits = [published[epochs[at]] - max(row["arrived"] for row in rounds[at]) for at in mine]
        rests = [took[at] - usual - max(0.0, wait) for at, wait in zip(mine, waits, strict=True)]
        yield f"{kind}, from the roster on", _spread(rests)
    yield "no change", _spread([one - usual for one in calm])


def grow(seed: int, rounds: int = 45) -> Iterator[tuple[str, Values]]:
    """Measure 4 -> 2 -> 6 beside replicas that nothing happens to, at the same rounds.

    Four static ones see as many samples. Six tell what it is worth to end with six: the noise of
    a mean falls with their number. 4 -> 2 -> 4 changes members as often and ends with four.
    """
    for way, scenario, replicas, back in (
        ("4-2-6", "shrink and grow", 4, 4),
        ("4-2-4", "shrink and grow", 4, 2),
        ("static", "static", 4, 0),
        ("static, 6 replicas", "static", 6, 0),
    ):
        told = run(
            scenario=scenario, rounds=rounds, seed=seed, limit=600.0, rows=32, replicas=replicas,
            back=back,
        )  # fmt: skip
        yield way, {**_kept(told), "validation loss": statistics.fmean(_ends(told))}


def kills(seed: int, seconds: float = 600.0, each: float = 10.0) -> Iterator[tuple[str, Values]]:
    """Measure the steps of four replicas of which one is killed again and again, and DDP's.

    Goodput: those steps as a share of what four replicas make that are always there, at the pace of
    rounds without a change in the same run. So other work on the machine does not count.
    """
    told = run(
        scenario="kills", seconds=seconds, each=each, pace=_PACE, interval=INTERVAL, seed=seed,
        limit=seconds + 300.0,
    )  # fmt: skip
    begin, end = (
        float(one.split()[0]) for one in told["done"] if one.split(" ", 1)[1].startswith("window")
    )
    steps = sum(begin < line["left"] <= end for _, lines in _steps(told) for line in lines)
    pace = statistics.median(_calm_rounds(told)) / INTERVAL
    yield (
        "kills",
        {
            **_kept(told),
            "seconds": end - begin,
            "kills": float(sum(" killed" in one for one in told["done"])),
            "steps/s of all replicas": steps / (end - begin),
            "seconds a step without a change": pace,
            "goodput": steps * pace / (4 * (end - begin)),
            "validation loss": statistics.fmean(_ends(told)),
        },
    )
    yield "kills, under a job master", job_kills.measure(seed, seconds, each, _PACE, replicas=True)
    yield "DDP, restarted", job_kills.measure(seed, seconds, each, _PACE)


def _calm_rounds(told: Told) -> Iterator[float]:
    """Give the seconds between two rounds of a rank in which no member came or went."""
    for _, lines in _steps(told):
        rounds = [line for line in lines if "round" in line]
        for one, other in itertools.pairwise(rounds):
            if one["epoch"] == other["epoch"] and other["own"] - one["own"] == INTERVAL:
                yield other["left"] - one["left"]


def _steps(told: Told) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for name, lines in told["ranks"].items():
        yield name, [line for line in lines if "own" in line]


def _rounds(told: Told) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for _, lines in _steps(told):
        for line in lines:
            if "round" in line:
                found[line["round"]].append(line)
    return dict(sorted(found.items()))


def _span(rows: list[dict[str, Any]]) -> float:
    """Return the seconds of a sync; DDP's is all in the optimizer's step."""
    return float(max(row["left"] for row in rows) - max(row["arrived"] for row in rows))


def _kinds(told: Told) -> dict[int, str]:
    """Return the change that each epoch is for."""
    found, kind = {}, "join"
    for one in told["done"]:
        _, what = one.split(" ", 1)
        if what.startswith("killed"):
            kind = "loss"
        if what.startswith("epoch"):
            found[int(what.split(":")[0].removeprefix("epoch "))] = kind
            kind = "join"
    return found


def _published(told: Told) -> dict[int, float]:
    """Return when each epoch's roster was there."""
    words = [one.split() for one in told["done"]]
    return {int(two[2].rstrip(":")): float(two[0]) for two in words if two[1] == "epoch"}


def _kept(told: Told) -> Values:
    """Count what must be 0: processes begun again, steps lost, rounds whose replicas differ."""
    digests: dict[tuple[int, str], set[str]] = defaultdict(set)
    lost, again = 0, 0
    for name, lines in _steps(told):
        lost += sum(line["own"] != at for at, line in enumerate(lines, start=1))
        again += max(0, len({line["pid"] for line in lines}) - 1)
        for line in lines:
            if "round" in line:
                digests[line["round"], name.split()[1]].add(line["digest"])
    differ = sum(len(one) > 1 for one in digests.values())
    return {
        "steps lost": float(lost),
        "processes begun again": float(again),
        "rounds": float(len(digests)),
        "rounds whose replicas differ": float(differ),
    }


def _ends(told: Told) -> list[float]:
    return [
        line["held_out"] for lines in told["ranks"].values() for line in lines if "held_out" in line
    ]


def _spread(seconds: list[float]) -> Values:
    """Return the distribution in ms."""
    found = sorted(1000 * one for one in seconds)
    last = len(found) - 1
    return {
        "count": float(len(found)),
        "median ms": statistics.median(found),
        "p90 ms": found[round(0.9 * last)],
        "p95 ms": found[round(0.95 * last)],
        "worst ms": found[-1],
        "within 50 ms": sum(one <= 50 for one in found) / len(found),
    }
