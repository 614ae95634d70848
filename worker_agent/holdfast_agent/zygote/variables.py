"""Environment variables that count only when libraries load, which in a zygote has happened.

A forked worker cannot honour them, so whoever finds a different value starts a fresh interpreter.
Tables and comparisons only; the watching is `child`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OMP_THREADS: Final = "OMP_NUM_THREADS"
OPENBLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"
MKL_THREADS: Final = "MKL_NUM_THREADS"

_HANDLED: Final = frozenset({OMP_THREADS, OPENBLAS_THREADS, MKL_THREADS})
"""Known before the fork, these are applied in the child by library calls."""
_NAMES: Final = frozenset(
    {
        "ATEN_CPU_CAPABILITY",
        "TORCH_CPP_LOG_LEVEL",
        "TORCH_DISTRIBUTED_DEBUG",
        "TORCH_LOGS",
        "TORCH_LOGS_FORMAT",
        "TORCH_LOGS_OUT",
        "TORCH_SHOW_CPP_STACKTRACES",
        "TORCH_TRACE",
    }
)
_PREFIXES: Final = (
    "DNNL_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTORCH_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "TORCH_COMPILE",
)


def counts_at_import(name: str) -> bool:
    """Return whether a variable is read when torch, OpenMP or a BLAS loads, and never again."""
    return name in _NAMES or name.startswith(_PREFIXES)


def differing(wanted: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """Return the import-time variables of `wanted` that a fork cannot honour, sorted."""
    return sorted(
        name
        for name, value in wanted.items()
        if name not in _HANDLED and counts_at_import(name) and present.get(name) != value
    )
