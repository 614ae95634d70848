"""Strangers at the master's port: refused in the handshake, counted, and gRPC's reason is kept."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast_wire import channel
from holdfast_wire.identity import Identity
from masters.master_process import JOB, MasterProcess, master_process
from messages import certificates

pytestmark = pytest.mark.slow  # each starts masters, which takes a core half a second

PROBES = 100


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MasterProcess]:
    """Run a master."""
    with master_process(tmp_path) as running:
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


def counted(master: MasterProcess) -> int:
    """Stop the master and return how many connections showed no identity."""
    assert master.stop() == 0
    (line,) = master.lines("exiting: stopped")
    return int(line["unidentified"])


def serve_a_good_client(master: MasterProcess) -> None:
    """Call the master twice on one connection; it must work."""
    with master.channel(Identity(JOB, "user")) as made:
        check: Any = made.unary_unary("/grpc.health.v1.Health/Check")
        for _ in range(2):
            assert check(b"", timeout=5) == b"\x08\x01"


def strangers(master: MasterProcess) -> dict[str, grpc.ChannelCredentials | None]:
    """Return credentials of which none is good, by what is wrong with them."""
    directory = master.directory
    expired = certificates.issue_expired(directory / "x", Identity(JOB, "agent", 1))
    other = certificates.issue(directory, Identity("j2", "agent", 0))
    agent = Identity(JOB, "agent", 0)
    forged = certificates.issue(directory / "forged", agent, root_key=b"x" * 32)
    return {
        "expired": channel.channel_credentials(expired),
        "another job's, which does not trust this master": channel.channel_credentials(other),
        "another job's": with_our_authority(master, other),
        "of another root key": with_our_authority(master, forged),
        "none": with_our_authority(master, None),
        "no TLS": None,
    }


def test_every_stranger_is_refused_and_counted(master: MasterProcess) -> None:
    """Whatever is wrong with its certificate; good clients are served before and after."""
    serve_a_good_client(master)
    made = strangers(master)
    for credentials in made.values():
        call(master, credentials)
    serve_a_good_client(master)
    assert counted(master) >= len(made)


def test_clients_with_an_identity_are_not_counted(master: MasterProcess) -> None:
    """A connection with an identity is none without, however many calls it makes."""
    for _ in range(3):
        serve_a_good_client(master)
    assert counted(master) == 0


def test_a_flood_of_probes_is_counted_one_by_one(master: MasterProcess) -> None:
    """They say nothing at all, and none of them takes a good client's place."""
    for _ in range(PROBES):
        socket.create_connection(("127.0.0.1", master.port)).close()
    serve_a_good_client(master)
    assert counted(master) == PROBES


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("expired", "certificate has expired"),
        ("another job's", "unable to get local issuer certificate"),
        ("none", "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        ("no TLS", "WRONG_VERSION_NUMBER"),
    ],
)
def test_the_runbook_s_words_stand_in_the_log(
    master: MasterProcess, wrong: str, words: str
) -> None:
    """They are gRPC's: where a release changes them, this page of ours changes."""
    call(master, strangers(master)[wrong])
    runbook = Path(__file__).parents[3] / "docs" / "runbook.md"
    assert words in runbook.read_text(encoding="utf-8")
    master.wait_for(lambda: words in master.text())
