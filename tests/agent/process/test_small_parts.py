"""Parts of the agent that need no process: the lease, the outbox, statements, evidence, reaping."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cluster.rights import needs_pods
from holdfast.page import Page
from holdfast.page_layout import Header
from holdfast_agent.config import host_address
from holdfast_agent.errors import InputError
from holdfast_agent.health import stacks
from holdfast_agent.master_link import session
from holdfast_agent.master_link.session import MAX_QUEUE
from holdfast_agent.policies.master_messages import Statements
from holdfast_agent.text_limits import cut
from holdfast_agent.workers import exit_reports
from holdfast_agent.workers.log_files import RankFiles
from holdfast_agent.workers.page_watch import Lease
from holdfast_wire import keys
from holdfast_wire.identity import Identity
from holdfast_wire.keys import MAX_TEXT_BYTES
from holdfast_wire.messages import (
    BarrierReached,
    FailureRule,
    Fence,
    Heartbeat,
    RoundStarted,
    SessionRequest,
    Warmed,
    WorkerExited,
)
from messages.certificates import issue

SECOND = 1_000_000_000


@pytest.fixture
def page() -> Iterator[Page]:
    """A shared page whose lease is 4 s."""
    made = Page.create(1)
    yield made
    made.close()


def _rules(*patterns: str) -> tuple[FailureRule, ...]:
    return tuple(FailureRule(log_pattern=pattern) for pattern in patterns)


class TestLease:
    """Renewing the word, and noticing that it was not renewed."""

    def test_it_is_renewed_while_the_loop_turns(self, page: Page) -> None:
        """Each tick makes the lease young again."""
        lease = Lease(page)
        for now in (1, 2, 5):
            lease.tick(now * SECOND, lambda _: True)
            assert page.lease_age_ns(now * SECOND) == 0

    def test_after_standing_still_it_is_not_renewed_before_the_workers_are_dead(
        self, page: Page
    ) -> None:
        """A stale lease stays stale: the zygote, frozen too, must not find it fresh."""
        told: list[float] = []

        def on_expired(age: float) -> bool:
            told.append(age)
            return True

        lease = Lease(page)
        for now in (1, 7, 8):
            lease.tick(now * SECOND, on_expired)
        assert told == [6.0]
        assert page.lease_is_stale(8 * SECOND)
        lease.resume()
        lease.tick(page.words[Header.LEASE_NS] + SECOND, on_expired)
        assert page.lease_age_ns(page.words[Header.LEASE_NS]) == 0

    async def test_it_is_renewed_eight_times_before_it_runs_out(self, page: Page) -> None:
        """A master that wants a shorter lease gets more renewals, not less room."""
        page.words[Header.LEASE_LIMIT_NS] = SECOND
        periods: list[float] = []
        third = asyncio.Event()

        def pause(period: float) -> float:
            periods.append(period)
            if len(periods) == 3:
                third.set()
            return 0.001

        task = asyncio.create_task(Lease(page).run(lambda _: True, pause))
        async with asyncio.timeout(5):
            await third.wait()
        task.cancel()
        assert set(periods) == {0.125}

    def test_with_nothing_to_kill_it_goes_on(self, page: Page) -> None:
        """An agent without workers that stood still is of use again at once."""
        lease = Lease(page)
        lease.tick(1 * SECOND, lambda _: False)
        lease.tick(9 * SECOND, lambda _: False)
        assert not page.lease_is_stale(9 * SECOND)


class TestOutbox:
    """Messages that wait while the master does not read."""

    async def test_a_newer_heartbeat_replaces_one_that_waits(self) -> None:
        """A frozen master finds one heartbeat, not a thousand, and every report in order."""
        outbox = session.outbox()
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
        outbox = session.outbox()
        for _ in range(MAX_QUEUE):
            assert outbox.put(SessionRequest(message=Warmed()))
        assert not outbox.put(SessionRequest(message=Warmed()))


def test_what_happened_is_told_again_in_order_with_its_age() -> None:
    """Evidence survives a lost stream, and is labelled with its own round."""
    statements = Statements()
    statements.note(WorkerExited(rank=1, exit_code=1, age_seconds=0.5), 3, now=10.0)
    statements.note(Heartbeat(sequence=9), 3, now=10.0)
    statements.note(RoundStarted(), 4, now=11.0)
    statements.note(BarrierReached(barrier_id=1, step=2), 4, now=12.0)
    again = statements.again(Fence(epoch=2, incarnation="x", round=4), now=12.0)
    assert [type(r.message) for r in again] == [WorkerExited, RoundStarted, BarrierReached]
    assert [r.fence.round for r in again if r.fence is not None] == [3, 4, 4]
    assert isinstance(again[0].message, WorkerExited)
    assert again[0].message.age_seconds == 2.5
    ending = statements.again(Fence(), now=12.0, ending=4)
    assert [type(r.message) for r in ending] == [WorkerExited, BarrierReached]
    statements.forget_before(4)
    assert len(statements.again(Fence(), now=12.0)) == 2


def test_a_rule_that_matched_is_told_by_its_place_in_the_list_of_the_newest_welcome() -> None:
    """A new generation put one in front, and took one away, while the stream was down."""
    statements = Statements()
    statements.note(WorkerExited(rank=0, exit_code=1, matched_rules=(0, 2)), 3, now=0.0)
    statements.note(WorkerExited(rank=1, exit_code=1, matched_rules=(1,)), 3, now=0.0)
    statements.note(RoundStarted(), 3, now=0.0)
    statements.renumber_rules(_rules("ECC", "NCCL", "Xid"), _rules("new", "ECC", "Xid"))
    again = [request.message for request in statements.again(Fence(), now=0.0)]
    assert [m.matched_rules for m in again[:2] if isinstance(m, WorkerExited)] == [(1, 2), ()]
    assert again[2] == RoundStarted()


def _evidence(
    error: Path | None = None, stderr: Path | None = None, rules: Sequence[FailureRule] = ()
) -> WorkerExited:
    files = RankFiles(stdout=None, stderr=stderr, error=error, server=Path())
    return exit_reports.with_evidence(WorkerExited(), files, rules)


class TestEvidence:
    """Evidence in a dead worker's files."""

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
        found = _evidence(error=self._error_file(tmp_path, message))
        assert found.error_type == kind
        assert part in found.error_message

    def test_of_a_long_message_the_beginning_is_kept(self, tmp_path: Path) -> None:
        """It names the error; of the call stack the end is kept, which names the place."""
        stack = "Traceback\n" + "at a line\n" * 10_000 + "at the last line"
        message = {"message": "KeyError: " + "é" * 100_000, "extraInfo": {"py_callstack": stack}}
        found = _evidence(error=self._error_file(tmp_path, message))
        assert found.error_type == "KeyError"
        assert found.error_message.startswith("KeyError: éé")
        assert found.error_message.endswith("at the last line")
        assert len(found.error_message.encode()) <= MAX_TEXT_BYTES

    def test_half_a_character_of_a_message_can_be_sent(self, tmp_path: Path) -> None:
        """A file's name that is no UTF-8 has such ones, and the wire takes none."""
        found = _evidence(error=self._error_file(tmp_path, "OSError: \udce9.pt"))
        assert found.error_message.encode() == b"OSError: ?.pt"

    @pytest.mark.parametrize("text", ["", "not json", "[]", '{"message": 3}', "{}"])
    def test_a_broken_error_file_is_told_and_not_fatal(self, text: str, tmp_path: Path) -> None:
        """A script may write anything there."""
        path = tmp_path / "error.json"
        path.write_text(text)
        found = _evidence(error=path)
        assert found.error_type == ""
        assert str(path) in found.error_message

    def test_missing_files_say_nothing(self, tmp_path: Path) -> None:
        """A worker that was killed leaves none."""
        nothing = tmp_path / "none"
        assert _evidence(nothing, nothing, _rules("x")) == WorkerExited()

    def test_patterns_are_looked_for_in_the_end_of_stderr(self, tmp_path: Path) -> None:
        """Patterns are RE2's; a wrong one matches nothing and stops nobody."""
        path = tmp_path / "stderr.log"
        filler = "x" * (exit_reports.SEARCHED_BYTES - 200)
        path.write_text(f"NCCL early{'.' * 200}\nCUDA error: 7\n{filler}\nECC\n")
        rules = _rules("NCCL", r"CUDA error: \w+", "(", "(?i)ecc", "")
        found = _evidence(stderr=path, rules=rules)
        assert found.matched_rules == (1, 3)
        assert len(found.stderr_tail.encode()) <= MAX_TEXT_BYTES

    def test_texts_are_cut_between_characters(self) -> None:
        """The end of a text is kept; half a character is not."""
        text = cut("é" * MAX_TEXT_BYTES)
        assert len(text.encode()) <= MAX_TEXT_BYTES
        assert set(text) == {"é"}


