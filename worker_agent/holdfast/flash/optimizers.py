"""Tells whether a stored optimizer state is of the optimizer that is to have it.

By the settings of its groups, which every optimizer has and which name what it computes: a class's
name would refuse a subclass, and the state's own keys are not known before a first step.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

_OF_SCHEDULERS: Final = frozenset(
    ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr")
)
"""What torch's schedulers add to a group, whatever optimizer it is of."""


def otherness(saved: AbstractSet[str], live: AbstractSet[str]) -> str:
    """Return why the settings are another optimizer's; empty: they are not, as far as is seen.

    Each lacks some of the other's. One that only has more is of another release of torch, say.
    """
    more, less = saved - live - _OF_SCHEDULERS, live - saved - _OF_SCHEDULERS
    if not saved or not more or not less:
        return ""
    return (
        f"another optimizer's: {', '.join(sorted(more))} are not in the state, "
        f"{', '.join(sorted(less))} are not in the checkpoint"
    )
