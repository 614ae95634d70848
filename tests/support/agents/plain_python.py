"""Plain python, beside which a test holds what an agent starts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any


def plain_python(
    *words: str, check: bool = True, timeout: float = 60.0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with these words, and return its output as text.

    check: Its status must be 0.
    timeout: Longest time, s.
    """
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=check,
        timeout=timeout,
        **options,
    )
