"""Foreign text made safe for a terminal. Pure: text in, text out.

The output and exceptions of scripts reach people's terminals. An escape sequence in them would move
the cursor, clear the screen or hide earlier text.
"""

from __future__ import annotations

import re
from typing import Final

_SEQUENCE: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links, device strings
    r"|\x1b[ -/]*[0-~]?"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""C0, C1, and characters that change the writing direction."""
_SHOWN: Final = "\ufffd"


def clean(text: str, *, lines: bool = False) -> str:
    """Return `text` without escape sequences and control characters.

    A tab becomes a blank. A newline does too, unless `lines` keeps it.
    """
    text = _SEQUENCE.sub("", text).replace("\t", " ").replace("\r\n", "\n")
    if lines:
        return "\n".join(_CONTROL.sub(_SHOWN, line) for line in text.split("\n"))
    return _CONTROL.sub(_SHOWN, text.replace("\n", " "))
