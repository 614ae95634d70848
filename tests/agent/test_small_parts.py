"""Parts of the agent that need no process: the lease, the outbox, statements, evidence, reaping."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.layout import Header
from holdfast.page import Page
from holdfast_agent import address, evidence
from holdfast_agent.decide.fence import Accepted
from holdfast_agent.decide.statements import Statements
from holdfast_agent.lease import Lease
from holdfast_agent.session import MAX_QUEUE, Outbox
from holdfast_wire.keys import MAX_TEXT_BYTES
from holdfast_wire.messages import (
    BoundaryReached,
    Heartbeat,
    RoundStarted,
    SessionRequest,
    Warmed,
    WorkerExited,
)

SECOND = 1_000_000_000


@pytest.fixture
def page() -> Iterator[Page]:
    """A shared page whose lease is 4 s."""
    made = Page.create(1)
    yield made
    made.close()


class TestLease:
    """Renewing the word, and noticing that it was not renewed."""

    def test_it_is_renewed_while_the_loop_turns(self, page: Page) -> None:
        """Each tick makes the lease young again."""
        lease = Lease(page, lambda _: True)
        for now in (1, 2, 5):
            lease.tick(now * SECOND)
            assert page.lease_age_ns(now * SECOND) == 0

    def test_after_standing_still_it_is_not_renewed_before_the_workers_are_dead(
        self, page: Page
    ) -> None:
        """A stale lease stays stale: the zygote, frozen too, must not find it fresh."""
        told: list[float] = []

        def on_expired(age: float) -> bool:
            told.append(age)
            return True

        lease = Lease(page, on_expired)
        lease.tick(1 * SECOND)
        lease.tick(7 * SECOND)
        lease.tick(8 * SECOND)
        assert told == [6.0]
        assert page.lease_is_stale(8 * SECOND)
        lease.resume()
        lease.tick(page.words[Header.LEASE_NS] + SECOND)
        assert page.lease_age_ns(page.words[Header.LEASE_NS]) == 0

    def test_with_nothing_to_kill_it_goes_on(self, page: Page) -> None:
        """An agent without workers that stood still is of use again at once."""
        lease = Lease(page, lambda _: False)
        lease.tick(1 * SECOND)
        lease.tick(9 * SECOND)
        assert not page.lease_is_stale(9 * SECOND)


class TestOutbox:
    """What waits while the master does not read."""

    async def test_a_newer_heartbeat_replaces_one_that_waits(self) -> None:
        """A frozen master finds one heartbeat, not a thousand, and every report in order."""
        outbox = Outbox()
        messages: list[Heartbeat | Warmed] = [
            Heartbeat(sequence=1),
            Heartbeat(sequence=2),
            Warmed(),
            Heartbeat(sequence=3),
        ]
        for message in messages:
            assert outbox.put(SessionRequest(message=message))
        outbox.close()
        found = []
        while (request := await outbox.get()) is not None:
            found.append(request.message)
        assert found == messages[1:]

    async def test_a_flood_is_refused(self) -> None:
        """Past the limit the stream is given up instead of eating memory."""
        outbox = Outbox()
        for _ in range(MAX_QUEUE):
            assert outbox.put(SessionRequest(message=Warmed()))
        assert not outbox.put(SessionRequest(message=Warmed()))


def test_what_happened_is_told_again_in_order_with_its_age() -> None:
    """Evidence survives a lost stream, and is labelled with its own round."""
    statements = Statements()
    statements.note(WorkerExited(rank=1, exit_code=1, age_seconds=0.5), 3, now=10.0)
    statements.note(Heartbeat(sequence=9), 3, now=10.0)
    statements.note(RoundStarted(), 4, now=11.0)
    statements.note(BoundaryReached(arm_id=1, step=2), 4, now=12.0)
    again = statements.again(Accepted(epoch=2, incarnation="x", round=4), now=12.0)
    assert [type(r.message).__name__ for r in again] == [
        "WorkerExited",
        "RoundStarted",
        "BoundaryReached",
    ]
    assert [r.fence.round for r in again if r.fence is not None] == [3, 4, 4]
    assert isinstance(again[0].message, WorkerExited)
    assert again[0].message.age_seconds == 2.5
    statements.forget_before(4)
    assert len(statements.again(Accepted(), now=12.0)) == 2


class TestEvidence:
    """What a dead worker's files say."""

    def _error_file(self, folder: Path, message: object) -> Path:
        path = folder / "error.json"
        path.write_text(json.dumps({"message": message}))
        return path

    @pytest.mark.parametrize(
        ("message", "kind", "part"),
        [
            pytest.param(
                {"message": "KeyError: 'x'", "extraInfo": {"py_callstack": "at line 3"}},
                "KeyError",
                "at line 3",
                id="exception",
            ),
            pytest.param("out of luck", "", "out of luck", id="text"),
            pytest.param("ValueError: no", "ValueError", "no", id="text-with-type"),
        ],
    )
    def test_both_forms_of_torchs_error_file_are_read(
        self, message: object, kind: str, part: str, tmp_path: Path
    ) -> None:
        """The exception's type and its text are found in either."""
        found = evidence.collect(self._error_file(tmp_path, message), None, ())
        assert found.error_type == kind
        assert part in found.error_message

    @pytest.mark.parametrize("text", ["", "not json", "[]", '{"message": 3}', "{}"])
    def test_a_broken_error_file_is_told_and_not_fatal(self, text: str, tmp_path: Path) -> None:
        """A script may write anything there."""
        path = tmp_path / "error.json"
        path.write_text(text)
        found = evidence.collect(path, None, ())
        assert found.error_type == ""
        assert str(path) in found.error_message

    def test_missing_files_say_nothing(self, tmp_path: Path) -> None:
        """A worker that was killed leaves none."""
        nothing = tmp_path / "none"
        assert evidence.collect(nothing, nothing, ("x",)) == evidence.Evidence()

    def test_patterns_are_looked_for_in_the_end_of_stderr(self, tmp_path: Path) -> None:
        """Patterns are RE2's; a wrong one matches nothing and stops nobody."""
        path = tmp_path / "stderr.log"
        path.write_text("NCCL early\n" + "x" * MAX_TEXT_BYTES + "\nCUDA error: ECC\n")
        found = evidence.collect(None, path, ("NCCL", r"CUDA error: \w+", "(", "(?i)ecc"))
        assert found.matched_patterns == (1, 3)
        assert len(found.stderr_tail.encode()) <= MAX_TEXT_BYTES

    def test_texts_are_cut_between_characters(self) -> None:
        """The end of a text is kept; half a character is not."""
        text = evidence.cut("é" * MAX_TEXT_BYTES)
        assert len(text.encode()) <= MAX_TEXT_BYTES
        assert set(text) == {"é"}


def test_the_address_is_the_one_towards_the_master() -> None:
    """On the loopback network it is the loopback address; an unknown name falls back to it."""
    assert address.towards("127.0.0.1:7777") == "127.0.0.1"
    assert address.towards("no-such-host.invalid:7777") == "127.0.0.1"
    assert address.resolve("10.1.2.3") == "10.1.2.3"


def test_adopted_orphans_are_reaped_and_others_children_are_not() -> None:
    """As PID 1 an agent reaps what is handed to it, and leaves the zygote to its handle."""
    code = """
import os, time
from holdfast_agent.family import reap_adopted
from holdfast_agent.zygote.tree import become_subreaper, children
become_subreaper()
own = os.fork()
if own == 0:
    os._exit(3)
middle = os.fork()
if middle == 0:
    if os.fork() == 0:
        os._exit(0)  # becomes the subreaper's when its parent is gone
    os._exit(0)
os.waitpid(middle, 0)
deadline = time.monotonic() + 10
reaped = 0
while reaped == 0 and time.monotonic() < deadline:
    reaped = reap_adopted({own})
assert reaped == 1
assert children(os.getpid()) == [own]
assert os.waitstatus_to_exitcode(os.waitpid(own, 0)[1]) == 3
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
