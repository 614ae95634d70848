"""Limit of a text about one event on the wire."""

from __future__ import annotations

from holdfast_wire.keys import MAX_TEXT_BYTES


def cut(text: str, limit: int = MAX_TEXT_BYTES, *, whole_lines: bool = False) -> str:
    """Return the end of `text` that fits into `limit` bytes of UTF-8."""
    data = text.encode(errors="replace")
    kept = data[-limit:].decode(errors="ignore")
    return kept[kept.find("\n") + 1 :] if whole_lines and len(data) > limit else kept
