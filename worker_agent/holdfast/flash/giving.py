"""Gives restored values that are no tensors to their owners.

An owner is the user's code and may refuse what it is given: they are asked before any tensor is
changed. What an owner had before is not kept to be given back: it may be as large as a model. Does
not belong here: which values there are (`restoring`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.flash.state import Stateful


class GivingError(Exception):
    """An owner refused what it was given."""


@dataclass(frozen=True, slots=True)
class Gift:
    """A value and who gets it."""

    name: str
    owner: Any
    """A module that has an extra state, something with `load_state_dict`, or plain data."""
    state: Any
    holder: Any = None
    """Where plain data is; None: in a module."""
    key: str = ""


def give(gifts: Sequence[Gift]) -> None:
    """Give all; raises `GivingError` that names whose owner refused, and who has theirs."""
    given: list[str] = []
    for gift in gifts:
        try:
            _give(gift)
        except Exception as error:  # whatever the owner's own code raises
            before = f"; {', '.join(given)} are restored already" if given else ""
            raise GivingError(
                f"{gift.name}: {type(gift.owner).__name__} refused what was saved of it: "
                f"{error!r}; no tensor was changed{before}"
            ) from error
        given.append(gift.name)


def _give(gift: Gift) -> None:
    if gift.holder is None:
        gift.owner.set_extra_state(gift.state)
    elif isinstance(gift.owner, Stateful):
        gift.owner.load_state_dict(gift.state)
    else:
        gift.holder[gift.key] = gift.state
