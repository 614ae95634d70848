"""Kills synchronous replicas at drawn instants, hundreds of times, while others join and freeze.

Run as a script (`--seed`, `--kills`); prints what it did as JSON, and what went wrong with its seed
and events. Replicas have one rank, or two that share a model by FSDP2. All of `replicas.held` is
checked: no process is begun again, no step is skipped or redone, no sample is lost or doubled,
replicas have the same bits after each step, and the weights at the end are those of a training by
one process, to 1e-12.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter

from campaigns.kill_records import record
from local_sgd.elastic_runs import steps_of
from replicas.held import trained

_EVENTS = 24
"""Of one course."""
_LOST = {"kill": 1, "late": 1, "freeze": 1, "two": 2}
"""Replicas by event."""
_MOST = 5
"""Replicas at a time: each is a process on this machine."""


def events(draw: random.Random, replicas: int) -> list[str]:
    """Return what befalls replicas, of which one is always left."""
    found = []
    for _ in range(_EVENTS):
        can = [name for name, lost in _LOST.items() if replicas - lost >= 1]
        chosen = draw.choice(["kill", "kill", *can] if "kill" in can else ["join"])
        if replicas <= 2 or (replicas < _MOST and draw.random() < 0.45):
            chosen = "join"
        replicas += 1 if chosen == "join" else -_LOST[chosen]
        found.append(chosen)
    return found


class Campaign:
    """Courses of replicas, one after the other, until so many processes are killed."""

    def __init__(self, seed: int) -> None:
        """Begin with nothing done."""
        self._draw = random.Random(seed)
        self.kills: Counter[str] = Counter()
        """By what the process did."""
        self.steps = 0
        self.recomputed = 0
        self.wrong: list[str] = []

    def course(self) -> None:
        """Have one course, and count what was in it."""
        seed, shards = self._draw.randrange(10_000), self._draw.choice([1, 2])
        replicas = 5 - shards
        given = {
            "kind": "shards" if shards > 1 else "whole",
            "shards": shards,
            "replicas": replicas,
            "events": events(self._draw, replicas),
        }
        try:
            told, _ = trained(seed, scenario="campaign", every=5, pause=0.4, **given)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            self.wrong.append(f"seed {seed}, {given}: {error}")
            return
        self.kills.update(told["kills"])
        ranks = [steps for one in told["ranks"].values() if (steps := steps_of(one))]
        self.steps += max(steps[-1]["step"] for steps in ranks)
        self.recomputed += sum(steps[-1]["recomputed"] for steps in ranks)


def main() -> int:
    """Carry out a campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=100, help="of processes; at least")
    parser.add_argument("--record", default="", help="file to add a line of JSON to")
    arguments = parser.parse_args()
    begun, campaign = time.monotonic(), Campaign(arguments.seed)
    while campaign.kills.total() < arguments.kills and not campaign.wrong:
        campaign.course()
        sys.stderr.write(f"{campaign.kills.total()} kills, {campaign.steps} steps\n")
    said = {
        "seed": arguments.seed,
        "kills": campaign.kills,
        "resumed": {"steps in a row": campaign.steps, "micro-batches again": campaign.recomputed},
        "seconds": round(time.monotonic() - begun, 1),
        "wrong": campaign.wrong,
    }
    sys.stdout.write(json.dumps(said) + "\n")
    record(arguments.record, "replicas in step", said)
    return bool(campaign.wrong)


if __name__ == "__main__":
    sys.exit(main())
