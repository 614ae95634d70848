"""Refused TLS handshakes: recognised in gRPC's own words, logged by reason, counted."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import certificates
from holdfast_master.handshake_log import HandshakeReason, LogSorter, Passed, Refused, Said
from holdfast_wire import channel
from holdfast_wire.identity import Identity
from master_process import JOB, MasterProcess, master_process

TRACE = (
    b"I1121 23:07:07.5 20893 handshaker.cc:80] handshake_manager 0x7f: adding handshaker x\n"
    b"I1121 23:07:07.5 20893 handshaker.cc:155] CallNextHandshakerLocked: error=OK shutdown=false "
    b"index=0, args={grpc.internal.endpoint_peer_address=ipv4:127.0.0.1:50000}\n"
    b"I1121 23:07:07.5 20893 ssl_transport_security.cc:2563] Handshake failed with error "
    b"SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: "
    b"certificate has expired\n"
    b"I1121 23:07:07.5 20893 handshaker.cc:155] CallNextHandshakerLocked: error=UNKNOWN: Ssl "
    b"handshake failed (TSI_PROTOCOL_FAILURE): CERTIFICATE_VERIFY_FAILED: certificate has "
    b"expired: OK\n"
    b"=== Source Location Trace: ===\n"
    b"src/core/util/status_helper.cc:68\n"
    b" shutdown=false index=2, args={endpoint=0x1, "
    b"grpc.internal.endpoint_peer_address=ipv4:127.0.0.1:50000, x=y}\n"
    b"I1121 23:07:07.5 20893 channel_trace.h:396] handshake manager 0x7f: Failed with error: "
    b"UNKNOWN: Ssl handshake failed\n"
    b"=== Source Location Trace: ===\n"
    b"src/core/util/status_helper.cc:68\n"
    b"\n"
)
EXPIRED = Refused(
    HandshakeReason.EXPIRED,
    "127.0.0.1:50000",
    "UNKNOWN: Ssl handshake failed (TSI_PROTOCOL_FAILURE): CERTIFICATE_VERIFY_FAILED: "
    "certificate has expired: OK",
)


@pytest.mark.parametrize("size", [1, 7, 100, 100_000])
def test_a_refusal_is_found_however_the_stream_is_cut(size: int) -> None:
    """One refusal with its peer, whatever pieces the lines come in."""
    sorter = LogSorter()
    found = [
        item
        for start in range(0, len(TRACE), size)
        for item in sorter.feed(TRACE[start : start + size])
    ]
    assert [*found, *sorter.flush()] == [EXPIRED]


def test_other_lines_pass_unchanged_and_in_order() -> None:
    """What is not about handshakes reaches standard error as it was written."""
    other = b"Fatal: something\n  with a second line\n\nno end"
    sorter = LogSorter()
    found = [*sorter.feed(b"before\n" + TRACE + other), *sorter.flush()]
    passed = b"".join(item.data for item in found if isinstance(item, Passed))
    assert passed == b"before\n" + other
    assert [item for item in found if isinstance(item, Refused)] == [EXPIRED]


def test_grpcs_other_records_keep_their_severity() -> None:
    """A warning of the library becomes a warning in the log."""
    line = b"W1121 23:07:07.5 20893 tcp.cc:1] address not available\n"
    assert LogSorter().feed(line) == [Said("W", "address not available")]


def test_without_the_tracer_the_library_line_counts() -> None:
    """A gRPC whose tracer has gone still tells reasons, without peers."""
    line = next(line for line in TRACE.splitlines(keepends=True) if b"ssl_transport" in line)
    (found,) = LogSorter().feed(line)
    assert isinstance(found, Refused)
    assert (found.reason, found.peer) == (HandshakeReason.EXPIRED, "")


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MasterProcess]:
    """Run one master for all clients."""
    with master_process(tmp_path_factory.mktemp("master")) as running:
        yield running


def call(master: MasterProcess, credentials: grpc.ChannelCredentials | None) -> None:
    """Call the master; it must not work."""
    target = f"127.0.0.1:{master.port}"
    options = channel.master_channel_options(JOB)
    made = (
        grpc.secure_channel(target, credentials, options=options)
        if credentials
        else grpc.insecure_channel(target)
    )
    check: Any = made.unary_unary("/grpc.health.v1.Health/Check")
    with made, pytest.raises(grpc.RpcError) as caught:
        check(b"", timeout=2)
    error: Any = caught.value
    assert error.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}


def with_our_authority(master: MasterProcess, theirs: Path | None) -> grpc.ChannelCredentials:
    """Return credentials of a client that trusts the master and shows another certificate."""
    ours = certificates.issue(master.directory, Identity(JOB, "agent", 0))
    ca = (ours / "ca.pem").read_bytes()
    if theirs is None:
        return grpc.ssl_channel_credentials(ca)
    key, certificate = (theirs / "key.pem").read_bytes(), (theirs / "cert.pem").read_bytes()
    return grpc.ssl_channel_credentials(ca, key, certificate)


def logged(master: MasterProcess, reason: str) -> dict[str, Any]:
    """Wait for the log line of one reason and return the newest."""
    lines: list[dict[str, Any]] = master.wait_for(
        lambda: [line for line in master.lines("handshake refused") if line["reason"] == reason]
    )
    return lines[-1]


def test_an_expired_certificate_is_refused_and_logged(master: MasterProcess) -> None:
    """With peer, count and gRPC's own words."""
    expired = certificates.issue_expired(master.directory / "x", Identity(JOB, "agent", 1))
    call(master, channel.channel_credentials(expired))
    line = logged(master, "expired")
    assert line["peer"].startswith("127.0.0.1:")
    assert line["total"] >= 1
    assert "certificate has expired" in line["detail"]
    assert line["level"] == "warning"


