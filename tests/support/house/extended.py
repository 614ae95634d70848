"""Parameters of a test, of which `make test` takes the usual ones and `make test-all` all.

The mark itself, `pytest.mark.extended(reason, held_by=[...])`, stands in the file of the test.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def usual(values: Iterable[Any], *chosen: Any, more: pytest.MarkDecorator) -> list[Any]:
    """Return all values; those that are not chosen bear the mark `more`."""
    found = list(values)
    assert all(one in found for one in chosen), f"{chosen} of {found}"
    return [
        one
        if one in chosen
        else pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=more)
        for one in found
    ]
