"""The client of a rank's worker server: values from honest answers, errors from all others."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_agent.health import worker_server
from holdfast_agent.health.worker_server import (
    AnswerError,
    FlightEntry,
    FlightRecord,
    NoAnswerError,
    WorkerServer,
    parse_flight_record,
)

Serve = Callable[..., WorkerServer]
ENTRY = {
    "collective_seq_id": 7,
    "input_dtypes": ["Float"],
    "input_sizes": [[3, 4]],
    "is_p2p": False,
    "op_id": 8,
    "output_dtypes": ["Float"],
    "output_sizes": [[3, 4]],
    "pg_id": 0,
    "process_group": ["0", "default_pg"],
    "profiling_name": "gloo:all_reduce",
    "record_id": 6,
    "retired": True,
    "state": "scheduled",
    "time_created_ns": 1795686310610797108,
    "timeout_ms": 1800000,
}
"""As torch 2.15 writes it."""


def answer(body: bytes, status: str = "200 OK") -> bytes:
    """Return an answer in the form of torch's server."""
    head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Answer one request with given pieces of bytes, `pause` seconds before each."""
    threads: list[threading.Thread] = []
    listeners: list[socket.socket] = []

    def start(*pieces: bytes, pause: float = 0.0) -> WorkerServer:
        path = tmp_path / f"{len(listeners)}.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(10)
        listeners.append(listener)

        def reply() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                for piece in pieces:
                    time.sleep(pause)
                    try:
                        connection.sendall(piece)
                    except OSError:  # the client has given up
                        return

        threads.append(threading.Thread(target=reply))
        threads[-1].start()
        return WorkerServer(path)

    yield start
    for thread in threads:
        thread.join(10)
    for listener in listeners:
        listener.close()


def test_a_flight_record_becomes_values(serve: Serve) -> None:
    """Each entry's group, number, name, sizes, dtypes and time are read."""
    body = {"entries": [ENTRY], "pg_config": {"0": {"name": "0", "desc": "", "ranks": "[0, 1]"}}}
    record = parse_flight_record(serve(answer(json.dumps(body).encode())).flight_trace(5))
    assert record.entries == (
        FlightEntry(
            group="0",
            description="default_pg",
            sequence=7,
            operation="gloo:all_reduce",
            sizes=((3, 4),),
            dtypes=("Float",),
            created_ns=1795686310610797108,
            is_p2p=False,
        ),
    )
    assert record.ranks == {"0": (0, 1)}


def test_without_a_collective_there_are_no_entries(serve: Serve) -> None:
    """Torch leaves the key out before the first collective."""
    body = (
        b'{"comm_lib_version":"","nccl_comm_state":{},"pg_config":{},"pg_status":{},"version":"2"}'
    )
    assert parse_flight_record(serve(answer(body)).flight_trace(5)).entries == ()


def test_the_groups_of_gloo_have_no_ranks() -> None:
    """Gloo writes every group under an empty name, so the ranks are those of any group."""
    body = b'{"pg_config":{"":{"desc":"","name":"","ranks":"[0, 1]"}}}'
    assert not any(parse_flight_record(body).ranks.values())


def test_a_traceback_is_read(serve: Serve) -> None:
    """It is plain text."""
    assert serve(answer(b"Thread 0x1\n")).traceback(5) == "Thread 0x1\n"


def test_a_path_that_nobody_serves_is_no_answer(tmp_path: Path) -> None:
    """A missing socket, one without a server and a path that is too long are the same error."""
    left = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(left))
    for path in (tmp_path / "none.sock", left, tmp_path / ("x" * 200)):
        with pytest.raises(NoAnswerError, match=r"fr_trace_json: "):
            WorkerServer(path).flight_trace(1)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(answer(b"no handler", "404 Not Found"), id="404"),
        pytest.param(answer(b"", "500 Internal Server Error"), id="500"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\n", id="half a head"),
        pytest.param(answer(b"pong")[:-1], id="torn"),
        pytest.param(answer(b"pong") + b"more", id="too long"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\npong", id="no length"),
        pytest.param(b"SSH-2.0-OpenSSH\r\n\r\n", id="no HTTP"),
        pytest.param(b"HTTP/1.1 \xff\xfe\r\n\r\n", id="no status"),
    ],
)
def test_a_wrong_answer_is_an_error_of_its_own(serve: Serve, wrong: bytes) -> None:
    """Whatever the rank's process writes, the caller gets this error."""
    with pytest.raises(AnswerError, match=r"\.sock: fr_trace_json: "):
        serve(wrong).flight_trace(5)


