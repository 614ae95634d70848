"""The control plane of real nodes: the test bed's own, in a network that the nodes are linked to.

Clients stay outside: the API server's port is one of this machine's loopback, too.
Kubernetes' own times: a node is given up after 40 s, and its pods after 300 s more.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cluster.children import Child
from cluster.control_plane import ControlPlane
from cluster.kubectl import Kubectl
from cluster.papers import PLANE_ADDRESS, PROXY, node_token, write_kubeconfig
from cluster.real.images import tools_folder

FILES: Final = Path(__file__).with_name("files")
MOST_NODES: Final = 8
_TESTBED: Final = Path(__file__).resolve().parents[2]
_NETWORK: Final = (
    "ip link set lo up",
    "ip link add hf0 type bridge",
    f"ip addr add {PLANE_ADDRESS}/24 dev hf0",
    "ip link set hf0 up",
    "echo 1 >/proc/sys/net/ipv4/ip_forward",
    *(
        f"ip route add 10.244.{number}.0/24 via 10.254.0.{10 + number}"
        for number in range(1, MOST_NODES + 1)
    ),
    "touch network-is-up",
    "exec sleep infinity",
)
_GRACE_SECONDS: Final = 40
_TOLERATION_SECONDS: Final = 300


def node_address(number: int) -> str:
    """Return the address of a node in the plane's network."""
    return f"10.254.0.{10 + number}"


class RealPlane(ControlPlane):
    """One control plane that real nodes can join."""

    def __init__(self, folder: Path) -> None:
        """Choose its ports and write its papers; nothing runs yet."""
        super().__init__(folder, node_grace_s=_GRACE_SECONDS, toleration_s=_TOLERATION_SECONDS)
        self._network: Child | None = None

    def start(self, prepare: Callable[[], None] = lambda: None) -> None:
        """Start everything, and wait until a pod could be made."""
        words = ("unshare", "--net", "bash", "-euc", "\n".join(_NETWORK))
        self._network = self._running["network"] = Child("network", words, self.folder)
        self.until("the network", (self.folder / "network-is-up").exists)
        path = os.pathsep.join([str(_TESTBED), *filter(None, [os.environ.get("PYTHONPATH")])])
        relay = (sys.executable, "-m", "cluster.real.relay", f"{self.ports.api}")
        words = (*relay, f"{self._network.pid}")
        self._running["relay"] = Child("relay", words, self.folder, {"PYTHONPATH": path})
        super().start(functools.partial(self._prepare, prepare))

    def _prepare(self, prepare: Callable[[], None]) -> None:
        prepare()
        Kubectl(self.kubeconfig, "kube-system").run("apply", "-f", str(FILES / "cluster.yaml"))
        self.write_kubeconfig(PROXY)
        text = (FILES / "Corefile").read_text()
        text = text.replace("@API@", f"127.0.0.1:{self.ports.api}")
        (self.folder / "Corefile").write_text(text.replace("@PLANE@", str(self.folder)))
        self._run("coredns", "-conf", "Corefile")

    def write_kubeconfig(self, name: str) -> Path:
        """Write the kubeconfig of a node's kubelet, or of the proxies."""
        file = self.folder / f"kubeconfig-{name}"
        token = node_token(self.token, name)
        write_kubeconfig(file, self.folder, self.ports.api, token, PLANE_ADDRESS)
        return file

    def inside(self, *words: str) -> str:
        """Run a command in the plane's network; return what it printed."""
        words = (*self._enter(), *words)
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=30).stdout

    def _enter(self) -> tuple[str, ...]:
        assert self._network is not None
        return ("nsenter", f"--net=/proc/{self._network.pid}/ns/net")

    def _run(self, name: str, *flags: str) -> None:
        argv = [*self._enter(), str(tools_folder() / name), *flags]
        self._running[name] = Child(name, argv, self.folder)

    def _api_server(self) -> tuple[str, ...]:
        changed = {"--bind-address=127.0.0.1", "--endpoint-reconciler-type=none"}
        return (
            *(flag for flag in super()._api_server() if flag not in changed),
            "--bind-address=0.0.0.0",
            "--kubelet-client-certificate=kubelet-client.crt",
            "--kubelet-client-key=kubelet-client.key",
        )
