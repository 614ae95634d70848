"""Channels and servers of a job over real TLS: who gets through, and what a refusal says."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast_wire import channel, errors, keys
from holdfast_wire.errors import Refusal
from holdfast_wire.identity import Identity
from messages import certificates

JOB = "job-1"
METHOD = "/test.Service/WhoAmI"


class Server:
    """A server of one role that tells callers who they are."""

    def __init__(self, directory: Path, role: str, *, issue: bool = True) -> None:
        self._threads = ThreadPoolExecutor(2)
        self._server = grpc.server(self._threads, options=channel.SERVER_OPTIONS)
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
            self._answer
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test.Service", {"WhoAmI": handler}),)
        )
        tls = directory / f"{JOB}-{role}"
        if issue:
            identity = Identity(JOB, role, 0 if role == "agent" else None)
            tls = certificates.issue(directory, identity)
        self.port = self._server.add_secure_port("127.0.0.1:0", channel.server_credentials(tls))
        self._server.start()

    def _answer(self, data: bytes, context: Any) -> bytes:
        identity = channel.peer_identity(context.auth_context())
        if data == b"refuse":
            refusal = Refusal(
                grpc.StatusCode.FAILED_PRECONDITION, "TEST", "no – really", {"key": "value"}
            )
            context.abort_with_status(errors.status(refusal))
        return b"nobody" if identity is None else identity.uri().encode()

    def stop(self) -> None:
        """End it."""
        self._server.stop(0).wait(5)
        self._threads.shutdown()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where this module's certificates lie."""
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def master(directory: Path) -> Iterator[Server]:
    """Serve as a master."""
    server = Server(directory, "master")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def agent(directory: Path) -> Iterator[Server]:
    """Serve as an agent."""
    server = Server(directory, "agent")
    yield server
    server.stop()


def ask(server: Server, tls: Path | None, options: Any, data: bytes = b"") -> bytes:
    """Call the server with the credentials in `tls`; None: in the clear."""
    target = f"127.0.0.1:{server.port}"
    made = (
        grpc.insecure_channel(target)
        if tls is None
        else grpc.secure_channel(target, channel.channel_credentials(tls), options=options)
    )
    with made:
        call: Any = made.unary_unary(METHOD)
        answer: bytes = call(data, timeout=2)
        return answer


@pytest.mark.parametrize(
    "identity",
    [Identity(JOB, "agent", 7), Identity(JOB, "user"), Identity(JOB, "operator")],
    ids=Identity.describe,
)
def test_a_server_knows_its_caller(master: Server, directory: Path, identity: Identity) -> None:
    """The name in the certificate is what the server sees."""
    tls = certificates.issue(directory, identity)
    options = channel.master_channel_options(JOB)
    assert ask(master, tls, options) == identity.uri().encode()


def test_an_agent_serves_its_peers(agent: Server, directory: Path) -> None:
    """Agents dial agents under the name that all agents' certificates have."""
    tls = certificates.issue(directory, Identity(JOB, "agent", 7))
    assert ask(agent, tls, channel.peer_channel_options(JOB)) == b"holdfast://job-1/agent/7"


def test_an_agent_cannot_play_the_master(agent: Server, directory: Path) -> None:
    """A client that expects the master does not talk to a server with an agent's certificate."""
    tls = certificates.issue(directory, Identity(JOB, "user"))
    with pytest.raises(grpc.RpcError):
        ask(agent, tls, channel.master_channel_options(JOB))


def test_strangers_do_not_get_through(master: Server, directory: Path) -> None:
    """Another job, an expired certificate, another root key, no TLS at all."""
    user = Identity(JOB, "user")
    strangers = [
        certificates.issue(directory, Identity("job-2", "user")),
        certificates.issue_expired(directory / "expired", user),
        certificates.issue(directory / "forged", user, root_key=b"f" * 32),
        None,
    ]
    for tls in strangers:
        with pytest.raises(grpc.RpcError) as caught:
            ask(master, tls, channel.master_channel_options(JOB))
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.UNAVAILABLE, tls


def test_a_server_does_not_share_its_port(master: Server, directory: Path) -> None:
    """A successor that asks for a zombie's port is told, instead of getting half the calls."""
    second = grpc.server(ThreadPoolExecutor(1), options=channel.SERVER_OPTIONS)
    tls = certificates.issue(directory, Identity(JOB, "master"))
    with pytest.raises(RuntimeError, match="Failed to bind"):
        second.add_secure_port(f"127.0.0.1:{master.port}", channel.server_credentials(tls))


