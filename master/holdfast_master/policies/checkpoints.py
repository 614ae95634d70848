"""Checkpoint choice: what memory may release, what a world restores, who commits a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from holdfast_wire.messages import CheckpointVersion as Version
from holdfast_wire.messages import Tier
from holdfast_wire.tiers import TIERS, word

Copy = tuple[Version, Tier]
"""A version in one tier."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """The part of a version that one node has in memory."""

    world_size: int
    """Ranks that the version consists of."""
    ranks: frozenset[int]
    whole: bool = False
    """These are all that any world needs."""
    world: str = ""
    """Names the world that saved it; empty: not known."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOffer:
    """The versions that one node could start from."""

    versions: Mapping[Tier, frozenset[Version]] = dataclasses.field(default_factory=dict)
    """By tier, as this node alone could take them; of memory: what its own has for its ranks."""
    parts: Mapping[Version, MemoryPart] = dataclasses.field(default_factory=dict)
    """All versions in its memory."""
    gathers: bool = True
    """It reads the memory of others, and they can read its own."""

    def has(self, tier: Tier) -> frozenset[Version]:
        """Return the versions that the node could take from a tier; none where it lacks that."""
        return self.versions.get(tier, frozenset())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RestoreChoice:
    """The version that a world starts from, with the reason."""

    version: Version | None
    """None: nothing is there."""
    tier: Tier = Tier.UNSPECIFIED
    """Where all nodes take it from; unspecified: nothing is there."""
    gathered: bool = False
    """With memory: some nodes have to read parts from others."""
    partial: bool = False
    """With memory: parts of it are nowhere, and nobody needs them."""
    reason: str
    older: bool = False
    """Something newer was announced as durable and is not there any more."""


def origin(
    offers: Mapping[int, RestoreOffer],
    damaged: Collection[Copy],
    announced: Version | None,
    most: int,
) -> RestoreChoice:
    """Choose the newest version that every node can take from one tier.

    A version that is in several tiers is taken from the nearest. The memory of all nodes together
    stands behind the memory of each. Where all nodes have one version in memory, no node reads
    another's memory: a step that a node has saved since is done again in less time than a state is
    read.

    Nothing below an announced step is taken while something else is there. A node that was replaced
    may come back with the memory of a later world, whose steps a world since then did not go on
    from.

    offers: of every node of the world. damaged: copies that did not verify. announced: the newest
    version that was said to be durable. most: ranks of a version whose parts are put together from
    the memory of several nodes; 0: nobody reads another's memory.
    """
    least = announced.step if announced is not None else 0
    found = _candidates(offers, damaged, most, least) or _candidates(offers, damaged, most, 0)
    if not found:
        lost = announced is not None
        return RestoreChoice(
            version=None, reason="nothing was saved that all nodes have", older=lost
        )
    best = max(found, key=lambda one: (one.version, -found.index(one)))
    rest = {one.version.step for one in found if one.version != best.version}
    have = "all nodes have" if len(offers) > 1 else "the node has"
    elsewhere = f"; the newest elsewhere is step {max(rest)}" if rest else ""
    return RestoreChoice(
        version=best.version,
        tier=best.tier,
        gathered=best.gathered,
        partial=best.gathered and _is_partial(best.version, offers),
        reason=f"the newest that {have} is in {best.where}{elsewhere}",
        older=announced is not None and best.version < announced,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Candidate:
    """The newest version that all nodes can take in one way."""

    version: Version
    tier: Tier
    where: str
    gathered: bool = False


def _candidates(
    offers: Mapping[int, RestoreOffer], damaged: Collection[Copy], most: int, least: int
) -> list[_Candidate]:
    """The newest version of each tier, nearest first; least: no step below this one."""
    found = []
    for tier in TIERS:
        agreed = (_agreed(one, offers, tier) for one in offers.values())
        version = _newest(agreed, damaged, tier, least)
        if version is not None:
            found.append(_Candidate(version, tier, word(tier)))
        elif tier is Tier.MEMORY and (version := _gatherable(offers, damaged, most, least)):
            where = "the memory of all nodes together" if len(offers) > 1 else "its memory"
            found.append(_Candidate(version, tier, where, gathered=True))
    return found


def _agreed(
    offer: RestoreOffer, offers: Mapping[int, RestoreOffer], tier: Tier
) -> frozenset[Version]:
    """The versions of a node; in memory, those whose parts on all nodes are of one world.

    Two masters may have given one number to two worlds: one version then names two states.
    """
    if tier is not Tier.MEMORY:
        return offer.has(tier)
    return frozenset(one for one in offer.has(tier) if len(_worlds(one, offers) - {""}) <= 1)


def _worlds(version: Version, offers: Mapping[int, RestoreOffer]) -> set[str]:
    parts = (offer.parts.get(version) for offer in offers.values())
    return {part.world for part in parts if part is not None}


def _newest(
    offers: Iterable[frozenset[Version]], damaged: Collection[Copy], tier: Tier, least: int
) -> Version | None:
    sets = list(offers)
    shared = frozenset.intersection(*sets) if sets else frozenset()
    fine = (one for one in shared if one.step >= least and (one, tier) not in damaged)
    return max(fine, default=None)


def _gatherable(
    offers: Mapping[int, RestoreOffer], damaged: Collection[Copy], most: int, least: int
) -> Version | None:
    """The newest version of which every node can have all parts; None: there is none."""
    known = {one for offer in offers.values() for one in offer.parts if one.step >= least}
    fine = (one for one in known if (one, Tier.MEMORY) not in damaged)
    return max((one for one in fine if sources(one, offers, most) is not None), default=None)


def _is_partial(version: Version, offers: Mapping[int, RestoreOffer]) -> bool:
    found = [offer.parts[version] for offer in offers.values() if version in offer.parts]
    there = frozenset().union(*(part.ranks for part in found))
    return any(len(there) < part.world_size for part in found)


def sources(
    version: Version, offers: Mapping[int, RestoreOffer], most: int
) -> Mapping[int, Mapping[int, tuple[int, ...]]] | None:
    """Return for each node the nodes and their ranks' parts that it reads; None: a part is lacking.

    A node whose own memory suffices reads from nobody. Where some nodes have everything, each of
    the others reads all from one of those, and the readers are shared out evenly.
    """
    parts = {node: offer.parts[version] for node, offer in offers.items() if version in offer.parts}
    if len(worlds := _worlds(version, offers)) != 1 or "" in worlds or not most:
        return None
    enough = {
        node
        for node, offer in offers.items()
        if version in offer.has(Tier.MEMORY) or _whole(offer, version)
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


def _whole(offer: RestoreOffer, version: Version) -> bool:
    return version in offer.parts and offer.parts[version].whole


def _put_together(
    version: Version, offers: Mapping[int, RestoreOffer], parts: Mapping[int, MemoryPart], most: int
) -> Mapping[int, Mapping[int, tuple[int, ...]]] | None:
    """The same as `sources`, where each node has the parts of some ranks only."""
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
        lacking = [] if version in offer.has(Tier.MEMORY) else sorted(set(range(size)) - own)
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
    """The node that commits a step: the first that wrote a part, else the first present.

    None: no node is present. Storage is shared, so any node can commit; a node that wrote a part
    has the directory in its cache. hung: nodes that had the grant and did not answer; the choice
    falls on one of those only where no other node is present.
    """
    able = set(present) - set(hung) or set(present)
    return min(set(wrote) & able, default=min(able, default=None))
