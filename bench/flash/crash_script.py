"""The training script that is crashed: `bench.recovery`'s, with the flash checkpoint in memory.

The same model, steps and log; beside the model lie values that make the state take time to copy.
They are not touched before they are restored: cold, as a fresh process has them.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run by path, by `holdfast-run`

from bench.recovery import script

MIB = 256
_PIECES = 8
_COMPARED_AT = 5
"""Steps into a round: long before the next fault."""


def main() -> None:
    """Train until somebody ends this process."""
    options = script.settings()
    log = script.StepLog(options.log_dir)
    log.write("started", at=script.STARTED)
    import torch
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import holdfast

    torch.set_num_threads(1)
    log.write("imported")
    group = script.join_world(log, options.collective_timeout)
    model, ballast = script.build_model(), torch.nn.Module()
    for number in range(_PIECES):
        ballast.register_buffer(f"b{number}", torch.empty(MIB * 2**18 // _PIECES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    log.write("built")
    flash = holdfast.Checkpointer(None, model=[model, ballast], optimizer=optimizer)
    start = restore(log, flash, ballast)
    parallel = DistributedDataParallel(model, process_group=group)
    train = script.make_step(parallel, optimizer, dist.get_rank(), group)
    for step in itertools.count(start + 1):
        due = time.monotonic() + options.step_ms / 1000
        log.write("step", step=step, loss=round(train(step - 1), 4))
        if step % script.SAVE_EVERY == 0:
            flash.save(step, durable=False)
        if step == start + _COMPARED_AT:
            compare(log)
        time.sleep(max(0.0, due - time.monotonic()))


def restore(log: script.StepLog, flash: Any, ballast: Any) -> int:
    """Return the step that all ranks have; the first round makes the values itself."""
    begun = time.monotonic()
    step = int(flash.load())
    log.write("restored", step=step, seconds=round(time.monotonic() - begun, 6))
    for values in ballast.buffers():
        if not step:
            values.fill_(1.0)
        elif float(values[-1]) != 1.0:
            raise RuntimeError(f"step {step} was restored with other values than were saved")
    return step


def compare(log: script.StepLog) -> None:
    """Log what copying as much takes into memory that nobody has touched."""
    import torch

    source = torch.ones(MIB * 2**18)
    begun = time.monotonic()
    torch.empty(MIB * 2**18).copy_(source)
    log.write("compared", seconds=round(time.monotonic() - begun, 6))


if __name__ == "__main__":
    main()
