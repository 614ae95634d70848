"""kube-router on real nodes: it enforces NetworkPolicies, which the nodes' own network does not."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path
from typing import Final

from cluster.papers import PLANE_ADDRESS, write_kubeconfig
from cluster.real.node import RealNode, RealNodes
from cluster.real.plane import RealPlane

_SCRIPT: Final = Path(__file__).resolve().parents[4] / "scripts" / "cluster_tools.sh"
_PROGRAM: Final = "kube-router"
_PODS_CHAIN: Final = "KUBE-POD-FW-"
"""Begin of the names of its chains, one for each pod of the node that a policy chooses."""


@functools.cache
def firewall_folder() -> Path | None:
    """Return the folder with kube-router; None: it, or what it calls, is not here."""
    command = [str(_SCRIPT), "--policies", "--no-build"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    whole = done.returncode == 0 and all(map(shutil.which, ("ipset", "iptables")))
    return Path(done.stdout.strip()) if whole else None


NOT_BUILT: Final = "kube-router is not built here; run scripts/cluster_tools.sh --policies"


class Firewall:
    """The policies of a cluster, enforced on all its nodes until those end."""

    def __init__(self, plane: RealPlane, nodes: RealNodes) -> None:
        """Start it on each node."""
        self._plane, self._nodes = plane, nodes
        folder = firewall_folder()
        assert folder is not None, NOT_BUILT
        config = plane.folder / f"kubeconfig-{_PROGRAM}"
        write_kubeconfig(config, plane.folder, plane.ports.api, plane.token, PLANE_ADDRESS)
        for node in nodes.all:
            node.start_daemon(
                _PROGRAM,
                f"{folder / _PROGRAM}",
                f"--kubeconfig={config}",
                f"--hostname-override={node.name}",
                "--run-firewall",
                "--run-router=false",
                "--run-service-proxy=false",
                "--enable-cni=false",
            )

    def until_guards(self, address: str) -> None:
        """Wait until the node of a pod with this address has rules for it."""
        nodes = self._nodes.all
        self._plane.until(
            f"rules for {address}", lambda: any(_guards(node, address) for node in nodes)
        )


def _guards(node: RealNode, address: str) -> bool:
    rules = node.run("iptables", "-S").splitlines()
    return any(_PODS_CHAIN in one and f"-d {address}/32" in one for one in rules)
