"""Processes that hold a shared page, for tests of the SDK: start one with the page inherited."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.page import Page


@contextmanager
def page_of(slots: int, **options: int) -> Iterator[Page]:
    """Make a page whose descriptor is closed afterwards."""
    page = Page.create(slots, **options)
    try:
        yield page
    finally:
        os.close(page.fd)


@contextmanager
def python(page: Page, slot: int, code: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run code in a fresh interpreter that has inherited the page; killed at the end."""
    environment = os.environ | {"HOLDFAST_PAGE": f"{page.fd}:{slot}"} | variables
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment,
        pass_fds=[page.fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with process:
            yield process
            process.kill()
    finally:
        process.kill()
