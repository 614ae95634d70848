"""What the versions in a keeper's arenas could serve: whose start, and whether wholly.

Belongs here too: emptying the slots that do not hold what they should. Does not belong here: how
arenas come and go (`keeper`), what is done with a version (`service`, `led`, `lending`).
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.flash.arena import Slot
from holdfast.flash.decide.slots import Move, Version, newest_complete
from holdfast.flash.header import SlotWord
from holdfast.flash.holdings import Held, Holdings
from holdfast.flash.manifest import Manifest, Shard, hash_items
from holdfast.flash.table import lacking, whole


class Offer:
    """What one keeper has to offer."""

    def __init__(self, holdings: Holdings) -> None:
        """Take what it holds."""
        self._holdings = holdings
        self._wholes: dict[tuple[int, ...], bool] = {}
        """Whether the newest layouts together are whole: it is asked at every save."""

    def _all(self) -> set[Version]:
        holdings = self._holdings
        return set().union(*(holdings.versions(rank) for rank in holdings.ranks))

    def saved_by(self, ranks: Iterable[int], world: int) -> frozenset[Version]:
        """Return what is VALID on all of these ranks, and a world of this size saved itself.

        What a world of another size has left under the same numbers is not its own.
        """
        mine = list(ranks)
        return frozenset(
            version
            for version in self._holdings.common(mine)
            if all(
                place is not None and place[0].arena.table.world == world
                for place in (self._holdings.find(rank, version) for rank in mine)
            )
        )

    def usable(self, ranks: Iterable[int], world: int) -> list[Version]:
        """Return what these ranks could start from, newest first.

        Saved by a world of this size, and all that each of them needs is in their images: of a
        tensor that a part of the world holds alike, another node may have stored a piece.
        """
        mine = list(ranks)
        found = []
        for version in self._holdings.common(mine):
            places = [self._holdings.find(rank, version) for rank in mine]
            tables = [place[0].arena.table for place in places if place is not None]
            if all(table.world == world for table in tables) and not lacking(tables):
                found.append(version)
        return sorted(found, reverse=True)

    def parts(self) -> dict[Version, tuple[int, tuple[int, ...]]]:
        """Return what lies in memory here, whoever saved it: world size and ranks by version."""
        found: dict[Version, tuple[int, tuple[int, ...]]] = {}
        for version in self._all():
            places = self._holdings.places(version)
            sizes = {held.arena.table.world for held, _ in places}
            if len(sizes) == 1:
                found[version] = (sizes.pop(), tuple(held.rank for held, _ in places))
        return found

    def is_whole(self, versions: Iterable[Version]) -> bool:
        """Tell whether all that any world needs of each of these versions lies here.

        False where there are none: nobody is to count on a node that has nothing.
        """
        found = list(versions)
        return bool(found) and all(
            self._is_whole(tuple(self._holdings.places(one))) for one in found
        )

    def _is_whole(self, places: tuple[tuple[Held, Slot], ...]) -> bool:
        layouts = tuple(held.arena.layout for held, _ in places)
        if layouts not in self._wholes:
            self._wholes = {layouts: whole(held.arena.table for held, _ in places)}
        return self._wholes[layouts]

    def drop_damaged(self, version: Version) -> list[str]:
        """Empty the slots of a version whose bytes no longer have their hashes; say which."""
        notes = []
        for held, slot in self._holdings.places(version):
            if not was_hashed(slot):
                continue
            spans = held.arena.table.spans(tuple(slot.lengths))
            if hash_items(slot.image, spans) != tuple(slot.hashes):
                slot.give_back(Move.RELEASE)
                notes.append(
                    f"step {version.step} of rank {held.rank} was passed over: slot {slot.index} "
                    f"in memory is damaged"
                )
        return notes

    def drop_unlike(self, manifest: Manifest) -> None:
        """Empty the slots of a committed version that do not hold what was committed, bit for bit.

        Another world of the same number may have saved them, or they are damaged.
        """
        stored = {shard.table.rank: shard for shard in manifest.shards}
        for held, slot in self._holdings.places(manifest.version):
            shard, table = stored.get(held.rank), held.arena.table
            spans = table.spans(tuple(slot.lengths))
            if shard is None or shard.table != table or not _is_same(slot, shard, spans):
                slot.give_back(Move.RELEASE)

    def newest(self) -> Version | None:
        """Return the newest version that a world, of any size, has wholly here and saved itself."""
        holdings = self._holdings
        versions = {rank: holdings.versions(rank) for rank in holdings.ranks}
        found = [
            newest
            for world in holdings.worlds
            if set(range(world)) <= versions.keys()
            and (newest := newest_complete(versions, range(world))) is not None
            and self._of_world(newest, world)
        ]
        return max(found, default=None)

    def _of_world(self, version: Version, world: int) -> bool:
        places = [self._holdings.find(rank, version) for rank in range(world)]
        return all(place is not None and place[0].arena.table.world == world for place in places)


def _is_same(slot: Slot, shard: Shard, spans: list[tuple[int, int]]) -> bool:
    """Tell whether a slot has the bytes of a committed shard, its tail included."""
    if tuple(slot.lengths) != shard.lengths:
        return False
    hashes = hash_items(slot.image, spans)
    return hashes == shard.hashes


def was_hashed(slot: Slot) -> bool:
    """Tell whether the slot's hash table belongs to its content."""
    return bool(slot.words[SlotWord.HASHED] == slot.words[SlotWord.SEQUENCE])
