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
FORMAT: Final = 1
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
    HASHED = AGENT_WORDS
    """The SEQUENCE that the hash table belongs to; 0: none."""
