"""gRPC channels and servers of a job: mTLS, keepalive, sizes, and who is at the other end.

Settings of the transport only; no service and no retry policy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc

from holdfast_wire import keys
from holdfast_wire.identity import Identity, IdentityError, agent_host, master_host, parse

Options = list[tuple[str, int | str]]

_KEEPALIVE: Options = [
    # A vanished peer is noticed after 2 + 2 s even where nothing is sent. A frozen one is not: its
    # kernel still answers TCP, and gRPC gives the ping itself 60 s. That is what is wanted: a
    # frozen agent falls silent, which the master judges, and a frozen master keeps its agents.
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", keys.MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", keys.MAX_MESSAGE_BYTES),
]

SERVER_OPTIONS: Options = [
    *_KEEPALIVE,
    # A zombie master must not share the port with its successor.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
]
"""Options of every gRPC server of a job."""

_MASTER: Options = [
    # Messages are small and a window of 64 KiB holds hundreds: the probe's pings, one for each
    # heartbeat, would measure nothing and cost a third of what the heartbeat does.
    ("grpc.http2.bdp_probe", 0),
    # Nobody asks gRPC what it knows of each connection, which takes 1 KB of each.
    ("grpc.enable_channelz", 0),
]

_MASTER_PINGS: Options = [
    # A vanished agent is silent, and silence is judged sooner than this: the master's own pings
    # only clear away connections that nobody holds any more, users' among them.
    ("grpc.keepalive_time_ms", 10_000),
]

MASTER_SERVER_OPTIONS: Options = list(
    (dict(SERVER_OPTIONS) | dict(_MASTER) | dict(_MASTER_PINGS)).items()
)
"""Options of the master's server, which thousands of agents are connected to."""


class CredentialsError(Exception):
    """The certificate files cannot be used: names the file and the remedy."""


def channel_options(host: str) -> Options:
    """Return a client's options; `host` is the DNS name that the server's certificate has."""
    return [
        *_KEEPALIVE,
        ("grpc.ssl_target_name_override", host),
        # gRPC's own default waits 1 s after the first refusal.
        ("grpc.initial_reconnect_backoff_ms", 50),
        # Despite its name the time that one attempt may take.
        ("grpc.min_reconnect_backoff_ms", 10_000),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # Each session owns its connection: a shared subchannel would share its back-off.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]


def master_channel_options(job_uid: str, connect_seconds: float = 10.0) -> Options:
    """Return the options of a channel to the master of `job_uid`.

    connect_seconds: how long one attempt may take, its handshake included.

    A master that vanished with its machine is noticed after 5 + 2 s: its successor needs longer to
    start, and the pings of ten thousand agents cost the master as much as their heartbeats.
    """
    options = dict(channel_options(master_host(job_uid))) | dict(_MASTER)
    options |= {
        "grpc.keepalive_time_ms": 5_000,
        "grpc.min_reconnect_backoff_ms": int(connect_seconds * 1_000),
    }
    return list(options.items())


def operator_channel_options(job_uid: str, connect_seconds: float = 10.0) -> Options:
    """Return the options of the operator's channel to the master of `job_uid`; see above.

    There is one for each job, and what it does not reach is judged: its peer's end is noticed after
    1 + 1 s.
    """
    options = dict(master_channel_options(job_uid, connect_seconds))
    pings = {"grpc.keepalive_time_ms": 1_000, "grpc.keepalive_timeout_ms": 1_000}
    return list((options | pings).items())


def agent_channel_options(job_uid: str, connect_seconds: float = 10.0) -> Options:
    """Return the options of an agent's channel to the master of `job_uid`; see above.

    Its heartbeats are pings enough: TCP gives up when one is not acknowledged for the keepalive's
    2 s, so that a vanished master is noticed no later. gRPC's own pings would cost the master of
    3,000 agents as much again as a heartbeat per 5 s.
    """
    options = dict(master_channel_options(job_uid, connect_seconds))
    return list((options | {"grpc.keepalive_time_ms": 60_000}).items())


def peer_channel_options(job_uid: str) -> Options:
    """Return the options of a channel to another agent of `job_uid`."""
    return channel_options(agent_host(job_uid))


def server_credentials(tls_dir: Path) -> grpc.ServerCredentials:
    """Return credentials that ask every client for a certificate of the job's CA.

    Files that are renewed later are used for the connections that begin then.

    Raises:
        CredentialsError: a file is missing or unreadable.
    """
    renewal = _Renewal(tls_dir)
    return grpc.dynamic_ssl_server_credentials(
        renewal.read(),
        renewal,  # type: ignore[arg-type] # None is the documented answer for "as before"
        require_client_authentication=True,
    )


def channel_credentials(tls_dir: Path) -> grpc.ChannelCredentials:
    """Return a client's credentials.

    Raises:
        CredentialsError: a file is missing or unreadable.
    """
    ca, certificate, key = _read(tls_dir)
    return grpc.ssl_channel_credentials(ca, key, certificate)


def peer_identity(auth_context: Mapping[str, Sequence[bytes]]) -> Identity | None:
    """Return who the peer of a call is; None where its certificate carries no name of ours."""
    for name in auth_context.get("x509_subject_alternative_name", ()):
        with contextlib.suppress(IdentityError, UnicodeDecodeError):
            return parse(name.decode())
    return None


class _Renewal:
    """Reads a server's certificate anew when its file has changed; asked at every handshake."""

    def __init__(self, tls_dir: Path) -> None:
        self._tls_dir = tls_dir
        self._seen: tuple[int, int] = (0, 0)

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Return what the files say now; raises CredentialsError."""
        seen = self._mark()
        ca, certificate, key = _read(self._tls_dir)
        self._seen = seen
        return grpc.ssl_server_certificate_configuration([(key, certificate)], ca)

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        """Return what is new; None: nothing, or it cannot be read just now."""
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
