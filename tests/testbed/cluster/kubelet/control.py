"""Faults that a test wants of the kubelet, one JSON object for each."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from cluster.kubelet.node import Node
from cluster.kubelet.pod import Pod


class Misbehaviour:
    """Carries out a test's wishes on the nodes of one cluster."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes

    async def handle(self, request: web.Request) -> web.Response:
        """Do what the body says; answer once it is done."""
        wish = await request.json()
        try:
            await self._do(wish)
        except (KeyError, StopIteration) as error:
            return web.Response(status=404, text=f"{wish}: {error!r} is not here")
        return web.Response(text="ok")

    async def _do(self, wish: Mapping[str, Any]) -> None:
        match wish["do"]:
            case "lose":
                await self._nodes[wish["node"]].die()
            case "silence":
                self._nodes[wish["node"]].silent = True
            case "return":
                await self._nodes[wish["node"]].come_back()
            case "stick":
                self._nodes[wish["node"]].stuck = wish["on"]
            case "delay":
                for node in self._nodes.values():
                    node.start_delay_s = wish["seconds"]
            case "refuse-image":
                for node in self._nodes.values():
                    node.refused_images = set(wish["images"])
            case _:
                self._do_to_pod(wish)

    def _do_to_pod(self, wish: Mapping[str, Any]) -> None:
        match wish["do"]:
            case "kill":
                self._kill(wish)
            case "evict":
                message, limit = wish.get("message", "out of memory"), wish.get("limit", False)
                self._pod(wish).evict(message, disrupted=not limit)
            case other:
                raise KeyError(other)

    def _pod(self, wish: Mapping[str, Any]) -> Pod:
        found = (node.find(wish["namespace"], wish["pod"]) for node in self._nodes.values())
        return next(pod for pod in found if pod is not None)

    def _kill(self, wish: Mapping[str, Any]) -> None:
        pod = self._pod(wish)
        for container in pod.containers:
            if wish.get("container", container.state.name) == container.state.name:
                container.forced_reason = wish.get("reason", "")
                container.kill(signal.Signals(wish.get("signal", signal.SIGKILL)))
