"""Samples of a training: which belong to a step, and how they come to a rank.

Belongs here: the map from steps to samples, and loaders by it. Does not belong here: who computes
which micro-batch of a step (`holdfast.replicas`). No module imports torch before it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.data.batches import Batches, BatchOptions
    from holdfast.data.quota import QuotaSampler
    from holdfast.data.record import QuotaRecord
    from holdfast.data.sample_map import Last, SampleMap

__all__ = ["BatchOptions", "Batches", "Last", "QuotaRecord", "QuotaSampler", "SampleMap"]
_MODULES = {
    "BatchOptions": "batches",
    "Batches": "batches",
    "Last": "sample_map",
    "QuotaRecord": "record",
    "QuotaSampler": "quota",
    "SampleMap": "sample_map",
}


def __getattr__(name: str) -> Any:
    """Import a name's module on first use: the map needs no torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
