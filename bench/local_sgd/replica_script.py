"""The training script of replicas that `job_kills` kills under a real master: EDiT over DDP.

Model, data and log are those of `ddp_script`. A joiner is given the others' state, so no checkpoint
is made. Each line has the roster's epoch for its round.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run by path, by `holdfast-run`

from bench.recovery import script

INTERVAL = 10
"""Steps between two rounds, as `elastic` has them."""


def main() -> None:
    """Train until somebody ends this process."""
    options = script.settings()
    log = script.StepLog(options.log_dir)
    import torch
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import holdfast
    from holdfast import local_sgd

    job = holdfast.init()
    torch.set_num_threads(1)
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
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    optimizer = local_sgd.StatefulPostLocalSGDOptimizer(inner, averager)
    replica = int(os.environ.get("HOLDFAST_REPLICA", "0"))
    train = script.make_step(model, optimizer, replica, dist.group.WORLD)
    for own in itertools.count(1):
        time.sleep(options.step_ms / 1000)
        loss = train(averager.step)
        log.belong(getattr(members, "epoch", 0), averager.group.size)
        log.write("step", step=own, loss=round(loss, 4))
        job.step(averager.step)


if __name__ == "__main__":
    main()
