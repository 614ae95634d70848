"""The ledger of a dataset as the journal has it, and back.

Belongs here: the form alone. Does not belong here: what changes a ledger (`ledger`).
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast_master.policies.data.ledger import CommittedChange, Group, Ledger, Reader
from holdfast_wire import messages as wire


def message_of(ledger: Ledger) -> wire.ShardLedger:
    """The ledger as the journal has it."""
    return wire.ShardLedger(
        name=ledger.name,
        shards=ledger.shards,
        epochs=ledger.epochs,
        digest=ledger.digest,
        fresh=ledger.fresh,
        returned=positions(ledger.returned),
        leases=tuple(
            wire.ReaderLeases(
                reader=named(reader),
                request=ledger.asked.get(reader, 0),
                ordinals=tuple(leases),
                positions=tuple(leases.values()),
            )
            for reader, leases in ledger.open.items()
        ),
        groups=tuple(
            wire.ReaderGroup(replica=group.replica, round=group.round, readers=count)
            for group, count in ledger.groups.items()
        ),
        leaving=tuple(
            wire.LeavingReaders(
                replica=group.replica, round=group.round, node_ranks=tuple(sorted(ranks))
            )
            for group, ranks in ledger.leaving.items()
        ),
        newest=ledger.newest,
        changes=tuple(
            wire.ShardChange(
                step=one.step,
                ordinal=one.ordinal,
                position=one.position,
                replica=one.replica,
                rank=one.rank,
            )
            for one in ledger.changes
        ),
        lost=tuple(
            wire.ReaderGroup(replica=group.replica, round=group.round)
            for group in sorted(ledger.lost)
        ),
        placed=ledger.placed,
        forgotten=ledger.forgotten,
        late=ledger.late,
    )


def of_message(message: wire.ShardLedger) -> Ledger:
    """The ledger that `message_of` made this from."""
    leases = {reader_of(one.reader): one for one in message.leases}
    return Ledger(
        name=message.name,
        shards=message.shards,
        epochs=message.epochs,
        digest=message.digest,
        fresh=message.fresh,
        returned={one.ordinal: one.position for one in message.returned},
        open={
            reader: dict(zip(one.ordinals, one.positions, strict=True))
            for reader, one in leases.items()
        },
        asked={reader: one.request for reader, one in leases.items() if one.request},
        groups={Group(one.replica, one.round): one.readers for one in message.groups},
        leaving={
            Group(one.replica, one.round): frozenset(one.node_ranks) for one in message.leaving
        },
        lost={Group(one.replica, one.round) for one in message.lost},
        newest=message.newest,
        changes=[
            CommittedChange(one.step, one.ordinal, one.position, one.replica, one.rank)
            for one in message.changes
        ],
        placed=message.placed,
        forgotten=message.forgotten,
        late=message.late,
    )


def positions(leases: Mapping[int, int]) -> tuple[wire.ShardPosition, ...]:
    """Ordinals with the next record of each, as a message has them."""
    return tuple(
        wire.ShardPosition(ordinal=ordinal, position=position)
        for ordinal, position in leases.items()
    )


def named(reader: Reader) -> wire.ReaderName:
    """A reader as the journal names it."""
    replica, number = reader.group
    return wire.ReaderName(replica=replica, round=number, rank=reader.rank)


def reader_of(name: wire.ReaderName | None) -> Reader:
    """The reader of this name in the journal."""
    found = name or wire.ReaderName()
    return Reader(Group(found.replica, found.round), found.rank)
