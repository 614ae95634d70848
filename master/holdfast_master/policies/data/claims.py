"""Faults in a reader's first words, among them what its checkpoint claims.

Belongs here: one message by itself. Does not belong here: whether readers agree
(`job.data.shards`).
"""

from __future__ import annotations

from typing import Final

from holdfast_wire import messages as wire

MOST_SHARDS: Final = 2_000_000
"""Shards that a claim may name, and that it may span from its floor on: the ledger has an entry of
some 75 bytes for each that lies between, and all of the master waits meanwhile, for some 3 s."""


def problem(message: wire.ReaderOpened) -> str:
    """Why this reader is leased nothing; empty: its words make sense."""
    if message.rank >= message.readers:
        return (
            f"reader {message.rank} is not among {message.readers} readers: give each rank that "
            "reads a `place` of its own, from 0"
        )
    claim = message.claim or wire.ReaderClaim()
    if any(one.stride < 1 for one in claim.done):
        return (
            "a range of done shards in its claim has stride=0, expected at least 1: its checkpoint "
            "is damaged"
        )
    lasts = (one.first + (one.count - 1) * one.stride for one in claim.done if one.count)
    last = max([claim.floor, *lasts, *(one.ordinal for one in claim.held)])
    most = max(last - claim.floor, sum(one.count for one in claim.done), len(claim.held))
    if most > MOST_SHARDS:
        return (
            f"its claim has {most} shards from floor={claim.floor} on, expected at most "
            f"{MOST_SHARDS}: its checkpoint is damaged, or the script does not call `commit`; give "
            "the reader another name to begin the dataset anew"
        )
    return ""
