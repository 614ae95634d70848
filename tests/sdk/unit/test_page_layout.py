"""The shared page: its layout, its atomic words, what a reader sees while somebody writes."""

from __future__ import annotations

import itertools
import mmap
import os
import signal
import time

import pytest

from agents.page_worker import page_of, python
from holdfast.page import Page, PageError
from holdfast.page_layout import AGENT_WORDS, NOTICE_OFFSET, PAGE_BYTES, TIER_WORDS, Header, Word
from holdfast.page_sample import Section
from holdfast.page_slot import SlotWriter
from holdfast_wire.tiers import TIERS

ONES, TWOS = 0x1111_1111_1111_1111, 0x2222_2222_2222_2222


def test_words_lie_aligned_in_their_own_slot() -> None:
    """Trainer's words, agent's words and the notice do not overlap, and fit a slot."""
    trainer = [word for word in Word if word < AGENT_WORDS]
    agent = [word for word in Word if word >= AGENT_WORDS]
    assert len(set(Word)) == len(trainer) + len(agent) == len(list(Word.__members__))
    assert 8 * max(trainer) < 2048 <= 8 * min(agent)
    assert 8 * max(agent) + 8 <= NOTICE_OFFSET < PAGE_BYTES


def test_each_tier_has_words_of_its_own() -> None:
    """One in each array; no other word lies in an array."""
    arrays = [Word.STOP_NS, Word.DURABLE_NS, Word.EVERY, Word.SCHEDULE_EVERY]
    rooms = [range(first, first + TIER_WORDS) for first in arrays]
    taken = [number for room in rooms for number in room]
    assert len(set(taken)) == len(taken)
    assert not {int(word) for word in Word if word not in arrays} & set(taken)
    assert all(0 < tier < TIER_WORDS for tier in TIERS)
    assert max(rooms[2]) < AGENT_WORDS
    assert 8 * max(rooms[3]) + 8 <= NOTICE_OFFSET


def test_a_fresh_page_reads_as_nothing_happened() -> None:
    """Every slot starts empty, in section INIT, and the lease has not begun."""
    with page_of(3) as page:
        sample = page.read(2)
        assert (sample.pid, sample.step, sample.loss, sample.section) == (0, 0, None, Section.INIT)
        assert sample.consistent
        assert not sample.attached
        assert page.lease_age_ns(time.monotonic_ns()) is None
        assert not page.lease_is_stale(time.monotonic_ns())


@pytest.mark.parametrize(("slots", "limit"), [(0, 1), (-1, 1), (1, 0)])
def test_a_page_of_impossible_size_is_refused(slots: int, limit: int) -> None:
    """Without a slot or a lease there is no page, and the error names both values."""
    with pytest.raises(PageError, match=f"slots={slots}, lease_limit_ns={limit}"):
        Page.create(slots, limit)


def test_nobody_can_truncate_the_page_under_its_readers() -> None:
    """The memfd is sealed: a shorter file would kill every reader with SIGBUS."""
    with page_of(1) as page, pytest.raises(PermissionError):
        os.ftruncate(page.fd, 0)


