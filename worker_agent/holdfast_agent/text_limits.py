"""Limit of a text about one event on the wire."""

from __future__ import annotations

from holdfast_wire.keys import MAX_TEXT_BYTES


def cut(text: str, limit: int = MAX_TEXT_BYTES) -> str:
    """Return the end of `text` that fits into `limit` bytes of UTF-8."""
    return text.encode(errors="replace")[-limit:].decode(errors="ignore")