def test_a_refusal_comes_back_whole(master: Server, directory: Path) -> None:
    """Code, reason, text and metadata survive the way; the domain is ours."""
    tls = certificates.issue(directory, Identity(JOB, "user"))
    with pytest.raises(grpc.RpcError) as caught:
        ask(master, tls, channel.master_channel_options(JOB), b"refuse")
    refusal = errors.read(caught.value)
    assert refusal == Refusal(
        grpc.StatusCode.FAILED_PRECONDITION, "TEST", "no – really", {"key": "value"}
    )


def test_a_server_uses_a_certificate_that_was_renewed_for_new_connections(tmp_path: Path) -> None:
    """Expired: nobody gets in. Renewed in its files: the same server serves again."""
    identity = Identity(JOB, "master")
    certificates.issue_expired(tmp_path, identity)
    server = Server(tmp_path, "master", issue=False)
    try:
        tls = certificates.issue(tmp_path, Identity(JOB, "user"))
        options = channel.master_channel_options(JOB)
        with pytest.raises(grpc.RpcError):
            ask(server, tls, options)
        certificates.issue(tmp_path, identity)
        assert ask(server, tls, options) == Identity(JOB, "user").uri().encode()
        (tmp_path / f"{JOB}-master" / "cert.pem").unlink()  # unreadable for a moment
        assert ask(server, tls, options) == Identity(JOB, "user").uri().encode()
    finally:
        server.stop()


def test_an_error_without_details_has_an_unknown_reason(directory: Path) -> None:
    """Nobody listens: code and text, and no guess at a reason."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    tls = certificates.issue(directory, Identity(JOB, "user"))
    options = channel.master_channel_options(JOB)
    credentials = channel.channel_credentials(tls)
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as made:
        call: Any = made.unary_unary(METHOD)
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=2)
    refusal = errors.read(caught.value)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "UNKNOWN")


def test_large_answers_of_a_master_arrive_whole(directory: Path) -> None:
    """A list of events is several hundred kilobytes: more than one TLS record, and one window."""

    def ack(request: bytes, _: grpc.ServicerContext) -> bytes:
        return request

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(ack)
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, options=channel.MASTER_SERVER_OPTIONS)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test.Service", {"WhoAmI": handler}),)
        )
        tls = certificates.issue(directory, Identity(JOB, "master"))
        port = server.add_secure_port("127.0.0.1:0", channel.server_credentials(tls))
        server.start()
        user = certificates.issue(directory, Identity(JOB, "user"))
        made = grpc.secure_channel(
            f"127.0.0.1:{port}",
            channel.channel_credentials(user),
            options=channel.master_channel_options(JOB),
        )
        with made:
            call: Any = made.unary_unary(METHOD)
            for size in (1_000, 17_000, 70_000, 300_000, 2_000_000):
                data = random.Random(size).randbytes(size)
                assert call(data, timeout=10, wait_for_ready=True) == data, size
        server.stop(None)


def test_twenty_clients_get_through_at_once(master: Server, directory: Path) -> None:
    """A herd's handshakes take longer than one; none is given up too early."""
    tls = certificates.issue(directory, Identity(JOB, "user"))
    answers: list[bytes] = []

    def one() -> None:
        target = f"127.0.0.1:{master.port}"
        options = channel.master_channel_options(JOB)
        credentials = channel.channel_credentials(tls)
        with grpc.secure_channel(target, credentials, options=options) as made:
            call: Any = made.unary_unary(METHOD)
            answers.append(call(b"", timeout=20, wait_for_ready=True))

    threads = [threading.Thread(target=one) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(answers) == 20


def test_options_bound_messages_and_back_off() -> None:
    """Every side keeps the same limits."""
    for options in (channel.SERVER_OPTIONS, channel.master_channel_options(JOB)):
        values = dict(options)
        assert values["grpc.max_receive_message_length"] == keys.MAX_MESSAGE_BYTES
        assert values["grpc.max_send_message_length"] == keys.MAX_MESSAGE_BYTES
    client = dict(channel.master_channel_options(JOB))
    assert client["grpc.initial_reconnect_backoff_ms"] == 50
    assert client["grpc.max_reconnect_backoff_ms"] == 1_000
    assert client["grpc.min_reconnect_backoff_ms"] == 10_000, "the time for one attempt"
