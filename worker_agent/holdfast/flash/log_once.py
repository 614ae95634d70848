"""Logs a repeated failure of saves once, until its reason changes.

Does not belong here: the warning to the user (`checkpointer`).
"""

from __future__ import annotations

import re
from typing import Final

_NUMBER: Final = re.compile(r"\d+")


class Trouble:
    """Newest reason in a series of failures."""

    def __init__(self) -> None:
        """Begin without any."""
        self._known = ""

    def is_new(self, reason: str) -> bool:
        """Take a failure; tell whether its reason differs from the one before.

        Numbers do not count: the amount of free memory changes with each failure.
        """
        before, self._known = self._known, _NUMBER.sub("#", reason)
        return self._known != before

    def over(self) -> None:
        """Note a success: the next failure is logged, whatever its reason."""
        self._known = ""
