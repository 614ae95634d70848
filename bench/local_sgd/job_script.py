"""The training script that `job_kills` kills under a real master: DDP, or replicas under EDiT.

Model, data and log are `bench.recovery`'s. DDP is restarted from a checkpoint in memory that
follows each step, so a restart repeats none: no other interval would be better for it here. A
replica (`--replicas`) that joins is given the others' state, so no checkpoint is made; each of its
lines has the roster's epoch for its round.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run by path, by `holdfast-run`

from bench.recovery import script

INTERVAL = 10
"""Steps between two rounds, as `elastic` has them."""


def main() -> None:
    """Train until somebody ends this process."""
    replicas = "--replicas" in sys.argv
    if replicas:
        sys.argv.remove("--replicas")
    options = script.settings()
    log = script.StepLog(options.log_dir)
    import torch

    torch.set_num_threads(1)
    (_replica if replicas else _ddp)(options, log)


def _ddp(options: argparse.Namespace, log: script.StepLog) -> None:
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import holdfast

    group = script.join_world(log, options.collective_timeout)
    model = script.build_model()
    optimizer = _adamw(model)
    flash = holdfast.Checkpointer(None, model=model, optimizer=optimizer)
    start = int(flash.load())
    parallel = DistributedDataParallel(model, process_group=group)
    train = script.make_step(parallel, optimizer, dist.get_rank(), group)
    for step in itertools.count(start + 1):
        time.sleep(options.step_ms / 1000)
        log.write("step", step=step, loss=round(train(step - 1), 4))
        flash.save(step, durable=False)


def _replica(options: argparse.Namespace, log: script.StepLog) -> None:
    import torch
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import holdfast
    from holdfast import local_sgd

    job = holdfast.init()
    dist.init_process_group("gloo")
    members = local_sgd.members_of_environment()
    model = DistributedDataParallel(script.build_model())
    averager = local_sgd.OuterOptimPeriodicModelAverager(
        members,
        local_sgd.LocalSGDConfig(local_sgd_sync_interval=INTERVAL),
        None,
        local_sgd.OuterOptimizerConfig(
            torch.optim.SGD, {"lr": 0.7, "momentum": 0.8, "nesterov": True}
        ),
    )
    optimizer = local_sgd.StatefulPostLocalSGDOptimizer(_adamw(model), averager)
    replica = int(os.environ.get("HOLDFAST_REPLICA", "0"))
    train = script.make_step(model, optimizer, replica, dist.group.WORLD)
    for own in itertools.count(1):
        time.sleep(options.step_ms / 1000)
        loss = train(averager.step)
        log.belong(getattr(members, "epoch", 0), averager.group.size)
        log.write("step", step=own, loss=round(loss, 4))
        job.step(averager.step)


def _adamw(model: Any) -> Any:
    import torch

    return torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)


if __name__ == "__main__":
    main()
