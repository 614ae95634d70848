"""Layout of the shared page: its words, its limits, the memory order they need.

Numbers only; `holdfast.page` maps memory onto them and reads a slot.

Pages of 4096 bytes, aligned 8-byte words in native byte order. Page 0 is the header, page `1 +
slot` belongs to one local rank. Each word has one writer: the trainer writes the words of a slot
below `AGENT_WORDS`, the agent the others and the header. Every store is a `memoryview` item
assignment of a native 8-byte format, which CPython does as one memcpy of 8 bytes and so as one
store. (`struct.pack_into` would not do: it zeroes its target first.) A sequence lock covers the
trainer's words, a check word covers the barrier. Behind them lies a mutex of the C library, which
the trainer owns too (`holdfast.robust_mark`).
"""

from __future__ import annotations

import enum
import platform
import threading
from collections.abc import Iterable
from typing import Final

PAGE_BYTES: Final = 4096
MAGIC: Final = int.from_bytes(b"HOLDFAST", "little")
VERSION: Final = 4
MEMFD_NAME: Final = "holdfast-page"
DEFAULT_LEASE_LIMIT_NS: Final = 4_000_000_000
"""Age in ns at which an agent's lease is stale: 1 s below the master's silence of 5 s."""
MAX_WORD: Final = 2**64 - 1
SLOT_WORDS: Final = PAGE_BYTES // 8
AGENT_WORDS: Final = 256
"""First word of a slot that the agent writes."""
NOTICE_OFFSET: Final = 3072
NOTICE_BYTES: Final = 256
MARK_OFFSET: Final = 3584
MARK_BYTES: Final = 128
"""Room for a pthread_mutex_t (40 bytes on x86-64, 48 on Arm), see `holdfast.robust_mark`. A release
without the mutex leaves the room empty and does not read it, so the page needed no new version."""
GOES_ON: Final = 2**63
"""Bit of BARRIER_STEP: the rank saves at that step and goes on. Without it, it saves and stops."""
_BARRIER_CHECK: Final = 0x5AFE_57E9_A11D_0C0D
_SCHEDULE_CHECK: Final = 0x0DD5_7E95_CA1E_D0C5
TIER_WORDS: Final = 8
"""Words of each array that has one word for each tier. The first one is of no tier."""
_TURN: Final = 5
"""Bits by which each word of a schedule is rotated further than the word before, so that no two of
them can be swapped unnoticed."""


class Header(enum.IntEnum):
    """Word numbers of page 0; only the agent writes them."""

    MAGIC = 0
    VERSION = 1
    SLOTS = 2
    LEASE_NS = 3
    AGENT_PID = 4
    LEASE_LIMIT_NS = 5


class Word(enum.IntEnum):
    """Word numbers of a slot."""

    SEQUENCE = 0
    PID = 1
    ROUND = 2
    STEP = 3
    STEP_NS = 4
    STEP_DURATION_NS = 5
    SAMPLES = 6
    LOSS = 7
    HAS_LOSS = 8
    SECTION = 9
    SECTION_NS = 10
    FIRST_STEP = 11
    FIRST_STEP_NS = 12
    ACK_ID = 13
    ACK_STEP = 14
    ANSWERED_ID = 15
    ANSWERED_STEP = 16
    BARRIER_COMPLETE = 17
    CLEAN_EXIT = 18
    ATTACHED = 19
    IMPORT_VARIABLE = 20
    SAVES = 21
    """A bit for each tier that the rank saves to."""
    SAVED_STEP_NS = 22
    SCHEDULE_SEEN = 23
    SCHEDULE_SEEN_STEP = 24
    SYNC_NS = 25
    WORK_NS = 26
    STOP_NS = 32
    """The first of `TIER_WORDS` words; that of a tier lies at STOP_NS + tier."""
    DURABLE_NS = STOP_NS + TIER_WORDS
    EVERY = DURABLE_NS + TIER_WORDS
    BARRIER_ID = AGENT_WORDS
    BARRIER_STEP = AGENT_WORDS + 1
    BARRIER_CHECK = AGENT_WORDS + 2
    ASSIGNED_ROUND = AGENT_WORDS + 3
    SCHEDULE_ID = AGENT_WORDS + 4
    SCHEDULE_STEP = AGENT_WORDS + 5
    SCHEDULE_CHECK = AGENT_WORDS + 6
    SCHEDULE_CONFIRMED = AGENT_WORDS + 7
    SCHEDULE_EVERY = AGENT_WORDS + 8
    """The first of `TIER_WORDS` words; that of a tier lies at SCHEDULE_EVERY + tier."""


class StepAnswer(enum.IntEnum):
    """Answer that a rank gets at the step that it has completed."""

    NOTHING = 0
    SAVE = 1
    SAVE_AND_STOP = 2


NEEDS_FENCE: Final = platform.machine() not in ("x86_64", "AMD64")
"""x86-64 keeps loads in order and stores in order; other machines need `fence` between them."""

_lock: Final = threading.Lock()


def fence() -> None:
    """Order the loads and stores before it against those after it.

    Nothing before it passes the first release downwards, nothing after it passes the second acquire
    upwards.
    """
    with _lock:
        pass
    with _lock:
        pass


def keep_order() -> None:
    """Call `fence` where the machine needs it."""
    if NEEDS_FENCE:
        fence()


def barrier_check(barrier_id: int, barrier_step: int) -> int:
    """Return the check word that makes a half-written barrier recognisable."""
    turned = (barrier_step << 1 & MAX_WORD) | barrier_step >> 63
    return barrier_id ^ turned ^ _BARRIER_CHECK


def schedule_check(number: int, step: int, every: Iterable[int]) -> int:
    """Return the check word that makes a half-written schedule recognisable.

    every: the `TIER_WORDS` words of the tiers.
    """
    check = _SCHEDULE_CHECK
    for at, word in enumerate((number, step, *every)):
        turn = at * _TURN
        check ^= (word << turn & MAX_WORD) | word >> (64 - turn)
    return check
