"""Descriptors that the runner holds for agents: through their deaths, within bounds."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast_cli.runner.fd_store import MOST, FdStore, FdStores, close_all
from holdfast_wire.fd_messages import ARENA, Freed, Greeting, Held, receive, send
from house.patience import patience

_MIB = 2**20
_PLENTY = 10_000


@pytest.fixture(autouse=True)
def nothing_open() -> Iterator[None]:
    """No descriptor of an arena is open in this process after a test that was not before."""
    before = _open_arenas()
    yield
    _until(lambda: _open_arenas() == before, "all descriptors closed")


def _open_arenas() -> list[str]:
    links = (entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink())
    return sorted(one.name for one in links if f"memfd:{ARENA}" in str(one.readlink()))


def _until(true: Callable[[], object], what: str, within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@pytest.fixture
def shelf() -> Iterator[FdStore]:
    """Node 3's shelf; nothing is on it after the test."""
    made = FdStore(3, close_all, lambda: True)
    yield made
    _end(made)


def _memory(text: str = "", name: str = ARENA) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    os.write(fd, text.encode())
    return fd


def _lay(end: socket.socket, name: str) -> None:
    fd = _memory(name)
    try:
        send(end, Held(name), fd)
    finally:
        os.close(fd)


def _contents(end: socket.socket) -> dict[str, str]:
    """Return what an agent finds at its start: the text of each arena by its name."""
    assert receive(end) == (Greeting(), None)
    found = dict[str, str]()
    while True:
        try:
            word, fd = receive(end)
        except BlockingIOError:
            return found
        assert isinstance(word, Held)
        assert fd is not None
        found[word.name] = Path(f"/proc/self/fd/{fd}").read_text()
        os.close(fd)


def _end(shelf: FdStore) -> None:
    shelf.disconnect()
    shelf.clear()


_AGENT = """
    import os, sys, time, socket
    from holdfast_wire.fd_messages import ARENA, Freed, Held, receive, send
    end = socket.socket(fileno=int(sys.argv[1]))
    receive(end)
    names, surplus = [], []
    for number in range(10**9):
        name = f"{number:08}"
        fd = os.memfd_create(ARENA, os.MFD_CLOEXEC)
        os.write(fd, name.encode() * 1000)
        try:
            while surplus:
                send(end, Freed(surplus[0]))
                del surplus[0]
            send(end, Held(name), fd)
            names.append(name)
            if len(names) > 20:
                surplus.append(names.pop(0))
        except BlockingIOError:
            time.sleep(0.001)
        os.close(fd)
"""


def _start(code: str, end: socket.socket) -> subprocess.Popen[bytes]:
    with end:
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(end.fileno())],
            pass_fds=[end.fileno()],
            stdout=subprocess.PIPE,
        )


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_an_agent_that_is_killed_while_it_sends_leaves_whole_arenas(shelf: FdStore) -> None:
    """Each is there with its bytes or not at all; what it had freed is free."""
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for number in range(8):
        agent = _start(_AGENT, shelf.connect())
        _until(lambda: shelf.take_in(1) or shelf.count, "a first arena")
        until = time.monotonic() + rng.random() * 0.05
        while time.monotonic() < until:
            shelf.take_in(rng.randrange(1, 5))
        _kill(agent)
        shelf.disconnect()
        with shelf.connect() as end:
            found = _contents(end)
        where = f"seed {seed}, kill {number}"
        assert 1 <= len(found) <= 21, where
        assert all(text == name * 1000 for name, text in found.items()), where
        assert len(_open_arenas()) == shelf.count == len(found), where
        _end(shelf)


