"""gRPC channels and servers of a job: mTLS, keepalive, sizes, and the identity of a peer.

Settings of the transport only; no service and no retry policy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import grpc

from holdfast_wire import keys
from holdfast_wire.identity import Identity, IdentityError, agent_host, master_host, parse

Options = list[tuple[str, int | str]]

_KEEPALIVE: Options = [
    # A vanished peer is noticed after 2 + 2 s even if nothing is sent. A frozen one is not: its
    # kernel still answers TCP, and gRPC gives the ping itself 60 s. That is intended: a frozen
    # agent falls silent, which the master judges, and a frozen master keeps its agents.
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", keys.MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", keys.MAX_MESSAGE_BYTES),
]

SERVER_OPTIONS: Options = [
    *_KEEPALIVE,
    # An outdated master must not share the port with its successor.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
]
"""Options of every gRPC server of a job."""

_MASTER: Options = [
    # Messages are small, and a window of 64 KiB holds hundreds. The probe's pings, one for each
    # heartbeat, would measure nothing and cost a third of the heartbeat.
    ("grpc.http2.bdp_probe", 0),
    # Statistics of each connection, which take 1 KB of each, have no reader.
    ("grpc.enable_channelz", 0),
]

_MASTER_PINGS: Options = [
    # A vanished agent is silent, and silence is judged sooner than this. The master's own pings
    # only clear away connections that nobody holds any more, users' among them.
    ("grpc.keepalive_time_ms", 10_000)
]

MASTER_SERVER_OPTIONS: Options = list(
    (dict(SERVER_OPTIONS) | dict(_MASTER) | dict(_MASTER_PINGS)).items()
)
"""Options of the master's server, which thousands of agents connect to."""


class CredentialsError(Exception):
    """The certificate files cannot be used; the text names the file and the remedy."""


def channel_options(host: str) -> Options:
    """A client's options; host: the DNS name that the server's certificate must have."""
    return [
        *_KEEPALIVE,
        ("grpc.ssl_target_name_override", host),
        # gRPC's own default waits 1 s after the first refusal.
        ("grpc.initial_reconnect_backoff_ms", 50),
        # Despite its name, the longest time of one attempt.
        ("grpc.min_reconnect_backoff_ms", 10_000),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # Each session owns its connection: a shared subchannel would share its back-off.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]


def master_channel_options(job_uid: str, connect_seconds: float = 10.0) -> Options:
    """The options of a channel to a job's master.

    A master that vanished with its machine is noticed after 5 + 2 s. Its successor needs longer to
    start, and the pings of ten thousand agents cost the master as much as their heartbeats.

    connect_seconds: longest attempt to connect, its handshake included, s.
    """
    options = dict(channel_options(master_host(job_uid))) | dict(_MASTER)
    options |= {
        "grpc.keepalive_time_ms": 5_000,
        "grpc.min_reconnect_backoff_ms": int(connect_seconds * 1_000),
    }
    return list(options.items())


_OPERATOR_PINGS_PER_SECOND = 400
"""Most pings of all channels of an operator: each takes 80 µs of its core."""


def operator_channel_options(
    job_uid: str, connect_seconds: float = 10.0, *, channels: int = 1
) -> Options:
    """The options of the operator's channel to a job's master: more pings.

    An unreachable master is judged. So its peer's end is noticed after 1 + 1 s; with more than 400
    `channels`, one to each job, all of them together send 400 pings a second.
    """
    options = dict(master_channel_options(job_uid, connect_seconds))
    seconds = max(1.0, channels / _OPERATOR_PINGS_PER_SECOND)
    own = {
        "grpc.keepalive_time_ms": int(seconds * 1_000),
        "grpc.keepalive_timeout_ms": 1_000,
        # Streams are opened anew by their owner; gRPC's own retries keep 15 kB for each channel.
        "grpc.enable_retries": 0,
    }
    return list((options | own).items())


def agent_channel_options(job_uid: str, connect_seconds: float = 10.0) -> Options:
    """The options of an agent's channel to its job's master: fewer pings.

    Its heartbeats are pings enough: TCP gives up when one is not acknowledged within the
    keepalive's 2 s, so a vanished master is noticed as soon. gRPC's own pings would cost the master
    of 3,000 agents as much again as a heartbeat per 5 s.
    """
    options = dict(master_channel_options(job_uid, connect_seconds))
    return list((options | {"grpc.keepalive_time_ms": 60_000}).items())


def peer_channel_options(job_uid: str) -> Options:
    """The options of a channel to another agent of the job."""
    return channel_options(agent_host(job_uid))


def server_credentials(
    tls_dir: Path, on_connection: Callable[[], None] | None = None
) -> grpc.ServerCredentials:
    """Credentials that require a certificate of the job's CA from every client.

    Renewed files are used for later connections. on_connection: called once for each new
    connection, before its handshake, in a thread of gRPC's.

    Raises:
        CredentialsError: a file is missing or unreadable.
    """
    renewal = _Renewal(tls_dir, on_connection)
    return grpc.dynamic_ssl_server_credentials(
        renewal.read(),
        renewal,  # type: ignore[arg-type] # None is the documented answer for "as before"
        require_client_authentication=True,
    )


def channel_credentials(tls_dir: Path) -> grpc.ChannelCredentials:
    """A client's credentials, as the files are now.

    Raises:
        CredentialsError: a file is missing or unreadable.
    """
    ca, certificate, key = _read(tls_dir)
    return grpc.ssl_channel_credentials(ca, key, certificate)


def peer_identity(auth_context: Mapping[str, Sequence[bytes]]) -> Identity | None:
    """The identity of a call's peer; None: its certificate carries no name of ours."""
    for name in auth_context.get("x509_subject_alternative_name", ()):
        with contextlib.suppress(IdentityError, UnicodeDecodeError):
            return parse(name.decode())
    return None


class _Renewal:
    """Reads a server's certificate again after a change; gRPC asks at every handshake."""

    def __init__(self, tls_dir: Path, on_connection: Callable[[], None] | None) -> None:
        self._tls_dir = tls_dir
        self._on_connection = on_connection
        self._seen: tuple[int, int] = (0, 0)

    def read(self) -> grpc.ServerCertificateConfiguration:
        """The files' present content; raises CredentialsError."""
        seen = self._mark()
        ca, certificate, key = _read(self._tls_dir)
        self._seen = seen
        return grpc.ssl_server_certificate_configuration([(key, certificate)], ca)

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        """A changed certificate; None: no change, or it cannot be read now."""
        if self._on_connection is not None:
            self._on_connection()
        with contextlib.suppress(CredentialsError):
            if self._mark() != self._seen:
                return self.read()
        return None

    def _mark(self) -> tuple[int, int]:
        try:
            found = (self._tls_dir / keys.CERT_FILE).stat()
        except OSError:
            return (0, 0)
        return found.st_ino, found.st_mtime_ns


def _read(tls_dir: Path) -> tuple[bytes, bytes, bytes]:
    data = []
    for name in (keys.CA_FILE, keys.CERT_FILE, keys.KEY_FILE):
        path = tls_dir / name
        try:
            data.append(path.read_bytes())
        except OSError as error:
            raise CredentialsError(
                f"certificate file {path} cannot be read ({error.strerror}); "
                f"{keys.ENV_TLS_DIR} must name a directory with {keys.CA_FILE}, "
                f"{keys.CERT_FILE} and {keys.KEY_FILE}"
            ) from error
    return data[0], data[1], data[2]
