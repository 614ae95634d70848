"""`python -m cluster.kubelet`: nodes of one cluster, until SIGTERM. Prints its control port."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from aiohttp import web

from cluster.kubelet.client import Client
from cluster.kubelet.control import Misbehaviour
from cluster.kubelet.network import Network
from cluster.kubelet.node import Node
from cluster.kubelet.paper import PaperNode
from cluster.kubelet.server import NodeServer
from cluster.papers import node_token


async def _main(options: argparse.Namespace) -> None:
    os.environ.pop("PYTHONPATH", None)  # pods that are forks have none either
    url, ca = f"https://127.0.0.1:{options.api_port}", options.folder / "ca.crt"
    admin = Client(url, options.token, ca)
    network = Network(admin, options.api_of_pods)
    await network.start()
    # What an image would bring: this environment's programs, then the system's.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    first_paper = options.first + options.nodes
    nodes = [
        (Node if number < first_paper else PaperNode)(
            name := f"n{number}",
            Client(url, node_token(options.token, name), ca),
            network,
            options.folder,
            path,
            options.gpus,
        )
        for number in range(options.first, first_paper + options.paper_nodes)
    ]
    servers = [NodeServer(node, options.folder) for node in nodes]
    await asyncio.gather(*(server.start() for server in servers))
    await asyncio.gather(*(node.start() for node in nodes))
    runner = await _serve_control({node.name: node for node in nodes}, options.folder)
    await _signalled()
    await runner.cleanup()
    await asyncio.gather(*(server.stop() for server in servers))
    await asyncio.gather(*(node.stop() for node in nodes))
    await network.stop()
    await admin.close()


async def _serve_control(nodes: dict[str, Node], folder: Path) -> web.AppRunner:
    application = web.Application()
    application.router.add_post("/", Misbehaviour(nodes).handle)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    written = folder / "kubelet-port.new"
    written.write_text(str(runner.addresses[0][1]))
    written.rename(folder / "kubelet-port")
    return runner


async def _signalled() -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()


def main() -> None:
    """Read the flags, run until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="the cluster's directory")
    parser.add_argument("--api-port", type=int, required=True)
    parser.add_argument("--api-of-pods", type=int, required=True, help="where pods reach it")
    parser.add_argument("--token", required=True, help="of the admin")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--paper-nodes", type=int, default=0, help="without processes, after them")
    parser.add_argument("--first", type=int, default=1, help="number of the first, in its name")
    parser.add_argument("--gpus", type=int, default=8, help="nvidia.com/gpu of each node")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
