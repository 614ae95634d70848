"""Watches a script's changes of variables that count only when libraries load.

Belongs here: the changed variables, and the notes to the page and to a person. Does not belong
here: the list of such variables (`import_time_variables`), the reaction (`loop`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from holdfast.page import Page
from holdfast_agent.zygote import import_time_variables

_WARNING = (
    "holdfast: {name}={value} set by the script has no effect in this process, where torch is "
    "imported already. If it still differs when the process ends, the next round's workers start "
    "as fresh interpreters, which takes seconds. Set it in the job's environment instead.\n"
)


class VariableWatch:
    """Compares values, not writes: a script may change a variable and put it back."""

    def __init__(self, environment: Mapping[str, str], page: Page, slot: int) -> None:
        """`environment`: the values that the libraries of this process have read, or were given."""
        self._environment = environment
        self._page, self._slot = page, slot
        self._differing: dict[str, str] = {}
        """Variables with another value now, in the order of the changes."""
        self._noted = ""
        self._told = False

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take an audit event; only changes of variables matter."""
        if event not in ("os.putenv", "os.unsetenv"):
            return
        name = os.fsdecode(arguments[0])
        value = os.fsdecode(arguments[1]) if event == "os.putenv" else ""
        before = self._environment.get(name, "")
        if value == before:
            self._differing.pop(name, None)
        elif import_time_variables.counts_at_import(
            name, value
        ) or import_time_variables.counts_at_import(name, before):
            self._differing[name] = value
            if value:  # a removed variable may be set again
                self._tell(name)
        self._note()

    def tell_the_unset(self) -> None:
        """Warn at the script's end of variables that it has removed for good."""
        for name in self._differing:
            self._tell(name)

    def _note(self) -> None:
        """Write the present differences to the page now: the process may end without warning."""
        name = next(iter(self._differing), "")
        if name != self._noted:
            self._noted = name
            self._page.note_import_variable(self._slot, name)

    def _tell(self, name: str) -> None:
        if not self._told and import_time_variables.is_read(name, sys.modules):
            self._told = True
            with suppress(OSError):
                os.write(2, _WARNING.format(name=name, value=self._differing[name]).encode())
