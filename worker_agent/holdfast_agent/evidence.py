"""What a dead worker left behind: its error file, the end of its standard error.

Reads files and cuts texts; whose fault it was is the master's decision. Blocking: call in a thread.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast_wire.keys import MAX_TEXT_BYTES

log = logging.getLogger(__name__)

MAX_ERROR_FILE_BYTES = 1 << 20
"""A larger error file is not read: torch writes a traceback, a few KiB."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Texts about one exit, each cut to what the wire takes."""

    error_type: str = ""
    error_message: str = ""
    stderr_tail: str = ""
    matched_patterns: tuple[int, ...] = ()


def collect(error_file: Path | None, stderr: Path | None, patterns: Sequence[str]) -> Evidence:
    """Return what the files say. Missing files say nothing; patterns are RE2."""
    error_type, message = _read_error_file(error_file) if error_file else ("", "")
    tail = _tail(stderr) if stderr else ""
    matched = [
        index for index, search in enumerate(map(_compile, patterns)) if search is not None
        and search(tail)
    ]  # fmt: skip
    return Evidence(
        error_type=error_type,
        error_message=message,
        stderr_tail=tail,
        matched_patterns=tuple(matched),
    )


def cut(text: str) -> str:
    """Return the end of `text` that fits into MAX_TEXT_BYTES of UTF-8."""
    data = text.encode(errors="replace")
    return text if len(data) <= MAX_TEXT_BYTES else data[-MAX_TEXT_BYTES:].decode(errors="ignore")


def _read_error_file(path: Path) -> tuple[str, str]:
    """Return the exception's type, and its message with the traceback where there is one."""
    try:
        if path.stat().st_size > MAX_ERROR_FILE_BYTES:
            return "", f"{path} is larger than {MAX_ERROR_FILE_BYTES} bytes"
        message = json.loads(path.read_text(errors="replace"))["message"]
        text, callstack = _texts(message)
    except FileNotFoundError:
        return "", ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return "", f"{path} is no error file of torch: {error}"
    name = text.partition(":")[0]
    known = name if name.isidentifier() else ""
    return known, cut(text if not callstack or callstack in text else f"{text}\n{callstack}")


def _texts(message: Any) -> tuple[str, str]:
    """Split torch's two forms of `message`: a text, or a text with its call stack."""
    if isinstance(message, str):
        return message, ""
    return str(message["message"]), str(message.get("extraInfo", {}).get("py_callstack", ""))


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MAX_TEXT_BYTES))
            return cut(file.read().decode(errors="replace"))
    except OSError:
        return ""


def _compile(pattern: str) -> Callable[[str], object] | None:
    """Return the search function of a pattern: RE2's where it is installed, else Python's."""
    try:
        import re2  # type: ignore[import-untyped]
    except ImportError:
        pass
    else:
        try:
            search: Callable[[str], object] = re2.compile(pattern).search
            return search
        except re2.error as error:
            log.warning("log pattern %r is no RE2 pattern: %s", pattern, error)
            return None
    try:
        return re.compile(pattern).search
    except re.error as error:
        log.warning("log pattern %r is wrong: %s", pattern, error)
        return None