def test_the_address_is_the_one_towards_the_master() -> None:
    """On the loopback network it is the loopback address; an unknown name falls back to it."""
    assert host_address.towards("127.0.0.1:7777") == "127.0.0.1"
    assert host_address.towards("no-such-host.invalid:7777") == "127.0.0.1"
    assert host_address.resolve("10.1.2.3") == "10.1.2.3"


@pytest.mark.parametrize("name", ["no-such-host.invalid", "203.0.113.7", "::ffff:203.0.113.7"])
def test_an_address_that_is_not_this_machines_is_refused_by_name(name: str) -> None:
    """Each world's store listens on it: an agent would try for ever, or end with a traceback."""
    with pytest.raises(InputError) as caught:
        host_address.of_this_machine(name, "PET_LOCAL_ADDR")
    assert str(caught.value).startswith(f"PET_LOCAL_ADDR={name!r}: expected an address of this")
    assert "leave it out" in str(caught.value)
    assert host_address.of_this_machine("localhost", "--local-addr") in {"127.0.0.1", "::1"}


_PEERS = """
import asyncio, pathlib, sys
from holdfast_agent.errors import AgentError
from holdfast_agent.master_link.peers import PeerServer
try:
    asyncio.run(PeerServer(None, None).start("::1", pathlib.Path(sys.argv[1])))
except AgentError as error:
    print(error, "|", type(error.__cause__).__name__)
"""


