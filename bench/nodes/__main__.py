"""`python -m bench.nodes [--publish]`: measure starts and losses on real nodes; needs root.

Two nodes, each with kubelet, containerd and kube-proxy, beside the test bed's control plane, and
the product's image. Prints and records a JSON line for each fault; ends with 1 where a bar was not
held.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from bench import machine
from bench.nodes.measure import Bed, Fault, applied, killed, lost
from bench.nodes.page import page, problems
from bench.record import Record, to_line, written
from cluster.crd import install_crd
from cluster.jobs import Job
from cluster.kubectl import Kubectl
from cluster.real.images import image_values
from cluster.real.jobs import script
from cluster.real.node import RealNodes
from cluster.real.plane import RealPlane
from cluster.release import Release

_RECORD = Record("nodes", page)


def _measure(out: Path, rounds: int) -> None:
    plane = RealPlane(Path(tempfile.mkdtemp(prefix="holdfast-nodes-")))
    nodes = None
    with written(out, machine.about("nodes", [])) as add:
        try:
            plane.start(lambda: install_crd(plane))
            nodes = RealNodes(plane, 2)
            release = Release(plane.kubeconfig)
            release.install(*image_values(), r"nodeSelector.kubernetes\.io/hostname=n1")
            kubectl = Kubectl(plane.kubeconfig)
            kubectl.run("create", "-f", "-", stdin=script())
            job = Job(plane, kubectl, "measured", release.operator_log)
            bed = Bed(job, nodes, plane.folder / "steps")
            for measure in (applied, killed, lost):
                for _ in range(rounds):
                    load = os.getloadavg()[0]
                    result = Fault(kind=measure.__name__, load=load, parts=measure(bed))
                    print(to_line(result), flush=True)
                    add(to_line(result))
        finally:
            if nodes is not None:
                nodes.stop()
            plane.stop()


def main() -> int:
    """Measure, and show the page; return the exit code."""
    parser = _RECORD.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.page_of:
        return _RECORD.show(options)
    code = _RECORD.make(options, lambda: _measure(options.out, options.rounds))
    wrong = [] if code else problems(options.out.read_text().splitlines())
    print("\n".join(wrong))
    return code or (1 if wrong else 0)


if __name__ == "__main__":
    sys.exit(main())
