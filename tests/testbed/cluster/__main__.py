"""`make cluster`: a cluster of one's own, with the CRD and the operator, until Ctrl-C."""

from __future__ import annotations

import argparse
import functools
import json
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from cluster.control_plane import ControlPlane
from cluster.kubectl import Kubectl
from cluster.nodes import Nodes
from cluster.real import images
from cluster.real.jobs import real_job, script
from cluster.real.node import RealNodes
from cluster.real.plane import MOST_NODES, RealPlane
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


class _Stops(Protocol):
    def stop(self) -> None: ...


def _serve(plane: ControlPlane, nodes: Callable[[], _Stops | None], values: Iterable[str]) -> None:
    """Start a cluster, say how to use it, wait, and take it away."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    started = None
    try:
        kubectl = Kubectl(plane.kubeconfig)
        plane.start(functools.partial(_install, kubectl))
        started = nodes()
        print(f"export KUBECONFIG={plane.kubeconfig} PATH={tools_folder()}:$PATH")
        if started is not None:
            Release(plane.kubeconfig).install(*values)
        else:
            print(f"no nodes: {lacking()}", file=sys.stderr)
        print(f"logs are in {plane.folder}; Ctrl-C ends the cluster", flush=True)
        ended.wait()
    finally:
        if started is not None:
            started.stop()
        plane.stop()


def _serve_real(folder: Path, count: int) -> None:
    plane = RealPlane(folder)

    def start() -> RealNodes:
        nodes = RealNodes(plane, count)
        sample = {
            "apiVersion": "v1",
            "kind": "List",
            "items": [script(), real_job(folder / "steps")],
        }
        (folder / "job.yaml").write_text(json.dumps(sample, indent=1))  # JSON is YAML
        print(f"the image is {images.training_image()}; a job: kubectl apply -f {folder}/job.yaml")
        return nodes

    _serve(plane, start, images.image_values())


def main() -> int:
    """Start the kind of cluster that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=_nodes, default=3)
    parser.add_argument("--real", action="store_true", help="containers instead of processes")
    options = parser.parse_args()
    if options.real and (why := images.lacking()):
        parser.error(why)
    if options.real and options.nodes > MOST_NODES:
        parser.error(f"--nodes={options.nodes}: at most {MOST_NODES} are real")
    folder = Path(tempfile.mkdtemp(prefix="holdfast-cluster-"))
    if options.real:
        _serve_real(folder, options.nodes)
    else:
        # Kubernetes' own times: nodes of a busy machine are late for the seconds of tests.
        plane = ControlPlane(folder, node_grace_s=40, toleration_s=300)
        _serve(plane, lambda: Nodes(plane, options.nodes) if not lacking() else None, ())
    return 0


if __name__ == "__main__":
    sys.exit(main())
