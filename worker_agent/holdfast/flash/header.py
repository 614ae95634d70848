"""The words of an arena's first page and of a slot's header.

Numbers only, as `holdfast.layout` does for the shared page: aligned 8-byte words in native byte
order, each written by one side. `holdfast.flash.arena` maps memory onto them.
"""

from __future__ import annotations

import enum
from typing import Final

PAGE: Final = 4096
MAGIC: Final = int.from_bytes(b"HFARENA1", "little")
SLOT_MAGIC: Final = int.from_bytes(b"HFSLOT01", "little")
FORMAT: Final = 2
JOB_AT: Final = 1024
"""Byte of the first page where the job's uid begins."""
MOST_JOB: Final = 256
"""Bytes that a job's uid may have."""
AGENT_WORDS: Final = 256
"""First word of a slot's header that the agent writes."""


class ArenaWord(enum.IntEnum):
    """Word numbers of an arena's first page; written once, before anybody else maps it."""

    MAGIC = 0
    FORMAT = 1
    SLOTS = 2
    SLOT_BYTES = 3
    FIRST_SLOT = 4
    TENSOR_BYTES = 5
    BYTES_ROOM = 6
    TAIL_BYTES = 7
    BYTE_ITEMS = 8
    ITEMS = 9
    TABLE_BYTES = 10
    TABLE_HASH = 11
    JOB_BYTES = 12
    """Of the job's uid; 0: it lies in memory that no other job can see."""
    CHECK = 13
    """A hash of the words between MAGIC and this one, and of the job's uid."""


class SlotWord(enum.IntEnum):
    """Word numbers of a slot's header. Words below `AGENT_WORDS` are stored by its owner only.

    SEQUENCE is odd while the trainer writes; a reader that finds it changed has read nothing.
    """

    MAGIC = 0
    STATE = 1
    SEQUENCE = 2
    LINEAGE = 3
    STEP = 4
    RANK = 5
    WORLD = 6
    LAYOUT = 7
    BYTES_USED = 8
    PID = 9
    CHECK = 10
    """A hash of the words from SEQUENCE to PID and of the lengths: whoever finds a slot of a dead
    agent has nothing else to tell by that its version is the one that was written."""
    HASHED = AGENT_WORDS
    """The SEQUENCE that the hash table belongs to; 0: none."""
