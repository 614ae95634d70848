"""Kubernetes' quantities: texts such as 12Gi or 500m to numbers, and memory back."""

from __future__ import annotations

import functools
import re
from decimal import Decimal
from typing import Any, Final

MEBIBYTE: Final = 2**20
_FORM: Final = re.compile(
    r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)(?:([eE][-+]?[0-9]{1,2})|(m|k|[MGTPE]|[KMGTPE]i))?"
)
_SUFFIXES: Final = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{name: Decimal(1000) ** power for power, name in enumerate("kMGTPE", start=1)},
    **{f"{name}i": Decimal(1024) ** power for power, name in enumerate("KMGTPE", start=1)},
}


def to_bytes(quantity: Any) -> int | None:
    """Return a quantity of memory in bytes; None: it is none."""
    number = to_number(quantity)
    return None if number is None else int(number)


def to_number(quantity: Any) -> Decimal | None:
    """Return a quantity in its unit, which for `cpu` is one CPU; None: it is none."""
    if isinstance(quantity, int) and not isinstance(quantity, bool):
        return Decimal(quantity) if quantity >= 0 else None
    return _read(quantity) if isinstance(quantity, str) else None


@functools.lru_cache(maxsize=256)
def _read(quantity: str) -> Decimal | None:
    """Return what a text says: thousands of pods have the same few."""
    found = _FORM.fullmatch(quantity)
    if found is None:
        return None
    number, exponent, suffix = found.groups()
    return Decimal(f"{number}{exponent or ''}") * _SUFFIXES[suffix or ""]


def in_mebibytes(size: int) -> str:
    """Return bytes as a quantity, rounded up to whole MiB."""
    return f"{-(-size // MEBIBYTE)}Mi"
