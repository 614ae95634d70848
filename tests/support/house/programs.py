"""Programs that a test runs to their end."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any, Final

from house.patience import patience

LIMIT_SECONDS: Final = 60.0 * patience()


def python(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with these words for `LIMIT_SECONDS` at most, and keep what it prints.

    options: those of subprocess.run that are others than here
    """
    usual = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "timeout": LIMIT_SECONDS,
    }
    return subprocess.run([sys.executable, *words], **{"check": False, **usual, **options})  # noqa: PLW1510


def script(code: str, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the text of a script, indented or not."""
    return python("-c", textwrap.dedent(code), *words, **options)


def holdfast(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return python("-m", "holdfast_cli.main", *words, **options)
