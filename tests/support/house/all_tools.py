"""A pytest plugin: where all tools must be there, a skip because one is not built is a failure.

`make test` goes on where Kueue, Prometheus or real nodes cannot be built, for the sake of people
who change something else. With TESTS_NEED_ALL_TOOLS=1, in a CI that can build all, they are not
skipped unnoticed.
Belongs here: what a build could have made. Not: rights and kernels that a machine lacks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from typing import Final

import pytest

VARIABLE: Final = "TESTS_NEED_ALL_TOOLS"
NOT_BUILT: Final = re.compile(r"\b(is|are) not built\b")
"""Words of the reasons of such skips."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip for lack of a program or an image into a failure."""
    report = yield
    if report.skipped and os.environ.get(VARIABLE) and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if NOT_BUILT.search(reason):
            report.outcome = "failed"
            report.longrepr = f"{VARIABLE} is set: {reason}"
    return report
