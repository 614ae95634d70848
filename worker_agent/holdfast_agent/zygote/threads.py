"""Thread counts of a worker: a fork reads OMP_NUM_THREADS too late."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast_agent.zygote import import_time_variables

_OPENBLAS_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


def wanted(environment: Mapping[str, str], name: str) -> int | None:
    """Return a variable's thread count (the first of a nested list), None if there is none."""
    first = environment.get(name, "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


def physical_cores() -> int:
    """Return the number of usable physical cores: torch's own default."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(path.read_text() if path.exists() else str(cpu))
    return len(cores)


def apply(environment: Mapping[str, str], openblas: Callable[[int], object] | None) -> None:
    """Set the thread counts of torch and OpenBLAS as at an import with these variables."""
    openmp = wanted(environment, import_time_variables.OMP_THREADS)
    if "torch" in sys.modules:
        import torch

        if torch.backends.mkl.is_available():  # MKL then decides, and stays below the core count
            mkl = wanted(environment, import_time_variables.MKL_THREADS) or openmp
            torch.set_num_threads(min(mkl or physical_cores(), physical_cores()))
        else:
            torch.set_num_threads(openmp or len(os.sched_getaffinity(0)))
    if openblas is not None:
        count = wanted(environment, import_time_variables.OPENBLAS_THREADS) or openmp
        openblas(count or len(os.sched_getaffinity(0)))


def openblas_setter() -> Callable[[int], object] | None:
    """Return the function that sets the thread count of the loaded OpenBLAS, if one is loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if "openblas" in path:
            library = ctypes.CDLL(f"/{path}")
            for name in _OPENBLAS_SETTERS:
                if hasattr(library, name):
                    setter: Callable[[int], object] = getattr(library, name)
                    return setter
    return None
