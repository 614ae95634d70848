"""Unique names, for attempts, arenas and sockets."""

from __future__ import annotations

import uuid


def unique() -> str:
    """Return a unique name: 16 hexadecimal digits."""
    return uuid.uuid4().hex[:16]
