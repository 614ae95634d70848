"""Which checkpoint counts: what memory may let go, what a world starts from, who commits a step.

Belongs here: the rules, with nodes named by their ranks. Does not belong here: messages, what is
held where (`job.checkpoint_book`), and the rules within one node, which its agent has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from holdfast_wire.messages import CheckpointVersion as Version


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What one node could start from."""

    memory: frozenset[Version] = frozenset()
    stored: frozenset[Version] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a world starts from, and why."""

    version: Version | None
    """None: nothing is there."""
    memory: bool = False
    reason: str
    older: bool = False
    """Something newer was announced as durable and is not there any more."""


def origin(
    offers: Mapping[int, Offer],
    damaged: Collection[tuple[Version, bool]],
    announced: Version | None,
) -> Choice:
    """Choose the newest version that every node can take from one and the same tier.

    offers: of every node of the world. damaged: (version, from memory) that did not verify.
    announced: the newest version that was said to be durable.
    """
    memory = _newest((offer.memory for offer in offers.values()), damaged, from_memory=True)
    stored = _newest((offer.stored for offer in offers.values()), damaged, from_memory=False)
    if memory is None and stored is None:
        lost = announced is not None
        return Choice(version=None, reason="nothing was saved that all nodes have", older=lost)
    use_memory = memory is not None and (stored is None or memory >= stored)
    version = memory if use_memory else stored
    tier, other = ("memory", stored) if use_memory else ("storage", memory)
    beside = f"; the newest elsewhere is step {other.step}" if other is not None else ""
    older = announced is not None and version is not None and version < announced
    text = f"the newest that all nodes have is in {tier}{beside}"
    return Choice(version=version, memory=use_memory, reason=text, older=older)


def _newest(
    offers: Iterable[frozenset[Version]],
    damaged: Collection[tuple[Version, bool]],
    *,
    from_memory: bool,
) -> Version | None:
    sets = list(offers)
    shared = frozenset.intersection(*sets) if sets else frozenset()
    return max((one for one in shared if (one, from_memory) not in damaged), default=None)


def coordinator(
    wrote: Collection[int], present: Collection[int], hung: Collection[int] = ()
) -> int | None:
    """Return the node that commits a step: the first of those that wrote a part, else any.

    None: nobody is there. Storage is shared, so who wrote matters little; its directory is warm.
    hung: nodes that had the grant and did not answer; one of them only where nobody else is.
    """
    able = set(present) - set(hung) or set(present)
    return min(set(wrote) & able, default=min(able, default=None))
