"""Environment variables that count only when libraries load, which a zygote has done already.

A forked worker cannot honour them: for another value it starts a fresh interpreter. Tables and
comparisons only; `variable_watch` watches the variables.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

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
    """Return whether a setting is read when torch, OpenMP or a BLAS loads, and never again."""
    if name in _ALLOCATOR:
        return "backend" in value
    return name in _NAMES or (name.startswith(_PREFIXES) and name not in _LATE)


def is_read(name: str, modules: Container[str]) -> bool:
    """Return whether the libraries that read an import-time variable are among loaded `modules`."""
    return not name.startswith(_COMPILER) or "torch._dynamo" in modules


def differing(wanted: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """Return the import-time variables of `wanted` that a fork cannot honour, sorted."""
    return sorted(
        name
        for name, value in wanted.items()
        if name not in _HANDLED and counts_at_import(name, value) and present.get(name) != value
    )
