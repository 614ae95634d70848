"""Each published page is that of the results file beside it; results survive their file."""

from __future__ import annotations

import importlib
import json

import pytest

from bench.cluster.page import page as cluster_page
from bench.failover.page import page as failover_page
from bench.harness.record import DOCS, Bench, to_line

NAMES = (
    *("hang", "health", "ledger", "load", "local_sgd", "nodes", "overhead", "preflight"),
    *("recovery", "replicas", "scale", "start", "universal"),
)
PACKAGES = {name: f"bench.{name}.__main__" for name in NAMES} | {
    "metrics": "bench.load.metrics",
    "simulation": "bench.simulation",
}


def _bench(name: str) -> Bench:
    found: Bench = vars(importlib.import_module(PACKAGES[name]))["BENCH"]
    return found


def _flash(name: str) -> Bench:
    from bench.flash.__main__ import BENCHES

    return next(one for one in BENCHES.values() if one.name == name)


@pytest.mark.parametrize("name", [*PACKAGES, "flash", "flash-gpu"])
def test_a_published_page_is_what_its_results_say(name: str) -> None:
    """Nobody edits a page by hand."""
    bench = _flash(name) if name.startswith("flash") else _bench(name)
    lines = (DOCS / f"{name}.jsonl").read_text().splitlines()
    assert (DOCS / f"{name}.md").read_text() == bench.page_of(lines)


@pytest.mark.parametrize("name", ["flash", "load", "overhead", "recovery", "start"])
def test_results_survive_their_file(name: str) -> None:
    """A result read back from its line equals the one written."""
    bench = _flash(name) if name == "flash" else _bench(name)
    lines = (DOCS / f"{name}.jsonl").read_text().splitlines()
    about, results = bench.read(lines)
    assert about["date"]
    assert bench.read([lines[0], *map(to_line, results)]) == (about, results)


def test_the_pages_of_records_that_are_added_to_follow_from_them() -> None:
    """Those of the cluster and of killed masters, whose records grow from run to run."""
    lines = {name: (DOCS / f"{name}.jsonl").read_text() for name in ("cluster", "failover")}
    found = {name: [json.loads(one) for one in text.splitlines()] for name, text in lines.items()}
    assert (DOCS / "failover.md").read_text() == failover_page(found["failover"])
    kinds = {one["kind"]: one for one in found["cluster"]}
    assert (DOCS / "cluster.md").read_text() == cluster_page(kinds)
