"""Settings of grpc-core that are chosen before it is loaded.

Belongs here: choices that it reads from the environment. Does not belong here: options of a server
or a channel (see `holdfast_wire.channel`).
"""

from __future__ import annotations

from collections.abc import MutableMapping

EXPERIMENTS = "GRPC_EXPERIMENTS"
POLLER = "-event_engine_listener"
"""The thread that waits for calls reads the connections as well. gRPC's newer way, its default
since 1.7x, wakes a thread of a pool for each message, which costs more than the message."""


def choose_poller(environment: MutableMapping[str, str]) -> None:
    """Ask grpc-core, which is yet to be loaded, for the cheaper poller; a user's choice stays."""
    environment.setdefault(EXPERIMENTS, POLLER)
