"""Outer rosters: their text, and what is refused by the name of its field."""

from __future__ import annotations

import pytest

from holdfast.local_sgd.errors import RosterError
from holdfast.local_sgd.policies.outer_roster import OuterRoster


def test_a_roster_comes_back_from_its_text() -> None:
    """All fields, and a host in brackets."""
    roster = OuterRoster(3, (4, 0, 7), "[fd00::7]:29500")
    assert OuterRoster.from_text(roster.to_text()) == roster
    assert roster.address == ("fd00::7", 29500)


def test_a_later_version_may_add_fields() -> None:
    """A name that is not known is passed over."""
    text = '{"epoch": 1, "replicas": [0], "store": "a:1", "new": 2}'
    assert OuterRoster.from_text(text) == OuterRoster(1, (0,), "a:1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected JSON"),
        ("[1]", "expected JSON"),
        ('{"epoch": 1, "replicas": [0]}', "store"),
        ('{"epoch": 0, "replicas": [0], "store": "a:1"}', "epoch=0"),
        ('{"epoch": true, "replicas": [0], "store": "a:1"}', "epoch=True"),
        ('{"epoch": 1, "replicas": [], "store": "a:1"}', "replicas="),
        ('{"epoch": 1, "replicas": [2, 2], "store": "a:1"}', "each once"),
        ('{"epoch": 1, "replicas": [-1], "store": "a:1"}', "0 or more"),
        ('{"epoch": 1, "replicas": "01", "store": "a:1"}', "list of numbers"),
        ('{"epoch": 1, "replicas": [0], "store": "a"}', "host:port"),
        ('{"epoch": 1, "replicas": [0], "store": "a:0"}', "host:port"),
    ],
)
def test_what_is_no_roster_is_refused(text: str, said: str) -> None:
    """The message names the field and the value."""
    with pytest.raises(RosterError, match=said):
        OuterRoster.from_text(text)
