"""Quantities in words: a number of things, a time in the unit that a person would choose."""

from __future__ import annotations

_UNITS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


def counted(number: int, thing: str, things: str = "") -> str:
    """Return `1 node`, `2 nodes`; things: the plural, where it is not formed by an s."""
    return f"{number} {thing if number == 1 else things or f'{thing}s'}"


def verb(number: int, one: str, more: str) -> str:
    """The verb for so many: `is`, `are`."""
    return one if number == 1 else more


def period(seconds: float) -> str:
    """A window as people say it: `a day`, `an hour`, `7.72 min`."""
    return {86400.0: "a day", 3600.0: "an hour"}.get(seconds) or in_words(seconds)


def in_words(seconds: float) -> str:
    """Return `seconds` with three digits: 7.72 min."""
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1000:.3g} ms"