def test_an_agent_of_another_job_is_refused_and_logged(master: MasterProcess) -> None:
    """It refuses this master first; where it does not, its certificate is refused."""
    other = certificates.issue(master.directory, Identity("j2", "agent", 0))
    call(master, channel.channel_credentials(other))
    assert "does not trust this job's authority" in logged(master, "client_left")["message"]
    call(master, with_our_authority(master, other))
    assert "another job's authority" in logged(master, "unknown_authority")["message"]


def test_a_plaintext_client_is_refused_and_logged(master: MasterProcess) -> None:
    """Nothing is ever answered in the clear."""
    call(master, None)
    assert "spoke no TLS" in logged(master, "plaintext")["message"]


def test_a_client_without_a_certificate_is_refused_and_logged(master: MasterProcess) -> None:
    """Knowing the authority is not enough."""
    call(master, with_our_authority(master, None))
    assert "no certificate" in logged(master, "no_certificate")["message"]


def test_a_certificate_of_another_root_key_is_refused(master: MasterProcess) -> None:
    """The job's uid in a name is worth nothing without the operator's key."""
    forged = certificates.issue(
        master.directory / "forged", Identity(JOB, "agent", 0), root_key=b"x" * 32
    )
    before = len(master.lines("handshake refused"))
    call(master, with_our_authority(master, forged))
    master.wait_for(lambda: len(master.lines("handshake refused")) > before)


def test_a_flood_of_probes_is_counted_in_few_lines(master: MasterProcess) -> None:
    """A hundred probes make a line or two, and none is left out of the count."""
    lines = master.lines("handshake refused")
    before = max((line["total"] for line in lines if line["reason"] == "client_left"), default=0)
    for _ in range(100):
        socket.create_connection(("127.0.0.1", master.port)).close()
    master.wait_for(lambda: logged(master, "client_left")["total"] >= before + 100)
    assert len(master.lines("handshake refused")) - len(lines) < 20


def test_good_clients_are_served_meanwhile(master: MasterProcess) -> None:
    """What is refused disturbs nobody."""
    with master.channel(Identity(JOB, "user")) as made:
        check: Any = made.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=5) == b"\x08\x01"
