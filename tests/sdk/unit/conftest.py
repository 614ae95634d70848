"""A page of one slot, and the writer of its slot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agents.page_worker import page_of
from holdfast.page import Page
from holdfast.page_slot import SlotWriter


@pytest.fixture
def page() -> Iterator[Page]:
    """A page of one slot, of round 0."""
    with page_of(1) as found:
        yield found


@pytest.fixture
def writer(page: Page) -> SlotWriter:
    """The writer of the page's slot, claimed by this process."""
    return SlotWriter(page, 0, 0)
