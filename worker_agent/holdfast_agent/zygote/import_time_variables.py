"""Environment variables that count only when libraries load, which a zygote has done already.

A forked worker cannot honour them: for another value it starts a fresh interpreter. Thread counts
are the exception: a child sets them by calls. A script that changes such a variable is warned.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from holdfast.page import Page

OMP_THREADS: Final = "OMP_NUM_THREADS"
OPENBLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"
MKL_THREADS: Final = "MKL_NUM_THREADS"

_HANDLED: Final = frozenset({OMP_THREADS, OPENBLAS_THREADS, MKL_THREADS})
"""Known before the fork, the child applies these by library calls."""
_NAMES: Final = frozenset(
    {
        "ATEN_CPU_CAPABILITY",
        "PYTORCH_JIT",
        "TORCH_CPP_LOG_LEVEL",
        "TORCH_DISTRIBUTED_DEBUG",
        "TORCH_LOGS",
        "TORCH_LOGS_FORMAT",
        "TORCH_LOGS_OUT",
        "TORCH_SHOW_CPP_STACKTRACES",
        "TORCH_TRACE",
    }
)
_ALLOCATOR: Final = frozenset(
    {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"}
)
"""Read at the first use of the allocator, except for its `backend`, which import chooses."""
_LATE: Final = frozenset(
    {"KMP_DUPLICATE_LIB_OK", "MKL_SERVICE_FORCE_INTEL", "TORCHINDUCTOR_CACHE_DIR"}
)
"""Read late in spite of their prefix, and set by torch itself while it runs."""
_COMPILER: Final = ("TORCHDYNAMO_", "TORCHINDUCTOR_", "TORCH_COMPILE")
"""Read when torch's compiler loads, which may be after torch."""
_PREFIXES: Final = ("DNNL_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_", *_COMPILER)


def counts_at_import(name: str, value: str) -> bool:
    """Return True if a setting is read when torch, OpenMP or a BLAS loads, and never again."""
    if name in _ALLOCATOR:
        return "backend" in value
    return name in _NAMES or (name.startswith(_PREFIXES) and name not in _LATE)


def differing(wanted: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """Return the import-time variables of `wanted` that a fork cannot honour, sorted."""
    return sorted(
        name
        for name, value in wanted.items()
        if name not in _HANDLED and counts_at_import(name, value) and present.get(name) != value
    )


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


def apply_thread_counts(
    environment: Mapping[str, str], openblas: Callable[[int], object] | None
) -> None:
    """Set the thread counts of torch and OpenBLAS as at an import with these variables."""
    openmp = wanted(environment, OMP_THREADS)
    if "torch" in sys.modules:
        import torch

        if torch.backends.mkl.is_available():  # MKL then decides, and stays below the core count
            mkl = wanted(environment, MKL_THREADS) or openmp
            torch.set_num_threads(min(mkl or physical_cores(), physical_cores()))
        else:
            torch.set_num_threads(openmp or len(os.sched_getaffinity(0)))
    if openblas is not None:
        count = wanted(environment, OPENBLAS_THREADS) or openmp
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


_WARNING = (
    "holdfast: {name}={value} set by the script has no effect in this process, where torch is "
    "imported already. If it still differs when the process ends, the next round's workers start "
    "as fresh interpreters, which takes seconds. Set it in the job's environment instead.\n"
)


class VariableWatch:
    """Compares values, not writes: a script may change a variable and put it back."""

    def __init__(self, environment: Mapping[str, str], page: Page, slot: int) -> None:
        """`environment`: the values that the libraries of this process have read, or were given."""
        self._environment = environment
        self._page, self._slot = page, slot
        self._differing: dict[str, str] = {}
        """Variables with another value now, in the order of the changes."""
        self._noted = ""
        self._warned = False

    def on_audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take an audit event; only changes of variables matter."""
        if event not in ("os.putenv", "os.unsetenv"):
            return
        name = os.fsdecode(arguments[0])
        value = os.fsdecode(arguments[1]) if event == "os.putenv" else ""
        before = self._environment.get(name, "")
        if value == before:
            self._differing.pop(name, None)
        elif counts_at_import(name, value) or counts_at_import(name, before):
            self._differing[name] = value
            if value:  # a removed variable may be set again
                self._warn(name)
        self._note()

    def warn_of_unset(self) -> None:
        """Warn at the script's end of variables that it has removed for good."""
        for name in self._differing:
            self._warn(name)

    def _note(self) -> None:
        """Write the present differences to the page now: the process may end without warning."""
        name = next(iter(self._differing), "")
        if name != self._noted:
            self._noted = name
            self._page.note_import_variable(self._slot, name)

    def _warn(self, name: str) -> None:
        is_read = not name.startswith(_COMPILER) or "torch._dynamo" in sys.modules
        if not self._warned and is_read:
            self._warned = True
            with suppress(OSError):
                os.write(2, _WARNING.format(name=name, value=self._differing[name]).encode())
