"""`python -m cluster.real.relay PORT PID`: a port of this loopback as that of a process's network.

So clients outside reach the API server that is inside, at the address that its kubeconfig has.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys

from cluster.kubelet.network import splice
from cluster.kubelet.spaces import socket_inside


async def _main(port: int, pid: int) -> None:
    descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made = socket_inside(descriptor)
        try:
            await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
        except OSError:
            made.close()
            writer.transport.abort()
            return
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await splice((reader, writer), await asyncio.open_connection(sock=made))

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2])))
