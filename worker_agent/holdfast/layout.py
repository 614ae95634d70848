"""Layout of the shared page: its words, its limits, the memory order they need.

Numbers only; `holdfast.page` maps memory onto them, `holdfast.sample` reads a slot.

Pages of 4096 bytes, aligned 8-byte words in native byte order. Page 0 is the header, page
`1 + slot` belongs to one local rank. A word is written by one side only: words of a slot below
`AGENT_WORDS` by the trainer, the others and the header by the agent. Every store is a
`memoryview` item assignment of a native 8-byte format, which CPython does as one memcpy of
8 bytes and so as one store. (`struct.pack_into` would not do: it zeroes its target first.)
The trainer's words are covered by a sequence lock, the armed step by a check word. Behind them lies
a mutex of the C library's, which is the trainer's too (`holdfast.mark`).
"""

from __future__ import annotations

import enum
import platform
import threading
from typing import Final

PAGE_BYTES: Final = 4096
MAGIC: Final = int.from_bytes(b"HOLDFAST", "little")
VERSION: Final = 3
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
"""Room for a pthread_mutex_t (40 bytes on x86-64, 48 on Arm), see `holdfast.mark`. Whoever does not
know of it leaves it empty or does not look at it: it needed no new version of the page."""
GOES_ON: Final = 2**63
"""Bit of ARM_STEP: the rank saves at that step and goes on. Without it, it saves and stops."""
_ARM_CHECK: Final = 0x5AFE_57E9_A11D_0C0D
_SCHEDULE_CHECK: Final = 0x0DD5_7E95_CA1E_D0C5
_TURNS: Final = (0, 1, 17, 33)
"""Bits by which the four words of a schedule are turned, so that two of them cannot change places.
"""


class Header(enum.IntEnum):
    """Word numbers of page 0; the agent alone writes them."""

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
    ECHO_ID = 13
    ECHO_STEP = 14
    ANSWERED_ID = 15
    ANSWERED_STEP = 16
    BOUNDARY_COMPLETE = 17
    CLEAN_EXIT = 18
    ATTACHED = 19
    IMPORT_VARIABLE = 20
    SAVES = 21
    MEMORY_NS = 22
    STORAGE_NS = 23
    DURABLE_NS = 24
    MEMORY_EVERY = 25
    STORAGE_EVERY = 26
    SCHEDULE_SEEN = 27
    SCHEDULE_SEEN_STEP = 28
    SAVED_STEP_NS = 29
    ARM_ID = AGENT_WORDS
    ARM_STEP = AGENT_WORDS + 1
    ARM_CHECK = AGENT_WORDS + 2
    ASSIGNED_ROUND = AGENT_WORDS + 3
    SCHEDULE_ID = AGENT_WORDS + 4
    SCHEDULE_STEP = AGENT_WORDS + 5
    SCHEDULE_MEMORY = AGENT_WORDS + 6
    SCHEDULE_STORAGE = AGENT_WORDS + 7
    SCHEDULE_CHECK = AGENT_WORDS + 8
    SCHEDULE_CONFIRMED = AGENT_WORDS + 9


class Section(enum.IntEnum):
    """What a rank is doing; each has its own learned time-out in the agent."""

    INIT = 0
    FIRST_STEP = 1
    TRAIN = 2
    EVAL = 3
    CHECKPOINT = 4
    FINISHING = 5


class Answer(enum.IntEnum):
    """What is asked of a rank at the step that it has completed."""

    NOTHING = 0
    SAVE = 1
    SAVE_AND_STOP = 2


NEEDS_FENCE: Final = platform.machine() not in ("x86_64", "AMD64")
"""x86-64 keeps loads in order and stores in order; other machines need `fence` between them."""

_lock: Final = threading.Lock()


def fence() -> None:
    """Order the loads and stores before it against those after it.

    Nothing before passes the first release downwards, nothing after passes the second acquire
    upwards. Call it as `if NEEDS_FENCE: fence()`, so that it costs nothing where it is not needed.
    """
    with _lock:
        pass
    with _lock:
        pass


def arm_check(arm_id: int, arm_step: int) -> int:
    """Return the check word that makes a half-written arm recognisable."""
    turned = (arm_step << 1 & MAX_WORD) | arm_step >> 63
    return arm_id ^ turned ^ _ARM_CHECK


def schedule_check(*words: int) -> int:
    """Return the check word that makes a half-written schedule recognisable."""
    check = _SCHEDULE_CHECK
    for word, turn in zip(words, _TURNS, strict=True):
        check ^= (word << turn & MAX_WORD) | word >> (64 - turn)
    return check
