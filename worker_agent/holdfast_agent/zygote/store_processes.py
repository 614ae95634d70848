"""Store processes of a zygote: TCPStores that survive a frozen or dead agent or worker.

They start and end on command, apart from all rounds. Agent and master decide which round uses one.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from holdfast_agent.zygote import preload
from holdfast_agent.zygote.process_tree import die_with_parent, name_process, signal_each
from holdfast_agent.zygote.protocol import Event, StoreExited, StoreReady
from holdfast_agent.zygote.rounds import fork

if TYPE_CHECKING:
    from torch.distributed import TCPStore

_REPORT_BYTES = 4096


@dataclass(slots=True)
class LiveStore:
    """A store process."""

    store_id: str
    report: int
    """Descriptor on which its port, or its error, arrives; -1 after that."""
    reason: str = "the store process ended"
    """Reason of its expected end."""


class StoreProcesses:
    """Store processes of a zygote, by pid."""

    def __init__(self, send: Callable[[Event], None]) -> None:
        """`send` takes events for the agent."""
        self._send = send
        self.live: dict[int, LiveStore] = {}

    def prepare(self, store_id: str, host: str) -> None:
        """Start a store; a living one of the same id stays."""
        problem = check_host(host)
        if problem or any(live.store_id == store_id for live in self.live.values()):
            self._send(StoreExited(store_id, problem or f"store {store_id!r} exists already"))
            return
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        zygote = os.getpid()
        try:
            pid = fork(lambda: _become_store(host, writer, zygote))
        except OSError as error:
            os.close(reader)
            self._send(StoreExited(store_id, f"fork: {error}"))
        else:
            self.live[pid] = LiveStore(store_id, reader)
        os.close(writer)  # not in a finally clause, which would run in the child too

    def release(self, store_id: str, reason: str = "") -> None:
        """End a store; an unknown one is ignored."""
        for pid, live in self.live.items():
            if live.store_id == store_id:
                live.reason = reason
                signal_each([pid], signal.SIGKILL)

    def release_all(self, reason: str) -> None:
        """End all stores."""
        for live in list(self.live.values()):
            self.release(live.store_id, reason)

    def reports(self) -> list[int]:
        """Return the descriptors to poll."""
        return [live.report for live in self.live.values() if live.report >= 0]

    def read_reports(self) -> None:
        """Read ports and errors that have arrived."""
        for live in self.live.values():
            if live.report >= 0:
                self._read_report(live)

    def _read_report(self, live: LiveStore) -> None:
        try:
            text = os.read(live.report, _REPORT_BYTES).decode()
        except BlockingIOError:
            return
        os.close(live.report)
        live.report = -1
        if text.isdecimal():
            self._send(StoreReady(live.store_id, int(text)))
        elif text:
            live.reason = text

    def reaped(self, pid: int) -> bool:
        """Report the end of a store; False for another process."""
        live = self.live.get(pid)
        if live is None:
            return False
        if live.report >= 0:
            self._read_report(live)
        if live.report >= 0:
            os.close(live.report)
        del self.live[pid]
        self._send(StoreExited(live.store_id, live.reason))
        return True


def _become_store(host: str, report: int, zygote: int) -> NoReturn:
    die_with_parent(zygote)
    os.setsid()
    name_process("hf-store")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    preload.close_unknown(known=(report,))
    serve(host, report)


_CLIENT_TIMEOUT = timedelta(seconds=30)
"""Time-out of the store's own connection to itself; the ranks' clients have their own."""


def check_host(host: str) -> str:
    """Return the reason why a host cannot be listened on, or "": only addresses, no names."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return f"store host {host!r}: expected an IP address"
    return ""


def listen(host: str) -> socket.socket:
    """Bind a listening socket to a free port of exactly this address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((host, 0))
    listener.listen(4096)  # a whole world connects at once; the kernel caps it at somaxconn
    return listener


def serve(host: str, report: int) -> NoReturn:
    """Serve a TCPStore on `host` until killed; write its port to `report` when it listens.

    On an error it writes the reason instead, and exits with status 1.
    """
    try:
        store = _start(host)
    except Exception as error:  # noqa: BLE001 - reported to the agent, whatever it is
        os.write(report, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    os.write(report, str(store.port).encode())
    os.close(report)
    while True:
        signal.pause()


def _start(host: str) -> TCPStore:
    from torch.distributed import TCPStore

    listener = listen(host)
    store = TCPStore(
        host,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=_CLIENT_TIMEOUT,
        master_listen_fd=listener.detach(),
    )
    sys.stdout.flush()
    return store
