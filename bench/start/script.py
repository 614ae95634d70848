"""One rank of the measured start: `script.py LOG` logs the moment of its first collective."""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main(log: Path) -> None:
    """Sum a tensor over all ranks; append the moment (seconds, `time.monotonic`) to the log."""
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    line = json.dumps({"moment": time.monotonic(), "sum": float(total)})
    with log.open("a") as file:
        file.write(line + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
