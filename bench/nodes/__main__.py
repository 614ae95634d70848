"""`python -m bench.nodes [--publish]`: measure starts and losses on real nodes; needs root.

Two nodes, each with kubelet, containerd and kube-proxy, beside the test bed's control plane, and
the product's image. Prints and records a JSON line for each fault; ends with 1 where a bar was not
held.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.harness import machine, page, record
from bench.nodes.measure import Bed, Fault, applied, killed, lost
from cluster.crd import install_crd
from cluster.jobs import Job
from cluster.kubectl import Kubectl
from cluster.real.images import image_values
from cluster.real.jobs import script
from cluster.real.node import RealNodes
from cluster.real.plane import RealPlane
from cluster.release import Release

_BARS = (
    ("applied", "until the first step", "job applied → first step, the image is on the node", 12.0),
    ("killed", "until the next step", "a worker's container killed → next step", 4.0),
    ("lost", "until the next step", "node lost silently → next step", 6.0),
    ("lost", "until it is at full size", "the same → training at full size again", 60.0),
)
_OURS = (
    "the master decides on a round",
    "the rank is forked, and joins",
    "the checkpoint is restored from memory",
)
_OURS_SECONDS = 0.5


def _rows(faults: Sequence[Fault]) -> list[tuple[str, float, list[float]]]:
    rows = [
        (what, bar, [one.parts[part] for one in faults if one.kind == kind])
        for kind, part, what, bar in _BARS
    ]
    ours = [sum(one.parts[part] for part in _OURS) for one in faults if one.kind == "killed"]
    rows.insert(2, ("of it Holdfast's own: decision, fork, restore", _OURS_SECONDS, ours))
    return rows


def page_of(about: Mapping[str, Any], faults: Sequence[Fault]) -> str:
    """Return the page of a run."""
    rows = [
        (what, f"≤ {bar:g} s", ", ".join(f"{one:.2f}" for one in found) or "–")
        for what, bar, found in _rows(faults)
    ]
    measured = page.table(("what", "must be", "measured"), [(a, b, f"{c} s") for a, b, c in rows])
    killed_parts = [
        "; ".join(f"{what} {seconds:.2f}" for what, seconds in fault.parts.items())
        + f" (load {fault.load:.1f})"
        for fault in faults
        if fault.kind == "killed"
    ]
    return page.fill(
        "nodes/page",
        run=machine.sentence(about),
        measured=measured,
        killed="\n".join(f"- {text}" for text in killed_parts),
        loads=", ".join(f"{one.kind} {one.load:.1f}" for one in faults),
    )


def problems(faults: Sequence[Fault]) -> list[str]:
    """Return the bars that were not held."""
    return [
        f"{what}: {max(found):.2f} s, the bar is {bar:g} s"
        for what, bar, found in _rows(faults)
        if found and max(found) > bar
    ]


BENCH = record.Bench("nodes", page_of, Fault)


def _measure(options: argparse.Namespace) -> None:
    plane = RealPlane(Path(tempfile.mkdtemp(prefix="holdfast-nodes-")))
    nodes = None
    with record.recording(options.out, [], plan="nodes") as note:
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
                for _ in range(options.rounds):
                    load = os.getloadavg()[0]
                    result = Fault(kind=measure.__name__, load=load, parts=measure(bed))
                    note(result)
        finally:
            if nodes is not None:
                nodes.stop()
            plane.stop()


def main() -> int:
    """Measure, and show the page; return the exit code."""
    parser = BENCH.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    code = BENCH.main(options, _measure)
    if code or options.page_of:
        return code
    wrong = problems(BENCH.read(options.out.read_text().splitlines())[1])
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
