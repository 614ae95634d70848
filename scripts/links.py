"""Checks every link inside the repository's Markdown: the file exists, and so does the heading.

Links to other sites are not followed: a check must not depend on the network.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^\s*(```|~~~)")
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINITION = re.compile(r"^\s*\[[^\]]+\]:\s*<?(\S+?)>?(?:\s|$)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")
ELSEWHERE = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*:")


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yields a Markdown file's numbered lines, without its fenced blocks."""
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


def slug(heading: str) -> str:
    """Makes a heading's anchor as GitHub does: lower case, spaces to dashes, signs dropped."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    """Lists the anchors of a Markdown file; a repeated heading counts on from 1."""
    found: set[str] = set()
    for _, line in prose(path):
        found.update(ANCHOR.findall(line))
        if heading := HEADING.match(line):
            base = name = slug(heading[1])
            count = 0
            while name in found:
                count += 1
                name = f"{base}-{count}"
            found.add(name)
    return found


def broken(source: Path, target: str) -> str | None:
    """Says what is wrong with one link, or None."""
    if ELSEWHERE.match(target):
        return None
    name, _, anchor = unquote(target).partition("#")
    path = (
        source if not name else (ROOT if name.startswith("/") else source.parent) / name.lstrip("/")
    )
    if not path.exists():
        return "no such file"
    if not path.resolve().is_relative_to(ROOT):
        return "leads out of the repository"
    if anchor and path.suffix == ".md" and anchor not in anchors(path):
        return "no such heading"
    return None


def main() -> None:
    """Exits with 1 and one line for each broken link."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    pages = [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    problems, count = [], 0
    for page in pages:
        for number, line in prose(page):
            text = CODE.sub("``", line)
            for target in LINK.findall(text) + DEFINITION.findall(text):
                count += 1
                if problem := broken(page, target):
                    problems.append(f"{page.relative_to(ROOT)}:{number}: {target}: {problem}")
    if problems:
        sys.exit("\n".join(problems))
    print(f"links: {count} in {len(pages)} pages are good")


if __name__ == "__main__":
    main()
