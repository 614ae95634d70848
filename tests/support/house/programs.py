"""Programs that a test runs to their end."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any


def python(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with these words for a minute at most, and keep what it prints.

    options: those of subprocess.run that are others than here
    """
    usual = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 60.0}
    return subprocess.run([sys.executable, *words], **{"check": False, **usual, **options})  # noqa: PLW1510


def script(code: str, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the text of a script, indented or not."""
    return python("-c", textwrap.dedent(code), *words, **options)


def holdfast(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return python("-m", "holdfast_cli.main", *words, **options)