@pytest.mark.parametrize(
    "body",
    [
        b"x",
        b"{}",
        b"[]",
        b'{"kind": ["Held"]}',
        b'{"kind": "Greeting"}',
        b'{"kind": "Held", "name": "../x"}',
        b'{"kind": "Held", "name": 7}',
        b'{"kind": "Freed", "name": "a", "more": 1}',
        b"[" * 200,
        b"\xff" * 20,
        b'{"kind": "Freed", "name": "' + b"a" * 300 + b'"}',
        b"",
    ],
)
def test_an_agent_that_talks_nonsense_is_not_listened_to(
    shelf: FdStore, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of it is held any more, whatever descriptors it sends beside; its node is named."""
    bad = _memory()
    with shelf.connect() as end:
        _lay(end, "good")
        shelf.take_in(_PLENTY)
        assert shelf.count == 1
        socket.send_fds(end, [body], [bad])
        os.close(bad)
        shelf.take_in(_PLENTY)
        assert (shelf.count, shelf.fileno()) == (0, -1)
        with pytest.raises(BrokenPipeError):
            _lay(end, "later")
    assert [one.getMessage().partition(":")[0] for one in caplog.records] == ["node 3"]
    with shelf.connect() as end:
        assert _contents(end) == {}


@pytest.mark.parametrize("case", ["twice", "two", "socket", "file", "freed with one"])
def test_descriptors_that_do_not_belong_end_the_connection(shelf: FdStore, case: str) -> None:
    """A name that is there, one too many, no arena: all are closed."""
    one, other = _memory(), _memory()
    with shelf.connect() as end, open(os.devnull) as file:  # noqa: PTH123
        match case:
            case "twice":
                _lay(end, "a")
                send(end, Held("a"), one)
            case "two":
                send(end, Held("a"), one, other)
            case "socket":
                send(end, Held("a"), end.fileno())
            case "file":
                send(end, Held("a"), file.fileno())
            case _:
                send(end, Freed("a"), one)
        os.close(one)
        os.close(other)
        shelf.take_in(_PLENTY)
        assert (shelf.count, shelf.fileno()) == (0, -1)
        file.read()
    assert _open_arenas() == []


def test_a_node_has_a_bounded_number(shelf: FdStore, caplog: pytest.LogCaptureFixture) -> None:
    """The shelf holds no arenas beyond its bound and warns once. A freed arena makes room."""
    with shelf.connect() as end, caplog.at_level(logging.WARNING):
        for number in range(MOST + 5):
            _lay(end, f"a{number}")
            shelf.take_in(_PLENTY)
        assert shelf.count == len(_open_arenas()) == MOST
        assert len(caplog.records) == 1
        send(end, Freed(f"a{MOST + 1}"))
        send(end, Freed("a0"))
        _lay(end, "b")
        shelf.take_in(_PLENTY)
        assert shelf.count == MOST
    shelf.disconnect()
    with shelf.connect() as end:
        found = _contents(end)
    assert set(found) == {*(f"a{number}" for number in range(1, MOST)), "b"}


def test_a_runner_without_a_descriptor_to_spare_goes_on(shelf: FdStore) -> None:
    """A descriptor that the runner has no room for is not held. The connection stays good."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with shelf.connect() as end:
        _lay(end, "a")
        shelf.take_in(_PLENTY)
        _lay(end, "b")
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208
        fillers = [os.dup(0) for _ in range(highest + 1)]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(fillers) + 1, hard))
            while True:
                try:
                    fillers.append(os.dup(0))
                except OSError:
                    break
            shelf.take_in(_PLENTY)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            close_all(fillers)
        assert shelf.count == 1
        send(end, Freed("b"))
        _lay(end, "c")
        shelf.take_in(_PLENTY)
        assert shelf.count == 2


_FLOOD = _AGENT.replace("if len(names) > 20:", "if False:")


async def test_an_agent_that_floods_does_not_keep_the_runner_from_its_work() -> None:
    """It is read in turns, so that only its own socket fills; nobody waits."""
    shelves = FdStores()
    agent = _start(_FLOOD, shelves.open(0, "a"))
    loop = asyncio.get_running_loop()
    turns = 0
    until = loop.time() + 1.0
    async with asyncio.timeout(20 * patience()):
        while turns <= 50 or loop.time() < until or shelves._stores[0].count < MOST:
            turns += 1
            await asyncio.sleep(0.001)
    assert shelves._stores[0].count == MOST
    _kill(agent)
    shelves.ended(0, "a", keep=True)
    assert shelves._stores[0].count == MOST
    shelves.close()


