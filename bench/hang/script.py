"""A plain script of two ranks, the second of which hangs.

Takes the arguments of `bench.recovery`'s systems. Each rank writes what it meets to
LOG_DIR/RANK.jsonl: the moment at which it hangs, and the first thing that happens to a rank from
outside: an exception from its collective, or a signal that ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

STEP_SECONDS = 0.1
HANGS_AT = 100
"""Step: enough of a past for any rule that learns one."""
FOREVER_SECONDS = 1e6


def _note(folder: Path, what: str, text: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    line = {"what": what, "rank": int(os.environ["RANK"]), "unix": time.time(), "text": text}
    with (folder / f"{line['rank']}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def _stay_away() -> None:
    time.sleep(FOREVER_SECONDS)


def main() -> None:
    """Train until rank 1 stays away from a collective."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log-dir", type=Path, required=True)
    folder = parser.parse_known_args()[0].log_dir

    def ended(number: int, _: FrameType | None) -> None:
        _note(folder, "noticed", signal.Signals(number).name)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, ended)
    dist.init_process_group("gloo")
    again = (folder / f"{dist.get_rank()}.jsonl").exists()
    try:
        for step in range(10 * HANGS_AT if again else HANGS_AT + 1):
            time.sleep(STEP_SECONDS)
            if step == HANGS_AT and dist.get_rank() == 1 and not again:
                _note(folder, "hangs")
                _stay_away()
            dist.all_reduce(torch.ones(4))
    except RuntimeError as error:
        _note(folder, "noticed", str(error).splitlines()[0][:200])
        raise


if __name__ == "__main__":
    main()
