"""The training script that `job_kills` kills: DDP on gloo, restarted from a checkpoint in memory.

Model, steps and log are `bench.recovery`'s. A checkpoint follows each step, so a restart repeats
none: no other interval would be better for DDP here.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run by path, by `holdfast-run`

from bench.recovery import script


def main() -> None:
    """Train until somebody ends this process."""
    options = script.settings()
    log = script.StepLog(options.log_dir)
    import torch
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import holdfast

    torch.set_num_threads(1)
    group = script.join_world(log, options.collective_timeout)
    model = script.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    flash = holdfast.Checkpointer(None, model=model, optimizer=optimizer)
    start = int(flash.load())
    parallel = DistributedDataParallel(model, process_group=group)
    train = script.make_step(parallel, optimizer, dist.get_rank(), group)
    for step in itertools.count(start + 1):
        time.sleep(options.step_ms / 1000)
        log.write("step", step=step, loss=round(train(step - 1), 4))
        flash.save(step, durable=False)


if __name__ == "__main__":
    main()
