"""A number of things in words, in the singular or the plural."""

from __future__ import annotations


def counted(number: int, thing: str, things: str = "") -> str:
    """Return `1 node`, `2 nodes`; things: the plural, where it is not formed by an s."""
    return f"{number} {thing if number == 1 else things or f'{thing}s'}"


def verb(number: int, one: str, more: str) -> str:
    """Return the verb for so many: `is`, `are`."""
    return one if number == 1 else more
