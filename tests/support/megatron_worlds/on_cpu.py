"""Runs a script of megatron-core on the CPU: `on_cpu.py SCRIPT ARGUMENTS`, in a rank of a job."""

from __future__ import annotations

import logging
import runpy
import sys
import warnings
from pathlib import Path


def main() -> None:
    """Put the CPU in CUDA's place, then run the script as the main one."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from megatron_worlds.cpu_shim import install

    install()
    logging.disable(logging.WARNING)  # one for each draw: CPU generators in CUDA's place
    warnings.filterwarnings("ignore", category=UserWarning)  # of Apex and Transformer Engine
    import torch

    torch.set_num_threads(1)
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
