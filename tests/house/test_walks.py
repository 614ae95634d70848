"""The page that lists the walks of a checkpoint says what the tests hold."""

from __future__ import annotations

import re

import pytest

from checkpoints.walks import RESTORE, SAVE, Walk
from house.repository import ROOT

_PAGE = ROOT / "docs" / "design" / "0026-folders-and-names.md"


def _listed(process: str, walk: str) -> set[str]:
    """Return the modules of a list on the page, as Python names them."""
    text = _PAGE.read_text(encoding="utf-8")
    [body] = re.findall(
        rf"^- {process}, {walk}: (.*?)[;.]\n(?=- |\n)", text, re.MULTILINE | re.DOTALL
    )
    return {name.replace("/", ".") for name in re.findall(r"`([^`]+)`", body)}


@pytest.mark.parametrize(("walk", "name"), [(SAVE, "save"), (RESTORE, "restore")])
def test_the_page_lists_the_modules_that_the_tests_hold(walk: Walk, name: str) -> None:
    """A reader of the page opens the modules that run, and finds each where it says."""
    processes = {one: _listed(one, name) for one in ("rank", "server", "agent", "master")}
    assert processes == {
        "rank": walk.rank,
        "server": walk.server,
        "agent": walk.agent,
        "master": walk.master,
    }
    assert f"{len(walk.modules)} modules, before" in _PAGE.read_text(encoding="utf-8")
