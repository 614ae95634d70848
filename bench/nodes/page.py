"""The page of docs/benchmarks/nodes.md, and the bars."""

from __future__ import annotations

from collections.abc import Iterable

from bench import machine
from bench.nodes.measure import Fault
from bench.record import read

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

_HEAD = """# A job on real nodes

Generated from [nodes.jsonl](nodes.jsonl) by
`PYTHONPATH=tests/support:tests/testbed python -m bench.nodes --publish`.

Two nodes with kubelet, containerd, runc, kube-proxy and the product's image
([why and how](../design/0041-real-nodes.md)); control plane, nodes, operator and all training
share one machine. Two workers train on gloo, with checkpoints in memory. Kubernetes gives a node
up after 40 s, and its pods after 300 s more. Each kill has a job of its own, because a kubelet
waits 10 s and more before it starts a container a second time within ten minutes.

"""


def _rows(faults: list[Fault]) -> list[tuple[str, float, list[float]]]:
    rows = [
        (what, bar, [one.parts[part] for one in faults if one.kind == kind])
        for kind, part, what, bar in _BARS
    ]
    ours = [sum(one.parts[part] for part in _OURS) for one in faults if one.kind == "killed"]
    rows.insert(2, ("of it Holdfast's own: decision, fork, restore", _OURS_SECONDS, ours))
    return rows


def page(lines: Iterable[str]) -> str:
    """Return the page of a results file."""
    about, faults = read(lines, Fault.from_line)
    text = [
        _HEAD,
        machine.sentence(about),
        "\n\n| what | must be | measured |\n| --- | --- | --- |\n",
    ]
    for what, bar, found in _rows(faults):
        seconds = ", ".join(f"{one:.2f}" for one in found) or "–"
        text.append(f"| {what} | ≤ {bar:g} s | {seconds} s |\n")
    text.append("\nA killed container's time, in seconds, and the load of the machine before:\n\n")
    for fault in (one for one in faults if one.kind == "killed"):
        parts = "; ".join(f"{what} {seconds:.2f}" for what, seconds in fault.parts.items())
        text.append(f"- {parts} (load {fault.load:.1f})\n")
    loads = ", ".join(f"{one.kind} {one.load:.1f}" for one in faults)
    text.append(f"\nLoad before each (1 minute): {loads}.\n")
    return "".join(text)


def problems(lines: Iterable[str]) -> list[str]:
    """Return the bars that were not held."""
    _, faults = read(lines, Fault.from_line)
    return [
        f"{what}: {max(found):.2f} s, the bar is {bar:g} s"
        for what, bar, found in _rows(faults)
        if found and max(found) > bar
    ]
