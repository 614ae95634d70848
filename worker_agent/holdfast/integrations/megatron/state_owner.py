"""Owner of a training's state: an object that lists more than the model and the optimizer have.

Belongs here: how it is found at an optimizer. Does not belong here: any owner, such as the replicas
of `holdfast.local_sgd`, whose state is that of several models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from holdfast.flash.trainer.leaves import Stateful
from holdfast.flash.trainer.shards import Shards

OWNER: Final = "_holdfast_state_owner"
"""Attribute of an optimizer that has one."""


class StateOwner(Protocol):
    """What lists the state in place of `MegatronShards`."""

    def shards(
        self,
        objects: Mapping[str, Stateful] | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> Shards:
        """Return the whole state; the arguments are those of `MegatronShards`."""


def owner_of(optimizer: Any) -> StateOwner | None:
    """Return an optimizer's owner; None: it has none."""
    found: StateOwner | None = getattr(optimizer, OWNER, None)
    return found
