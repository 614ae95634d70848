"""A rank of a Megatron replica whose members come and go, for `local_sgd.elastic_jobs`.

Belongs here: the loop, and what a rank writes down. Does not belong here: the model (`gpt`), who is
killed and who comes (`elastic_jobs`), what must hold (tests).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def run_rank(folder: Path, replica: int, shard: int, scenario: Mapping[str, Any]) -> None:
    """Be one rank: train until the replicas have made the scenario's rounds."""
    import torch

    from holdfast.local_sgd.config import LocalSGDConfig, OuterOptimizerConfig
    from holdfast.local_sgd.megatron import MegatronLocalSGD
    from local_sgd.elastic_training import is_over, members_of
    from megatron_worlds.gpt import Setup, backward, batch, build, update
    from megatron_worlds.replicas import weights_of

    members = members_of(folder, replica, shard, scenario)
    training = build(Setup(layers=1, hidden=16, **scenario["setup"]), 1)
    by_steps = {"local_sgd_sync_interval": scenario["interval"]}
    config = LocalSGDConfig(**scenario.get("config", by_steps))
    outer = OuterOptimizerConfig(torch.optim.SGD, {"lr": 0.7, "momentum": 0.8, "nesterov": True})
    local = MegatronLocalSGD(training.chunks, training.optimizer, config, outer, None,
                             sync_ranks=members)  # fmt: skip
    local.carry("schedule", training.scheduler)
    with (folder / f"log-{replica}-{shard}").open("w", encoding="utf-8", buffering=1) as log:
        begins = {"joined": local.joined, "at": local.steps, "moments": _moments(local)}
        log.write(json.dumps({"begins": begins}) + "\n")
        own = 0
        while not is_over(scenario, folder, rounds := local.units[0].round):
            own += 1
            time.sleep(scenario["pace"] * (1 + 3 * (replica == scenario.get("slow"))))
            samples = batch(local.steps)
            place = replica * scenario["shards"] + shard // scenario["setup"].get("tensor", 1)
            backward(training, [samples[place % len(samples)]])
            update(training)
            told = _told(local, rounds) | _rate(training)
            log.write(json.dumps({"own": own, "pid": os.getpid(), **told}) + "\n")
        if config.use_async:
            local.finish()
        log.write(json.dumps({"weights": weights_of(training)}) + "\n")


def _told(local: Any, rounds: int) -> dict[str, Any]:
    """Return what a step has led to; with a hash of the anchors if it has ended a round."""
    from megatron_worlds.gpt import hash_of

    told = {"step": local.steps, "moments": _moments(local)}
    if (now := local.units[0].round) != rounds:
        told |= {
            "round": now,
            "digest": hash_of(one for unit in local.units for one in unit.anchors.values),
        }
    return told


def _rate(training: Any) -> dict[str, Any]:
    """Return where the schedule is, and the rate that the optimizer has of it."""
    lr = training.optimizer.param_groups[0]["lr"]
    return {"samples": training.scheduler.num_steps, "lr": round(lr, 9)}


def _moments(local: Any) -> float:
    """Return a number that tells Adam's first moments of two replicas apart."""
    states = [part.owned.state.get("exp_avg") for part in local.trained if part is not None]
    return float(sum(one.double().square().sum() for one in states if one is not None))
