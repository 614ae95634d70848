"""Writes docs/reference/metrics.md: every metric of a job and of the operator, and every alert.

The page follows from the code: the master's families of a job that has everything, the operator's
registry, the chart's rules. `--check` compares.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import prometheus_client
import yaml
from prometheus_client.core import Metric

import holdfast_operator
from generated_page import keep
from holdfast_master.job.requests.figures import JobFigures
from holdfast_master.job.state.counts import Counts
from holdfast_master.metrics.exporter import MetricsExporter
from holdfast_master.policies.interval import Cost, Costs
from holdfast_operator.pods.pod import METRICS_PORT
from holdfast_wire import messages as wire
from holdfast_wire.tiers import TIERS

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs/reference/metrics.md"
CHART: Final = "../../charts/holdfast/README.md#metrics"
ALERTS: Final = ROOT / "charts/holdfast/files/alerts.yaml"
_COMMON: Final = {"namespace", "job"}
_OF_HOSTS: Final = "holdfast_job_node_strikes"
_HEAD: Final = """# Metrics and alerts

<!-- scripts/metrics.py writes this page; `make manifests` -->

The master of each job serves the job's metrics, the operator its own, as Prometheus text over HTTP.

| of | where | how to scrape it |
|---|---|---|
| a job in a cluster | its master's pod, port `metrics` ({port}) | [a PodMonitor]({chart}) |
| a job on one machine | `holdfast run FILE --metrics-port PORT`, on {at} | a static target |
| the operator | its pod, port `metrics` (8080) | a ServiceMonitor |

The path is `/metrics`. A job's series have its own `namespace` and `job`: a scraper has to keep
them (`honor_labels: true`), of the operator, too. Counters begin at 0 with each master;
`increase` and `rate` allow for that. The master's event loop takes the figures of a scrape: while
that loop is stuck the target is down. A scrape costs the master
[little](../benchmarks/metrics.md).

## Series

No label grows with ranks, pods or steps, so the number of series does not grow with a job's size.

| of | series |
|---|---|
| a job | {series} + H, at most |
| the operator | about 65 + P + F + 2 × A |

H: hosts of the job that something spoke against, and whose points have not decayed. P: phases of
jobs, 8 at most. F: failed jobs that still exist (`cleanup.ttlSecondsAfterFinished` bounds them). A:
pairs of method and code of the API server's answers, about 10. 1,000 jobs on sound hosts are
{thousand:,} series.

The master's port serves 16 connections at once: one more takes the place of the oldest. A client
that says nothing for 10 s is hung up on.

## A span for each recovery

The master sends OpenTelemetry spans if it is asked to: one trace for each recovery. Its span
`recovery` lasts from the fault to the first step, and has the incident's id (`holdfast.incident`),
its cause and its culprit. In it are `detect`, `decide`, `respawn` and `restore`. That needs the
extra `traces` of the wheel, which the operator's image has; the master's log says where it is
missing. A master that ends waits 2 s for its last spans to be taken.

| `OTEL_TRACES_EXPORTER` | spans go |
|---|---|
| `none`, or not set | nowhere |
| `console` | to the master's standard output, as JSON |
| `otlp` | to `OTEL_EXPORTER_OTLP_ENDPOINT` over HTTP, by default `http://localhost:4318` |

```console
$ OTEL_TRACES_EXPORTER=console holdfast run job.yaml
```

Standard output of a local job's master is in `logs/master.log`. In a cluster set the variables in
the container of `master.template`; `kubectl logs` of the master's pod has the spans.
"""


def page() -> str:
    """Return the page's text."""
    job = list(job_families())
    series = sum(len(one.samples) for one in job if one.name != _OF_HOSTS)
    sections = (
        _HEAD.format(
            port=METRICS_PORT,
            series=series,
            thousand=1000 * series,
            chart=CHART,
            at="127.0.0.1; with `--hosts` on the address that workers use, open to that network",
        ),
        _table("## A job", job, besides=_COMMON),
        _table("## The operator", operator_families()),
        _alerts(),
    )
    return "\n".join(sections)


def job_families() -> Iterator[Metric]:
    """Yield the families of a job that has everything, sorted by name."""
    found = MetricsExporter(("team", "gpt"), _figures).registry.collect()
    yield from sorted(found, key=lambda one: one.name)


def _figures() -> JobFigures:
    status = wire.JobStatus(
        has_loss=True,
        step=1,
        memory_step=1,
        stored_step=1,
        budgets=tuple(wire.BudgetState(kind=kind) for kind in wire.BudgetKind if kind.value),
    )
    counts = dataclasses.replace(Counts(), stored_bytes=1)
    return JobFigures(
        status=status,
        wanted_nodes=1,
        first_step=0,
        goodput_micros={},
        intervals=dict.fromkeys(TIERS, 1),
        slow_ranks=0,
        hangs=False,
        strikes={"host": 1.0},
        sync_seconds=1.0,
        saving=Costs(step=1.0, tiers={tier: Cost(stop=1.0, durable=1.0) for tier in TIERS}),
        counts=counts,
    )


def operator_families() -> list[Metric]:
    """Return the operator's families; a labelled one without a series gets an empty sample."""
    for one in pkgutil.walk_packages(holdfast_operator.__path__, "holdfast_operator."):
        importlib.import_module(one.name)
    found = []
    for name, collector in sorted(vars(prometheus_client.REGISTRY)["_names_to_collectors"].items()):
        for family in collector.collect():
            if family.name == name and name.startswith("holdfast_operator"):
                labels = dict.fromkeys(vars(collector).get("_labelnames", ()), "")
                family.add_sample(name, labels, 0.0)
                found.append(family)
    return found


_SUFFIX: Final = {"counter": "_total", "info": "_info"}


def _table(title: str, found: Iterable[Metric], besides: Iterable[str] = ()) -> str:
    lines = [title, "", "| metric | type | labels | meaning |", "|---|---|---|---|"]
    for one in found:
        given = {label for sample in one.samples for label in sample.labels}
        labels = ", ".join(f"`{label}`" for label in sorted(given - {*besides, "le"}))
        name = one.name + _SUFFIX.get(one.type, "")
        lines.append(f"| `{name}` | {one.type} | {labels} | {one.documentation} |")
    return "\n".join(lines) + "\n"


def _alerts() -> str:
    lines = [
        "## Alerts",
        "",
        "`metrics.prometheusRule` of the chart installs them. The [runbook](../runbook.md#alerts)",
        "has a section for each: what to look at, and what to do.",
        "",
        "| alert | severity | query | for |",
        "|---|---|---|---|",
    ]
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            query = " ".join(rule["expr"].split()).replace("|", "\\|")
            name = rule["alert"]
            link = f"[{name}](../runbook.md#{name.lower()})"
            lines.append(
                f"| {link} | {rule['labels']['severity']} | `{query}` | {rule.get('for', '')} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    keep(PAGE, page())
