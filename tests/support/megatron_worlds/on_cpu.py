"""Runs a script of megatron-core on the CPU: `on_cpu.py SCRIPT ARGUMENTS`, in a rank of a job."""

from __future__ import annotations

import logging
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Put the CPU in CUDA's place, then run the script as the main one."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import megatron_worlds.preloaded  # noqa: F401 - patches torch

    logging.disable(logging.WARNING)  # one for each draw: CPU generators in CUDA's place
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
