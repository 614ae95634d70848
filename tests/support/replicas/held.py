"""What every course of synchronous replicas must show: the weights of an undisturbed run.

Belongs here: that comparison. Does not belong here: what befalls them (`local_sgd.elastic_jobs`).
"""

from __future__ import annotations

import functools
import random
from typing import Any

from local_sgd.elastic_runs import check_kept, run, steps_of
from replicas.training import MICRO_BATCH, MICRO_BATCHES, part_of, undisturbed

reference = functools.cache(undisturbed)


def trained(seed: int | None = None, **scenario: Any) -> tuple[dict[str, Any], str]:
    """Return what ranks wrote down, held to equal replicas and to the undisturbed run; and why.

    No process is begun again, no step is skipped or redone, and all replicas have the same bits
    after each step.
    """
    seed = random.randrange(10_000) if seed is None else seed
    given: dict[str, Any] = {"kind": "whole", "every": 30, **scenario}
    shards, told = given.get("shards", 1), run(seed=seed, **given)
    why = f"seed {seed}: {told['done']}"
    check_kept(told, why)
    _check_samples(told, why)
    for name, lines in told["ranks"].items():
        if not lines or "weights" not in lines[-1]:
            assert int(name.split()[0]) not in told["members"], why
            continue
        weights = reference(seed, lines[-2]["step"], shards)
        if given["kind"] == "shards":
            weights = part_of(weights, int(name.split()[1]), shards)
        apart = max(abs(a - b) for a, b in zip(lines[-1]["weights"], weights, strict=True))
        assert apart < 1e-12, f"{name} is {apart} from the undisturbed run; {why}"
    return told, why


def _check_samples(told: dict[str, Any], why: str) -> None:
    """By the ranks' own records each sample of a step was used once, by whoever it was."""
    counted = told["samples"]
    last = max(steps_of(lines)[-1]["step"] for lines in told["ranks"].values() if steps_of(lines))
    assert (counted["wrong"], counted["lost"], counted["doubled"]) == ([], 0, 0), why
    assert counted["steps"] - last in {0, 1}, why  # a step is recorded before it is logged
    assert sum(counted["used"]) == counted["steps"] * MICRO_BATCHES * MICRO_BATCH, why
