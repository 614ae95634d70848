"""`make cluster`: a cluster of one's own, with the CRD and the operator, until Ctrl-C."""

from __future__ import annotations

import argparse
import functools
import signal
import sys
import tempfile
import threading
from pathlib import Path

from cluster.control_plane import ControlPlane
from cluster.kubectl import Kubectl
from cluster.nodes import Nodes
from cluster.release import Release
from cluster.rights import lacking
from cluster.tools import tools_folder

_CRD = Path(__file__).resolve().parents[3] / "manifests" / "crd" / "elasticjobs.yaml"


_MOST_NODES = 64
"""All of them are one process of this machine, which renews a Lease for each every second."""


def _nodes(text: str) -> int:
    count = int(text)
    if not 1 <= count <= _MOST_NODES:
        raise argparse.ArgumentTypeError(
            f"{count} is not between 1 and {_MOST_NODES}: all nodes are one process here; "
            "set NODES to fewer"
        )
    return count


def _install(kubectl: Kubectl) -> None:
    kubectl.run("apply", "-f", str(_CRD))


def main() -> int:
    """Start it, say how to use it, wait, and take it away."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=_nodes, default=3)
    options = parser.parse_args()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    folder = Path(tempfile.mkdtemp(prefix="holdfast-cluster-"))
    # Kubernetes' own times: a busy machine's nodes are late for the seconds that tests give them.
    plane = ControlPlane(folder, node_grace_s=40, toleration_s=300)
    nodes = None
    try:
        kubectl = Kubectl(plane.kubeconfig)
        plane.start(functools.partial(_install, kubectl))
        nodes = Nodes(plane, options.nodes) if not lacking() else None
        print(f"export KUBECONFIG={plane.kubeconfig} PATH={tools_folder()}:$PATH")
        if nodes is not None:
            Release(plane.kubeconfig).install()
        else:
            print(f"no nodes: {lacking()}", file=sys.stderr)
        print(f"logs are in {plane.folder}; Ctrl-C ends the cluster", flush=True)
        ended.wait()
    finally:
        if nodes is not None:
            nodes.stop()
        plane.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
