"""The page of the cluster's figures, and the values that they are held against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

_HEAD: Final = """\
# The operator on a real control plane

Generated from [cluster.jsonl](cluster.jsonl) by
`PYTHONPATH=tests/support:tests/testbed python -m bench.cluster --publish`.

etcd, kube-apiserver, kube-controller-manager and kube-scheduler are the real ones; the operator is
a pod of the chart's release under its own account, with RBAC; pods are local processes
([why and how](../design/0008-a-cluster-without-containers.md)). Control plane, nodes, operator and
all training processes share one machine: {machine}. Each measurement had a cluster of its own; the
load of the machine (1 minute) before each stands in the last table.

| what | must be | measured |
| --- | --- | --- |
"""
_RUNS: Final = (
    "| measurement | when | commit | load | bed, s |",
    "| --- | --- | --- | --- | --- |",
)
Line = Mapping[str, Any]
Row = tuple[str, str, str, str, Callable[[Line], bool]]

_LOST: Final = "{max_s} s at worst (median {median_s} s, {nodes} nodes"


def _soon(line: Line) -> bool:
    return bool(line["max_s"] <= 6)


_ROWS: Final[tuple[Row, ...]] = (
    (
        "replacement",
        "pod gone → replacement created, p99, idle cluster",
        "≤ 0.3 s",
        "{p99_s} s (median {p50_s} s, worst {max_s} s, {pods} pods)",
        lambda one: one["p99_s"] <= 0.3,
    ),
    (
        "many",
        "first pod of a job → its last",
        "no bar",
        "{seconds} s for {workers} workers ({pods_per_s} pods/s)",
        lambda _: True,
    ),
    (
        "node",
        "node lost silently → training again at the smaller world",
        *("≤ 6 s", f"{_LOST})", _soon),
    ),
    (
        "node-defaults",
        "the same, where Kubernetes gives a node up after 40 s and its pods after 300 s more",
        *("≤ 6 s", f"{_LOST})", _soon),
    ),
    (
        "master-node",
        "the same of the node that also has the job's master, Kubernetes' own times",
        *("≤ 6 s", f"{_LOST}, {{new_masters}} new masters)", _soon),
    ),
    (
        "master",
        "master pod deleted → adopted",
        "0 steps lost",
        "{new_rounds} rounds, {processes_begun_again} processes begun again ({masters} masters)",
        lambda one: one["new_rounds"] == one["processes_begun_again"] == 0,
    ),
    (
        "kills",
        "operator killed anywhere",
        "0 duplicates, 0 leaks over ≥ 200 kills",
        "{kills} kills (seed {seed}), {changes} changes of jobs, {pods} pods: faults {faults}",
        lambda one: not one["faults"] and one["kills"] >= 200,
    ),
    (
        "writes",
        "requests per worker pod over a job's life",
        "≤ 1 create, ≤ 1 delete",
        "{creates_per_worker} creates, {deletes_per_worker} deletes ({workers} workers)",
        lambda one: one["creates_per_worker"] <= 1 and one["deletes_per_worker"] <= 1,
    ),
    (
        "writes",
        "status writes of a job",
        "≤ 1 in any second",
        "{most_status_writes_in_a_second} at most, {status_writes_per_s}/s on average",
        lambda one: one["most_status_writes_in_a_second"] <= 1,
    ),
)


def problems(lines: Iterable[Line]) -> list[str]:
    """Return a line of text for each figure that misses its bar."""
    return [
        f"{what}: must be {bar}, is {text.format(**line)}"
        for line in lines
        for kind, what, bar, text, holds in _ROWS
        if kind == line["kind"] and not holds(line)
    ]


def _row(row: Row, line: Line) -> str:
    _, what, bar, text, holds = row
    held = "" if holds(line) else " **(not held)**"
    return f"| {what} | {bar} | {text.format(**line)}{held} |"


def page(lines: Mapping[str, Line]) -> str:
    """Return the page of everything that is recorded."""
    newest = max((line["about"] for line in lines.values()), key=lambda about: str(about["date"]))
    machine = (
        f"{newest['cores']} cores of {newest['cpu']}, {newest['memory_gib']} GiB, Linux "
        f"{newest['kernel']}, Python {newest['python']}, torch {newest['torch']}"
    )
    rows = [_row(row, lines[row[0]]) for row in _ROWS if row[0] in lines]
    dates = [
        f"| {kind} | {line['about']['date']} | {line['about']['commit']} "
        f"| {line['load_before']} | {line.get('bed_s', '')} |"
        for kind, line in lines.items()
    ]
    runs = ["", *_RUNS, *dates]
    return _HEAD.format(machine=machine) + "\n".join([*rows, *runs]) + "\n" + _TAIL


_TAIL: Final = """
- *Pod gone* is the watch event of a worker's deletion (forced: no grace counts), *created* that
  of its successor; one watcher sees both.
- *Lost silently*: the node is cut off the network, then its processes end; nothing is reported.
  The time runs until the first step of the smaller world is written by real torch on gloo. The
  node had neither the operator nor the job's master but where that is said. The cluster's own
  patience with nodes is 4 s and 2 s but where its defaults are named.
- *Bed*: until the control plane answers, four nodes are ready and the release is installed.
- *Killed*: SIGKILL just before or after a drawn write to the API server, or after a drawn
  time; every second kill follows closely on the one before. A watcher of all pods counts two living
  pods of one place and epochs that are given twice; afterwards every job must have exactly its
  pods, Services, Secrets and revision, and the job that trained beside them must not have begun a
  round.
"""