def test_silence_and_a_trickle_of_bytes_end_at_the_deadline(serve: Serve) -> None:
    """The deadline is for the whole answer, not for each byte of it."""
    for pieces in ((b"",), tuple(answer(b"x" * 100)[at : at + 1] for at in range(20))):
        server = serve(*pieces, pause=0.1)
        began = time.monotonic()
        with pytest.raises(NoAnswerError, match="no answer within"):
            server.flight_trace(0.05)
        assert time.monotonic() - began < 1.0


def test_an_endless_answer_is_cut_off(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank cannot fill the agent's memory."""
    monkeypatch.setattr(worker_server, "MAX_BYTES", 100_000)
    with pytest.raises(AnswerError, match="longer than 100000 bytes"):
        serve(*[b"x" * 60_000] * 3).flight_trace(5)


BROKEN: list[tuple[str, Any]] = [
    ("process_group", None),
    ("process_group", ["0"]),
    ("process_group", [0, 1]),
    ("collective_seq_id", -1),
    ("collective_seq_id", True),
    ("collective_seq_id", 1.5),
    ("collective_seq_id", 2**70),
    ("input_sizes", {}),
    ("input_sizes", [3]),
    ("input_sizes", [["3"]]),
    ("input_dtypes", "Float"),
    ("profiling_name", 4),
    ("time_created_ns", "now"),
    ("is_p2p", 0),
]


@pytest.mark.parametrize(("field", "value"), BROKEN)
def test_a_value_of_another_type_is_named(field: str, value: object) -> None:
    """The error says which field of which entry is wrong."""
    body = json.dumps({"entries": [ENTRY, {**ENTRY, field: value}]}).encode()
    with pytest.raises(AnswerError, match=rf"entries\[1\]\.{field}"):
        parse_flight_record(body)


@pytest.mark.parametrize("sizes", [[[True, 4]], [[3.0, 4]], ["34"], [[[3, 4]]], "[[3, 4]]"])
def test_a_value_that_looks_like_that_of_the_entry_before_is_named(sizes: object) -> None:
    """What is shared between entries is equal in type, too."""
    before = {**ENTRY, "input_sizes": [[1, 4]]}
    body = json.dumps({"entries": [ENTRY, before, {**ENTRY, "input_sizes": sizes}]}).encode()
    with pytest.raises(AnswerError, match=r"entries\[2\]\.input_sizes"):
        parse_flight_record(body)


@pytest.mark.parametrize("body", [b"", b"\xff", b"{", b"[]", b"[" * 100_000, b"1" * 5_000])
def test_what_is_no_object_is_an_error(body: bytes) -> None:
    """Torn, too deep and other JSON: none reaches the caller as another error."""
    with pytest.raises(AnswerError):
        parse_flight_record(body)


def test_half_of_a_surrogate_pair_becomes_text_that_the_wire_takes() -> None:
    """JSON can hold what UTF-8 cannot."""
    body = json.dumps({"entries": [{**ENTRY, "profiling_name": "\ud800"}]}).encode()
    assert parse_flight_record(body).entries[0].operation == "?"


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(
    field=st.sampled_from(sorted(ENTRY)),
    value=ANY_JSON,
    groups=ANY_JSON,
    body=st.none() | st.binary(),
)
def test_any_answer_gives_a_record_or_this_error(
    *, field: str, value: object, groups: object, body: bytes | None
) -> None:
    """No answer raises anything else."""
    hostile = {"entries": [{**ENTRY, field: value}], "pg_config": groups}
    with contextlib.suppress(AnswerError):
        record = parse_flight_record(json.dumps(hostile).encode() if body is None else body)
        assert isinstance(record, FlightRecord)
