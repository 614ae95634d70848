"""The shared page: one memfd through which an agent and its ranks exchange words lock-free.

Belongs here: mapping the page, the agent's stores (lease, barrier, reset), reading a slot
(`holdfast.page_sample`). The trainer's stores are in `holdfast.page_slot`. No torch.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Final

from holdfast.page_layout import (
    DEFAULT_LEASE_LIMIT_NS,
    GOES_ON,
    MAGIC,
    MEMFD_NAME,
    NOTICE_BYTES,
    NOTICE_OFFSET,
    PAGE_BYTES,
    SLOT_WORDS,
    TIER_WORDS,
    VERSION,
    Header,
    Word,
    barrier_check,
    keep_order,
    schedule_check,
)
from holdfast.page_sample import RankSample, SavingSample, Section, TierSaving
from holdfast_wire.keys import ENV_PAGE
from holdfast_wire.messages import Tier
from holdfast_wire.tiers import TIERS

_MAX_BARRIER: Final = 2**63
"""Ids and steps stay below this, far from the end of the word."""

_NUMBERS: Final = {
    one.name: Word[one.name.upper()] for one in fields(RankSample) if one.type == "int"
}
"""Field of a sample that is a plain number → its word."""


class PageError(Exception):
    """The shared page is missing, is not Holdfast's, or is used wrongly."""


def _decode(copy: bytes, *, consistent: bool) -> RankSample:
    """Turn the bytes of one slot into a sample; an impossible section reads as INIT."""
    words = memoryview(copy).cast("Q")
    section = words[Word.SECTION]
    known = section <= Section.FINISHING
    notice = copy[NOTICE_OFFSET : NOTICE_OFFSET + min(words[Word.IMPORT_VARIABLE], NOTICE_BYTES)]
    return RankSample(
        consistent=consistent and known,
        attached=bool(words[Word.ATTACHED]),
        loss=memoryview(copy).cast("d")[Word.LOSS] if words[Word.HAS_LOSS] else None,
        section=Section(section) if known else Section.INIT,
        barrier_complete=bool(words[Word.BARRIER_COMPLETE]),
        clean_exit=bool(words[Word.CLEAN_EXIT]),
        import_variable=notice.decode(errors="replace"),
        saving=_saving(words) if words[Word.SAVES] else None,
        **{name: words[word] for name, word in _NUMBERS.items()},
    )


def _saving(words: memoryview) -> SavingSample:
    return SavingSample(
        step_ns=words[Word.SAVED_STEP_NS],
        tiers={tier: _tier(words, tier) for tier in TIERS if words[Word.SAVES] >> tier & 1},
        seen_id=words[Word.SCHEDULE_SEEN],
        seen_step=words[Word.SCHEDULE_SEEN_STEP],
    )


def _tier(words: memoryview, tier: Tier) -> TierSaving:
    every = words[Word.EVERY + tier]
    return TierSaving(
        stop_ns=words[Word.STOP_NS + tier],
        durable_ns=words[Word.DURABLE_NS + tier],
        every=every - 1 if every else None,
    )


