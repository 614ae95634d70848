"""Why saves fail time after time: said once, until it changes.

Does not belong here: who is told (`checkpointer`).
"""

from __future__ import annotations

import re
from typing import Final

_NUMBER: Final = re.compile(r"\d+")


class Trouble:
    """The newest reason of failures that follow each other."""

    def __init__(self) -> None:
        """Begin without any."""
        self._known = ""

    def is_new(self, reason: str) -> bool:
        """Take a failure; tell whether its reason is another than the one before.

        Numbers make no other reason: how much memory is left changes at every look.
        """
        before, self._known = self._known, _NUMBER.sub("#", reason)
        return self._known != before

    def over(self) -> None:
        """Something succeeded: the next failure is said, whatever its reason."""
        self._known = ""