async def test_what_a_node_had_is_for_its_next_agent_after_an_end_that_nobody_wanted() -> None:
    """Killed: kept, twice. Ended by itself, taken away, or its place gone: let go."""
    shelves = FdStores()

    def agent(node: int, pod: str, *names: str) -> dict[str, str]:
        with shelves.open(node, pod) as end:
            found = _contents(end)
            for name in names:
                _lay(end, name)
        return found

    assert agent(0, "a", "x", "y") == agent(1, "other", "z") == {}
    shelves.ended(0, "a", keep=True)
    assert agent(0, "b") == {"x": "x", "y": "y"}
    shelves.ended(0, "b", keep=True)
    assert agent(0, "c", "z") == {"x": "x", "y": "y"}
    shelves.ended(0, "b", keep=False)  # an older one's end is no news
    shelves.ended(0, "c", keep=False)
    assert agent(0, "d", "w") == {}
    shelves.ended(0, "d", keep=True)
    shelves.ended(0, "a", keep=False)
    shelves.ended(0, "d", keep=False)
    assert agent(0, "e") == {}
    shelves.ended(1, "other", keep=True)
    assert agent(1, "next") == {"z": "z"}
    shelves.close()


async def test_what_a_living_agent_has_is_not_handed_to_a_second_one() -> None:
    """Both would write to the same slots; the first one's memory is its own from then on."""
    shelves = FdStores()
    with shelves.open(0, "a") as first:
        _lay(first, "x")
        with shelves.open(0, "b") as second:
            assert _contents(second) == {}
            with pytest.raises(BrokenPipeError):
                _lay(first, "y")
            _lay(second, "z")
            shelves.ended(0, "a", keep=False)
        shelves.ended(0, "b", keep=True)
    with shelves.open(0, "c") as third:
        assert _contents(third) == {"z": "z"}
    shelves.close()


async def test_all_nodes_together_have_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what this process may open; what a node frees another may have."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8, 8))
    shelves = FdStores()
    with shelves.open(0, "a") as one, shelves.open(1, "b") as two:
        for number in range(3):
            _lay(one, f"x{number}")
            _lay(two, f"y{number}")
        shelves.ended(0, "a", keep=True)
        shelves.ended(1, "b", keep=True)
    assert [shelves._stores[node].count for node in (0, 1)] == [3, 1]
    shelves.close()


_RUNNER = """
    import os, sys, time, socket
    from holdfast_cli.runner.fd_store import FdStore, close_all
    agent = socket.socket(fileno=int(sys.argv[1]))
    shelf = FdStore(0, close_all, lambda: True)
    shelf._socket = agent
    while not shelf.count:
        shelf.take_in(10)
        time.sleep(0.01)
    in_flight = shelf.connect()
    print("held", flush=True)
    time.sleep(600)
"""


def test_no_byte_is_left_when_the_runner_is_killed() -> None:
    """Also not of what was on its way to the next agent."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    runner = _start(_RUNNER, theirs)
    memory = os.memfd_create(ARENA, os.MFD_CLOEXEC)
    before = _shared_memory()
    os.posix_fallocate(memory, 0, 256 * _MIB)
    shown = os.open(f"/proc/self/fd/{memory}", os.O_PATH | os.O_CLOEXEC)
    send(ours, Held("a"), shown)
    os.close(shown)
    os.close(memory)
    assert runner.stdout is not None
    assert runner.stdout.readline() == b"held\n"
    ours.close()
    assert _shared_memory() > before + 200 * _MIB, "the runner alone holds it now"
    os.kill(runner.pid, signal.SIGKILL)
    _kill(runner)
    _until(lambda: _shared_memory() < before + 56 * _MIB, "the memory is free")


def _shared_memory() -> int:
    """Return the bytes of shared memory of this machine."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    raise AssertionError
