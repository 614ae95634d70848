"""A pytest plugin: limits of waits grow with the machine's slowness, and with nothing else.

Limits in tests are for a machine that does a million turns of a loop in `_USUAL_SECONDS`. On one
with half of its speed whatever starts torch, which is most of what tests wait for, takes twice as
long. So the limits are multiplied by what this machine takes more, in CPU time: a busy machine
gets no more. Belongs here: that number, and pytest's own limits. Not: deadlines of the product,
which are the same everywhere.

A virtual machine's speed is not one number: within one run it was 1.06 and 2.19 times what is usual
here. So the least factor is `_LEAST`.
"""

from __future__ import annotations

import functools
import os
import time
from typing import TYPE_CHECKING, Final

from pluggy import HookimplMarker  # light: processes that tests start take the factor alone

if TYPE_CHECKING:
    import pytest

_USUAL_SECONDS: Final = 0.035
_TURNS: Final = 1_000_000
_LEAST: Final = 2.0
_VARIABLE: Final = "TESTS_PATIENCE"
"""Hands the number on to the workers of a run and to what tests start; may be set by hand."""


@functools.cache
def patience() -> float:
    """Return the factor of all limits."""
    if _VARIABLE not in os.environ:
        least = min(_turns() for _ in range(3))
        os.environ[_VARIABLE] = f"{max(_LEAST, least / _USUAL_SECONDS):.2f}"
    return float(os.environ[_VARIABLE])


def _turns() -> float:
    begun, total = time.process_time(), 0
    for number in range(_TURNS):
        total += number
    return time.process_time() - begun


@HookimplMarker("pytest")(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give each test that has no limit of its own the usual one, before pytest-timeout looks."""
    if config.getoption("timeout", None) is None and (usual := config.getini("timeout")):
        config.option.timeout = float(usual) * patience()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Do the same for limits that tests have."""
    import pytest

    for item in items:
        mark = item.get_closest_marker("timeout")
        if mark is not None and mark.args:
            item.add_marker(
                pytest.mark.timeout(mark.args[0] * patience(), *mark.args[1:]), append=False
            )
