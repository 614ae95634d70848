"""The check of the documentation's links finds what is broken and lets pass what is not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from house.repository import ROOT

GUIDE = """# The guide

## What it does, and when

<a id="old-name"></a>
## Twice
## Twice

```
[in a code block](nowhere.md)
```
"""
GOOD = [
    "[file](docs/guide.md)",
    "[heading](docs/guide.md#what-it-does-and-when)",
    "[second of two](docs/guide.md#twice-1)",
    "[by its anchor](docs/guide.md#old-name)",
    "[from the root](/docs/guide.md)",
    "[elsewhere](https://example.org/nowhere.md)",
    "`[in code](nowhere.md)`",
    "[folder](docs)",
    '[with a title](docs/guide.md "the guide")',
]
BROKEN = [
    ("[file](docs/missing.md)", "no such file"),
    ("[heading](docs/guide.md#missing)", "no such heading"),
    ("[own heading](#missing)", "no such heading"),
    ("[out](../../etc)", "no such file"),
    ("[name]: docs/missing.md", "no such file"),
    ("![picture](docs/missing.png)", "no such file"),
    ("[![badge](docs/missing.svg)](docs/guide.md)", "no such file"),
]


def _check(tree: Path, page: str) -> subprocess.CompletedProcess[str]:
    (tree / "scripts").mkdir()
    (tree / "docs").mkdir()
    shutil.copy(ROOT / "scripts" / "links.py", tree / "scripts")
    (tree / "docs" / "guide.md").write_text(GUIDE, encoding="utf-8")
    (tree / "README.md").write_text(f"# Page\n\n{page}\n", encoding="utf-8")
    subprocess.run(["git", "init", "--quiet", tree], check=True)
    return subprocess.run(
        [sys.executable, tree / "scripts" / "links.py"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_good_links_pass(tmp_path: Path) -> None:
    """Links to files, folders, headings and other sites pass; links in code are no links."""
    done = _check(tmp_path, "\n".join(GOOD))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("link", "problem"), BROKEN)
def test_a_broken_link_is_named_with_its_place(tmp_path: Path, link: str, problem: str) -> None:
    """A broken link fails the check, which names its page, its line and what is wrong."""
    done = _check(tmp_path, link)
    assert done.returncode == 1
    assert done.stderr.startswith("README.md:3: ")
    assert problem in done.stderr
