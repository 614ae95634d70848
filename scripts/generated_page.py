"""A page that a script writes, or compares with what is committed."""

from __future__ import annotations

import sys
from pathlib import Path


def keep(page: Path, fresh: str) -> None:
    """Write a page, or with `--check` exit with 1 where it would change."""
    if sys.argv[1:] != ["--check"]:
        page.write_text(fresh, encoding="utf-8")
    elif not page.exists() or page.read_text(encoding="utf-8") != fresh:
        sys.exit(f"{page.name} is out of date; run `make manifests`")
    else:
        print(f"{page.name} is up to date")