def _peers(tls: Path, *before: str) -> str:
    command = [*before, sys.executable, "-c", _PEERS, str(tls)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@needs_pods
def test_an_agent_that_peers_could_not_reach_says_why(tmp_path: Path) -> None:
    """In a network without an interface nothing can be listened on; no traceback tells so."""
    tls = issue(tmp_path, Identity("u", keys.ROLE_AGENT, 0))
    said = _peers(tls, "unshare", "--net")
    assert "[::1]:0 cannot be listened on" in said
    assert "--local-addr" in said
    assert said.endswith("| RuntimeError\n")


def test_an_agent_whose_certificates_are_gone_names_their_directory(tmp_path: Path) -> None:
    """They went between the look at the settings and their first use."""
    said = _peers(tmp_path)
    assert said.startswith(f"HOLDFAST_TLS_DIR={str(tmp_path)!r}: ")
    assert said.endswith("| CredentialsError\n")


def test_adopted_orphans_are_reaped_and_others_children_are_not() -> None:
    """As PID 1 an agent reaps what is handed to it, and leaves the zygote to its handle."""
    code = """
import os, time
from holdfast_agent.zygote.process_tree import reap_adopted
from holdfast_agent.zygote.process_tree import become_subreaper, children
become_subreaper()
own = os.fork()
if own == 0:
    os._exit(3)
middle = os.fork()
if middle == 0:
    if os.fork() == 0:
        os._exit(7)  # becomes the subreaper's when its parent is gone
    os._exit(0)
os.waitpid(middle, 0)
deadline = time.monotonic() + 10
reaped = {}
while not reaped and time.monotonic() < deadline:
    reaped = reap_adopted({own})
assert list(reaped.values()) == [7]
assert children(os.getpid()) == [own]
assert os.waitstatus_to_exitcode(os.waitpid(own, 0)[1]) == 3
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_stack_ends_where_the_script_begins() -> None:
    """The frames that run the script are cut off. Other threads' stacks stay whole."""
    runs = '  File "/x/holdfast_agent/zygote/script.py", line 116 in _run_file\n'
    dump = (
        "Thread 0x01 (most recent call first):\n"
        '  File "/u/threading.py", line 5 in wait\n'
        "\n"
        "Current thread 0x02 (most recent call first):\n"
        '  File "/u/train.py", line 7 in step\n'
        '  File "/u/train.py", line 9 in <module>\n'
    )
    below = runs + '  File "/x/main.py", line 3 in main\n'
    assert stacks.scripts_own(dump + below) == dump.rstrip("\n")
    ending = f"Current thread 0x02 (most recent call first):\n{runs}".rstrip("\n")
    assert stacks.scripts_own(ending) == ending
