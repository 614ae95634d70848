"""Network namespaces: holding them, and sockets of this process inside them.

A socket stays in the namespace in which it was made. So one event loop can serve the whole network
of the pods: it enters a namespace for the moment that a socket takes to make.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_NEWNET: Final = 0x40000000
_HOST: Final = os.open("/proc/self/ns/net", os.O_RDONLY)
_PAUSE: Final = Path(__file__).with_name("pause.py")
_START_SECONDS: Final = 10.0
_DIAL_SECONDS: Final = 3.0


class NetworkError(RuntimeError):
    """A namespace or an interface could not be made; carries what `ip` said."""


def socket_inside(descriptor: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """A socket of this process that lives in the network namespace of a descriptor."""
    if _LIBC.setns(descriptor, _NEWNET):
        raise OSError(ctypes.get_errno(), "no entry to a network namespace")
    try:
        made = socket.socket(socket.AF_INET, kind)
    finally:
        _LIBC.setns(_HOST, _NEWNET)
    made.setblocking(False)
    return made


class Space:
    """One set of network, host name and IPC namespaces, held by a process that sleeps."""

    def __init__(self, holder: asyncio.subprocess.Process) -> None:
        self._holder = holder
        self._descriptor = os.open(f"/proc/{holder.pid}/ns/net", os.O_RDONLY)

    @classmethod
    async def make(cls, hostname: str) -> Space:
        """Make one, with nothing in it."""
        holder = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", _PAUSE, str(os.getpid()), hostname),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        assert holder.stdout is not None
        async with asyncio.timeout(_START_SECONDS):
            line = await holder.stdout.readline()
        if not line:
            raise NetworkError(f"no namespaces for {hostname}; they need root")
        return cls(holder)

    @property
    def pid(self) -> int:
        """Process that holds it."""
        return self._holder.pid

    async def configure(self, lines: Sequence[str]) -> None:
        """Run commands of `ip` inside; raises NetworkError."""
        tool = await asyncio.create_subprocess_exec(
            *("nsenter", "-t", str(self.pid), "-n", "ip", "-batch", "-"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await tool.communicate("\n".join([*lines, ""]).encode())
        if tool.returncode:
            raise NetworkError(said.decode())

    def make_socket(self, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
        """A socket of this process that lives in the namespace; raises OSError once that is gone.

        Without that, whoever still asks for a pod that has ended would get a socket of the host.
        """
        if self._descriptor < 0:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the pod's network is gone")
        return socket_inside(self._descriptor, kind)

    def listen(
        self, host: str, port: int, kind: socket.SocketKind = socket.SOCK_STREAM
    ) -> socket.socket:
        """A socket bound to an address of the namespace."""
        made = self.make_socket(kind)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        return made

    async def dial(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to an address as seen from inside; raises OSError."""
        made = self.make_socket()
        try:
            loop = asyncio.get_running_loop()
            # Not wait_for: in Python 3.11 it loses a cancellation that comes with the connection.
            async with asyncio.timeout(_DIAL_SECONDS):
                await loop.sock_connect(made, (host, port))
        except BaseException:
            made.close()
            raise
        return await asyncio.open_connection(sock=made)

    async def close(self) -> None:
        """Let go of the namespaces."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._holder.returncode is None:
            self._holder.kill()
            await self._holder.wait()