def test_the_header_says_what_the_page_is() -> None:
    """Slots, agent and lease limit stand in page 0."""
    with page_of(2, lease_limit_ns=7) as page:
        assert page.words[Header.SLOTS] == 2
        assert page.words[Header.AGENT_PID] == os.getpid()
        assert page.lease_limit_ns == 7


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("5", "expected <descriptor>:<slot>"),
        ("a:b", "expected <descriptor>:<slot>"),
        ("-1:0", "expected <descriptor>:<slot>"),
        ("9999:0", "descriptor 9999 is not open"),
        ("{null}:0", "not a holdfast-page"),
        ("{page}:1", "the page has 1 slots"),
    ],
)
def test_a_wrong_variable_is_named(
    page: Page, monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    """HOLDFAST_PAGE that is malformed or leads nowhere gives an error that says which."""
    null = os.open("/dev/null", os.O_RDWR)
    monkeypatch.setenv("HOLDFAST_PAGE", value.format(null=null, page=page.fd))
    with pytest.raises(PageError, match=message):
        Page.attach_from_env()
    os.close(null)


def test_a_page_of_another_version_is_refused(page: Page) -> None:
    """Agent and SDK of different releases must not guess each other's layout."""
    page.words[Header.VERSION] = 99
    with pytest.raises(PageError, match="same release"):
        Page.attach(page.fd)


def test_a_slot_outside_the_page_is_refused() -> None:
    """The error names the slot and the range."""
    with page_of(2) as page, pytest.raises(PageError, match="slot 2: the page has slots 0 to 1"):
        page.read(2)


def test_stores_are_never_seen_in_part() -> None:
    """A word that flips between two patterns is only ever seen as one of them."""
    flip = f"""
        from holdfast.page_layout import Word
        from holdfast.page import Page
        page, slot = Page.attach_from_env()
        words, at = page.words, page.index(slot, Word.SAMPLES)
        words[at] = {ONES}
        print("go", flush=True)
        while True:
            words[at] = {ONES}
            words[at] = {TWOS}
    """
    with page_of(1) as page, python(page, 0, flip) as process:
        assert process.stdout is not None
        process.stdout.readline()
        at = page.index(0, Word.SAMPLES)
        seen = {page.words[at] for _ in range(300_000)}
    assert seen <= {ONES, TWOS}


STEPS = """
    import os
    from holdfast.page import Page
    from holdfast.page_slot import SlotWriter
    page, slot = Page.attach_from_env()
    writer = SlotWriter(page, slot, 0)
    print("go", flush=True)
    n = 0
    while True:
        n += 1
        writer.step(n, 1, float(n))
"""


def test_a_reader_never_mixes_two_steps() -> None:
    """Step, samples and loss of a consistent sample belong together while a process writes."""
    with page_of(1) as page, python(page, 0, STEPS) as process:
        assert process.stdout is not None
        process.stdout.readline()
        samples = [page.read(0) for _ in range(20_000)]
    good = [sample for sample in samples if sample.consistent and sample.step]
    assert len(good) > 10_000
    assert all(sample.step == sample.samples == sample.loss for sample in good)
    assert good[-1].step > good[0].step
    assert all(a.step <= b.step for a, b in itertools.pairwise(good))


def test_a_reader_of_a_stopped_writer_gives_up_in_time(page: Page, writer: SlotWriter) -> None:
    """A writer that is stopped inside a write costs the reader its time-out, no more."""
    writer.step(5, 1, None)
    page.words[page.index(0, Word.SEQUENCE)] += 1  # as if killed in the middle
    begun = time.monotonic()
    sample = page.read(0, timeout_s=0.05)
    assert 0.05 <= time.monotonic() - begun < 0.5
    assert not sample.consistent
    assert sample.step == 5


def test_a_killed_writer_leaves_a_readable_slot(page: Page) -> None:
    """Killed at any instant, the writer leaves whole words, and the next round starts clean."""
    for _ in range(5):
        page.reset(0, 0)
        with python(page, 0, STEPS) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            process.wait(10)
        sample = page.read(0)
        assert abs(sample.samples - sample.step) <= 1
    page.reset(0, 7)
    writer = SlotWriter(page, 0, 7)
    writer.step(1, 1, None)
    assert page.read(0).consistent
    assert page.read(0).round == 7


def test_an_impossible_section_does_not_break_the_reader(page: Page) -> None:
    """A script can write anything into its slot; the agent must survive it."""
    page.words[page.index(0, Word.SECTION)] = 77
    sample = page.read(0)
    assert (sample.section, sample.consistent) == (Section.INIT, False)


def test_the_notice_carries_a_variable_name(page: Page) -> None:
    """The name of a variable that came too late reaches the agent, cut to its room."""
    page.note_import_variable(0, "OMP_NUM_THREADS")
    assert page.read(0).import_variable == "OMP_NUM_THREADS"
    page.note_import_variable(0, "X" * 5000)
    assert set(page.read(0).import_variable) == {"X"}


def test_a_second_mapping_sees_the_same_memory(page: Page) -> None:
    """A lease that the agent renews is seen through a second mapping of the descriptor."""
    page.renew_lease(123)
    other = mmap.mmap(page.fd, 2 * PAGE_BYTES)
    assert int.from_bytes(other[24:32], "little") == 123
    other.close()