class Page:
    """One mapping of the shared page. Use `create` in the agent, `attach_from_env` in a worker."""

    def __init__(self, fd: int, slots: int) -> None:
        """Map the memfd `fd`, which must hold a page of `slots` slots."""
        self.fd = fd
        self.slots = slots
        self._map = mmap.mmap(fd, PAGE_BYTES * (1 + slots))
        self._bytes = memoryview(self._map)
        self.words = self._bytes.cast("Q")
        """All words as unsigned integers; index with `index(slot, word)`."""
        self.reals = self._bytes.cast("d")
        """The same memory as floats."""

    @classmethod
    def create(cls, slots: int, lease_limit_ns: int = DEFAULT_LEASE_LIMIT_NS) -> Page:
        """Make a page for `slots` local ranks, sealed against truncation; the lease is not begun.

        Raises `PageError` unless slots ≥ 1 and lease_limit_ns ≥ 1.
        """
        if slots < 1 or lease_limit_ns < 1:
            raise PageError(f"slots={slots}, lease_limit_ns={lease_limit_ns}: both must be ≥ 1")
        fd = os.memfd_create(MEMFD_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, PAGE_BYTES * (1 + slots))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        page = cls(fd, slots)
        page.words[Header.VERSION] = VERSION
        page.words[Header.SLOTS] = slots
        page.words[Header.AGENT_PID] = os.getpid()
        page.words[Header.LEASE_LIMIT_NS] = lease_limit_ns
        keep_order()
        page.words[Header.MAGIC] = MAGIC
        return page

    @classmethod
    def attach(cls, fd: int) -> Page:
        """Map the page behind descriptor `fd`; raises `PageError` when it is none."""
        try:
            target = str(Path(f"/proc/self/fd/{fd}").readlink())
            size = os.fstat(fd).st_size
        except OSError as error:
            raise PageError(f"descriptor {fd} is not open: {error}") from error
        if not target.startswith(f"/memfd:{MEMFD_NAME}"):
            raise PageError(f"descriptor {fd} is {target}, not a {MEMFD_NAME}")
        page = cls(fd, size // PAGE_BYTES - 1)
        found = (page.words[Header.MAGIC], page.words[Header.VERSION], page.words[Header.SLOTS])
        if found != (MAGIC, VERSION, page.slots):
            page.close()
            raise PageError(
                f"descriptor {fd} holds magic, version, slots {found}, "
                f"expected {(MAGIC, VERSION, size // PAGE_BYTES - 1)}: "
                "agent and SDK must be of the same release"
            )
        return page

    @classmethod
    def attach_from_env(cls) -> tuple[Page, int] | None:
        """Return (page, slot) named by HOLDFAST_PAGE, or None when the variable is absent.

        Also None in a program that a rank has started without passing on the descriptor: the
        variable names the process of the rank that runs the script.

        Raises `PageError` when the variable is malformed, or when its own process has no such
        descriptor.
        """
        text = os.environ.get(ENV_PAGE)
        if not text:
            return None
        fd_text, slot_text, pid_text = f"{text}::".split(":")[:3]
        if not (fd_text.isdecimal() and slot_text.isdecimal()):
            raise PageError(f"{ENV_PAGE}={text!r}: expected <descriptor>:<slot>[:<process>]")
        try:
            page = cls.attach(int(fd_text))
        except PageError:
            if pid_text and pid_text != str(os.getpid()):
                return None
            raise
        slot = int(slot_text)
        if slot >= page.slots:
            slots = page.slots
            page.close()
            raise PageError(f"{ENV_PAGE}={text!r}: the page has {slots} slots")
        return page, slot

    def close(self) -> None:
        """Unmap the page; the descriptor stays open for its owner."""
        for view in (self.words, self.reals, self._bytes):
            view.release()
        self._map.close()

    def index(self, slot: int, word: Word) -> int:
        """Return the index into `words` and `reals` of a slot's word."""
        if not 0 <= slot < self.slots:
            raise PageError(f"slot {slot}: the page has slots 0 to {self.slots - 1}")
        return (1 + slot) * SLOT_WORDS + word

    # --- the agent's side -------------------------------------------------------------------

    def begin_lease(self, now_ns: int) -> None:
        """Start the lease anew; only while no worker of an older lease can be alive."""
        self.words[Header.LEASE_NS] = now_ns

    def renew_lease(self, now_ns: int) -> bool:
        """Store `now_ns` (CLOCK_MONOTONIC); the workers live while it is younger than the limit.

        When the lease has run out, stores nothing and returns False. The agent was frozen then, and
        its workers must not live on. The zygote kills them and reports `LeaseExpired`; after that
        the agent calls `begin_lease`.
        """
        if self.lease_is_stale(now_ns):
            return False
        self.words[Header.LEASE_NS] = now_ns
        return True

    def lease_age_ns(self, now_ns: int) -> int | None:
        """Return the age of the lease at `now_ns`, or None before its first renewal."""
        renewed: int = self.words[Header.LEASE_NS]
        return now_ns - renewed if renewed else None

    @property
    def lease_limit_ns(self) -> int:
        """Age at which the lease is stale and workers are killed."""
        limit: int = self.words[Header.LEASE_LIMIT_NS]
        return limit

    def lease_is_stale(self, now_ns: int) -> bool:
        """Return True if the agent has been silent for longer than the limit."""
        age = self.lease_age_ns(now_ns)
        return age is not None and age > self.lease_limit_ns

    def set_barrier(self, slot: int, barrier_id: int, step: int, *, goes_on: bool = False) -> None:
        """Ask the rank to answer SAVE_AND_STOP when it has completed `step` steps; `goes_on`: SAVE.

        A newer id replaces an older one; the same id and step again change nothing.
        Raises `PageError` for an id ≤ that of the barrier that is set, or values outside 1 … 2**63.
        """
        base = self.index(slot, Word.SEQUENCE)
        armed = self.words[base + Word.BARRIER_ID], self.words[base + Word.BARRIER_STEP]
        word = step | GOES_ON if goes_on else step
        if armed == (barrier_id, word):
            return
        if (
            not (0 < barrier_id < _MAX_BARRIER and 0 < step < _MAX_BARRIER)
            or barrier_id <= armed[0]
        ):
            raise PageError(
                f"barrier {barrier_id} at step {step} in slot {slot}: ids grow (now {armed[0]}) "
                "and both be within 1 … 2**63"
            )
        self.words[base + Word.BARRIER_CHECK] = 0
        keep_order()
        self.words[base + Word.BARRIER_STEP] = word
        self.words[base + Word.BARRIER_ID] = barrier_id
        keep_order()
        self.words[base + Word.BARRIER_CHECK] = barrier_check(barrier_id, word)

    def offer_schedule(
        self, slot: int, number: int, *, step: int, every: Mapping[Tier, int]
    ) -> None:
        """Offer the rank a schedule that holds from `step` on.

        every: steps between saves by tier, 0 as in `SaveEvery`; a tier that is not named has 0.

        A newer number replaces an older one; an older or equal number changes nothing.
        Raises `PageError` for values outside 0 … 2**63, or a number or step of 0.
        """
        base = self.index(slot, Word.SEQUENCE)
        if number <= self.words[base + Word.SCHEDULE_ID]:
            return
        by_word = [0] * TIER_WORDS
        for tier in every:
            by_word[tier] = every[tier]
        if not (step > 0 and all(0 <= value < _MAX_BARRIER for value in (number, step, *by_word))):
            shown = (number, step, *(every.get(tier, 0) for tier in TIERS))
            raise PageError(f"schedule {shown} in slot {slot}: expected 0 … 2**63, step above 0")
        self.words[base + Word.SCHEDULE_CHECK] = 0
        keep_order()
        self.words[base + Word.SCHEDULE_STEP] = step
        for at, value in enumerate(by_word, start=base + Word.SCHEDULE_EVERY):
            self.words[at] = value
        self.words[base + Word.SCHEDULE_ID] = number
        keep_order()
        self.words[base + Word.SCHEDULE_CHECK] = schedule_check(number, step, by_word)

    def confirm_schedule(self, slot: int, number: int) -> None:
        """Tell the rank that all ranks have seen the schedule of this number."""
        at = self.index(slot, Word.SCHEDULE_CONFIRMED)
        self.words[at] = max(self.words[at], number)

    def reset(self, slot: int, round_number: int) -> None:
        """Empty a slot and assign it to a round; only when no process of an older round lives."""
        base = self.index(slot, Word.SEQUENCE)
        start = base * 8
        self._bytes[start : start + PAGE_BYTES] = bytes(PAGE_BYTES)
        self.words[base + Word.ASSIGNED_ROUND] = round_number

    def read(self, slot: int, timeout_s: float = 0.002) -> RankSample:
        """Read a slot, trying up to `timeout_s` seconds for an undisturbed view (see `RankSample`).

        A write lasts about a microsecond, so the first or second try succeeds unless the writer is
        stopped or dead.
        """
        base = self.index(slot, Word.SEQUENCE)
        deadline = time.monotonic() + timeout_s
        while True:
            before = self.words[base]
            keep_order()
            copy = self._bytes[base * 8 : base * 8 + PAGE_BYTES].tobytes()
            keep_order()
            consistent = before == self.words[base] and before % 2 == 0
            if consistent or time.monotonic() >= deadline:
                return _decode(copy, consistent=consistent)
            time.sleep(0)

    def note_import_variable(self, slot: int, name: str) -> None:
        """Record, for the worker, that the script set a variable that counts only at import."""
        start = self.index(slot, Word.SEQUENCE) * 8 + NOTICE_OFFSET
        text = name.encode()[: NOTICE_BYTES - 1]
        self._bytes[start : start + len(text)] = text
        keep_order()
        self.words[self.index(slot, Word.IMPORT_VARIABLE)] = len(text)
