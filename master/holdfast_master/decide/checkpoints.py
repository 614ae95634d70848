"""Which checkpoint counts: what memory may let go, what a world starts from, who commits a step.

Belongs here: the rules, with nodes named by their ranks. Does not belong here: messages, what is
held where (`job.checkpoint_book`), and the rules within one node, which its agent has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from holdfast_wire.messages import CheckpointVersion as Version


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one node has in memory of a version."""

    world_size: int
    """Ranks that the version consists of."""
    ranks: frozenset[int]
    whole: bool = False
    """These are all that any world needs."""
    world: str = ""
    """Names the world that saved it; empty: not known."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What one node could start from."""

    memory: frozenset[Version] = frozenset()
    """What its memory alone has for its ranks."""
    stored: frozenset[Version] = frozenset()
    parts: Mapping[Version, Part] = dataclasses.field(default_factory=dict)
    """What lies in its memory at all."""
    gathers: bool = True
    """It reads the memory of others, and they can read its own."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a world starts from, and why."""

    version: Version | None
    """None: nothing is there."""
    memory: bool = False
    gathered: bool = False
    """With memory: some nodes have to read parts from others."""
    partial: bool = False
    """With memory: parts of it are nowhere, and nobody needs them."""
    reason: str
    older: bool = False
    """Something newer was announced as durable and is not there any more."""


def origin(
    offers: Mapping[int, Offer],
    damaged: Collection[tuple[Version, bool]],
    announced: Version | None,
    most: int,
) -> Choice:
    """Choose the newest version that every node can take from one tier.

    The tiers: memory, the memory of all nodes together, storage. What is in several of them is
    taken from the first. Where every node has something in memory itself, nobody reads another's:
    what was complete is among it, and a step that one of them has saved since is done again in less
    time than a state is read.

    offers: of every node of the world. damaged: (version, from memory) that did not verify.
    announced: the newest version that was said to be durable. most: ranks of a version whose parts
    are put together from the memory of several nodes; 0: nobody reads another's memory.
    """
    nodes = list(offers.values())
    memory = _newest((_agreed(one, offers) for one in nodes), damaged, from_memory=True)
    together = _gatherable(offers, damaged, most) if memory is None else None
    tiers = (
        ("memory", memory),
        ("the memory of all nodes together", together),
        ("storage", _newest((one.stored for one in nodes), damaged, from_memory=False)),
    )
    found = [(version, -place) for place, (_, version) in enumerate(tiers) if version is not None]
    if not found:
        lost = announced is not None
        return Choice(version=None, reason="nothing was saved that all nodes have", older=lost)
    version, place = max(found)
    tier = tiers[-place][0]
    rest = {one.step for one, at in found if at != place and one != version}
    beside = f"; the newest elsewhere is step {max(rest)}" if rest else ""
    return Choice(
        version=version,
        memory=place > -2,
        gathered=place == -1,
        partial=place == -1 and _is_partial(version, offers),
        reason=f"the newest that all nodes have is in {tier}{beside}",
        older=announced is not None and version < announced,
    )


def _agreed(offer: Offer, offers: Mapping[int, Offer]) -> frozenset[Version]:
    """Return what a node could take from its memory, and no node has of another world's saving.

    Two masters may have given one number to two worlds: there are two steps of one version then.
    """
    return frozenset(one for one in offer.memory if len(_worlds(one, offers) - {""}) <= 1)


def _worlds(version: Version, offers: Mapping[int, Offer]) -> set[str]:
    parts = (offer.parts.get(version) for offer in offers.values())
    return {part.world for part in parts if part is not None}


def _newest(
    offers: Iterable[frozenset[Version]],
    damaged: Collection[tuple[Version, bool]],
    *,
    from_memory: bool,
) -> Version | None:
    sets = list(offers)
    shared = frozenset.intersection(*sets) if sets else frozenset()
    return max((one for one in shared if (one, from_memory) not in damaged), default=None)


def _gatherable(
    offers: Mapping[int, Offer], damaged: Collection[tuple[Version, bool]], most: int
) -> Version | None:
    """Return the newest version of which every node can have all parts; None: there is none."""
    known = {one for offer in offers.values() for one in offer.parts}
    fine = (one for one in known if (one, True) not in damaged)
    return max((one for one in fine if sources(one, offers, most) is not None), default=None)


def _is_partial(version: Version, offers: Mapping[int, Offer]) -> bool:
    found = [offer.parts[version] for offer in offers.values() if version in offer.parts]
    there = frozenset().union(*(part.ranks for part in found))
    return any(len(there) < part.world_size for part in found)


def sources(
    version: Version, offers: Mapping[int, Offer], most: int
) -> Mapping[int, Mapping[int, tuple[int, ...]]] | None:
    """Return, for each node, which nodes it reads which ranks' parts from; None: a part is lacking.

    A node whose own memory suffices reads from nobody. Where some have everything, the others read
    all from one of those, shared out evenly.
    """
    parts = {node: offer.parts[version] for node, offer in offers.items() if version in offer.parts}
    if len(worlds := _worlds(version, offers)) != 1 or "" in worlds or not most:
        return None
    enough = {
        node for node, offer in offers.items() if version in offer.memory or _whole(offer, version)
    }
    lenders = [node for node in sorted(parts) if offers[node].gathers and parts[node].whole]
    if lenders or len(enough) == len(offers):
        reading = [node for node in sorted(offers) if node not in enough]
        if not all(offers[node].gathers for node in reading):
            return None
        chosen = {node: lenders[at % len(lenders)] for at, node in enumerate(reading)}
        return {
            node: {chosen[node]: tuple(sorted(parts[chosen[node]].ranks))} if node in chosen else {}
            for node in offers
        }
    return _put_together(version, offers, parts, most)


def _whole(offer: Offer, version: Version) -> bool:
    return version in offer.parts and offer.parts[version].whole


def _put_together(
    version: Version, offers: Mapping[int, Offer], parts: Mapping[int, Part], most: int
) -> Mapping[int, Mapping[int, tuple[int, ...]]] | None:
    """Return who reads what where each has some ranks' parts."""
    sizes = {part.world_size for part in parts.values()}
    if len(sizes) != 1 or not 0 < (size := sizes.pop()) <= most:
        return None
    lent: dict[int, int] = {}
    for node in sorted(parts, reverse=True):
        if offers[node].gathers:
            lent |= dict.fromkeys(parts[node].ranks, node)
    found: dict[int, dict[int, tuple[int, ...]]] = {}
    for node, offer in offers.items():
        own = parts[node].ranks if node in parts else frozenset()
        lacking = [] if version in offer.memory else sorted(set(range(size)) - own)
        if lacking and not (offer.gathers and lent.keys() >= set(lacking)):
            return None
        found[node] = {
            holder: tuple(rank for rank in lacking if lent[rank] == holder)
            for holder in sorted({lent[rank] for rank in lacking})
        }
    return found


def coordinator(
    wrote: Collection[int], present: Collection[int], hung: Collection[int] = ()
) -> int | None:
    """Return the node that commits a step: the first of those that wrote a part, else any.

    None: nobody is there. Storage is shared, so who wrote matters little; its directory is warm.
    hung: nodes that had the grant and did not answer; one of them only where nobody else is.
    """
    able = set(present) - set(hung) or set(present)
    return min(set(wrote) & able, default=min(able, default=None))
