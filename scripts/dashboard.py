"""Writes Grafana's dashboard of jobs, or checks that it is up to date.

`charts/holdfast/files/dashboard.json` is made of the panels below; `make manifests` writes it,
`--check` exits with 1 where it would change. A test asks a real Prometheus each panel's query.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import BigValueTextMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

from generated_page import keep

FILE: Final = Path(__file__).resolve().parent.parent / "charts/holdfast/files/dashboard.json"
_SOURCE: Final = DataSourceRef(type_val="prometheus", uid="$datasource")
_JOB: Final = 'namespace=~"$namespace", job=~"$job"'


@dataclasses.dataclass(frozen=True, slots=True)
class _Panel:
    """One panel of time series."""

    title: str
    text: str
    query: str
    legend: str
    unit: str = "short"


def _rate(metric: str, labels: str) -> str:
    return f"sum by ({labels}) (rate(holdfast_job_{metric}{{{_JOB}}}[$__rate_interval]))"


def _rows() -> dict[str, tuple[_Panel, ...]]:
    """The panels by row."""
    one = "{{namespace}}/{{job}}"
    return {
        "Training": (
            _Panel("Step", "Newest step that all ranks have completed.", _own("step"), one),
            _Panel("Loss", "Of rank 0's newest step.", _own("loss"), one),
            _Panel(
                "Samples a second",
                "Of the whole world.",
                _rate("samples_total", "namespace, job"),
                one,
            ),
            _Panel("Time of a step", "Usual time of a step.", _own("step_seconds"), one, "s"),
        ),
        "Goodput": (
            _Panel(
                "Where the nodes' time goes",
                "Nodes by what their time counts as.",
                _rate("goodput_seconds_total", "class"),
                "{{class}}",
            ),
            _Panel("Productive share, whole job", "", _own("goodput_ratio"), one, "percentunit"),
            _Panel("Nodes", "Of the running world.", _own("world_nodes"), one),
            _Panel("Nodes wanted", "By the spec.", _own("wanted_nodes"), one),
        ),
        "Failures": (
            _Panel(
                "Incidents an hour",
                "By their cause.",
                f"sum by (cause) (increase(holdfast_job_incidents_total{{{_JOB}}}[1h])) > 0",
                "{{cause}}",
            ),
            _Panel(
                "Recovery, 90th percentile",
                "Seconds from the fault to the end of each phase.",
                "histogram_quantile(0.9, sum by (phase, le) (rate("
                f"holdfast_job_recovery_seconds_bucket{{{_JOB}}}[1h])))",
                "{{phase}}",
                "s",
            ),
            _Panel(
                "Budgets spent",
                "Share of each budget of failurePolicy.",
                f"holdfast_job_budget_used{{{_JOB}}} / holdfast_job_budget_limit{{{_JOB}}}",
                one + " {{budget}}",
                "percentunit",
            ),
            _Panel("Slow ranks", "That straggler verdicts name.", _own("slow_ranks"), one),
            _Panel("Hangs", "1: no progress for longer than the limit.", _own("hang"), one),
            _Panel("Points against hosts", "", _own("node_strikes"), "{{node}}"),
        ),
        "Checkpoints": (
            _Panel(
                "Age of the newest checkpoint",
                "Steps since the newest one of a tier.",
                _own("checkpoint_age_steps"),
                one + " {{tier}}",
            ),
            _Panel(
                "Saves an hour",
                "Steps by tier and outcome.",
                "sum by (tier, outcome) (increase("
                f"holdfast_job_checkpoint_saves_total{{{_JOB}}}[1h]))",
                "{{tier}} {{outcome}}",
            ),
            _Panel(
                "A save stops training", "", _own("checkpoint_stop_seconds"), one + " {{tier}}", "s"
            ),
            _Panel(
                "Until it is durable", "", _own("checkpoint_save_seconds"), one + " {{tier}}", "s"
            ),
            _Panel(
                "Size", "Of the newest step on storage.", _own("checkpoint_bytes"), one, "bytes"
            ),
            _Panel("Restores", "By tier.", _own("restores_total"), one + " {{tier}}"),
        ),
        "Operator": (
            _Panel("Jobs by phase", "", "sum by (phase) (holdfast_operator_jobs)", "{{phase}}"),
            _Panel("Jobs that wait for a look", "", "holdfast_operator_queue_depth", "{{pod}}"),
            _Panel(
                "Requests to the API server",
                "By their answer.",
                "sum by (code) (rate(holdfast_operator_api_requests_total[$__rate_interval]))",
                "{{code}}",
                "reqps",
            ),
            _Panel(
                "A look at a job, 90th percentile",
                "",
                "histogram_quantile(0.9, sum by (le) "
                "(rate(holdfast_operator_look_seconds_bucket[$__rate_interval])))",
                "look",
                "s",
            ),
        ),
    }


def _own(metric: str) -> str:
    return f"holdfast_job_{metric}{{{_JOB}}}"


def build() -> str:
    """The dashboard as JSON."""
    made = (
        dashboard.Dashboard("Holdfast jobs")
        .uid("holdfast-jobs")
        .tags(["holdfast"])
        .refresh("30s")
        .time("now-3h", "now")
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
        .with_variable(_variable("namespace", "label_values(holdfast_job_info, namespace)"))
        .with_variable(
            _variable("job", 'label_values(holdfast_job_info{namespace=~"$namespace"}, job)')
        )
        .with_panel(_phases())
    )
    for title, panels in _rows().items():
        made = made.with_row(dashboard.Row(title))
        for one in panels:
            made = made.with_panel(_panel(one))
    return JSONEncoder(sort_keys=True, indent=2).encode(made.build()) + "\n"


def _variable(name: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .datasource(_SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
    )


def _query(query: str, legend: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(query).legend_format(legend)


def _phases() -> stat.Panel:
    return (
        stat.Panel()
        .title("Phase")
        .datasource(_SOURCE)
        .span(24)
        .height(4)
        .text_mode(BigValueTextMode.NAME)
        .with_target(_query(f"holdfast_job_info{{{_JOB}}}", "{{namespace}}/{{job}}: {{phase}}"))
    )


def _panel(one: _Panel) -> timeseries.Panel:
    return (
        timeseries.Panel()
        .title(one.title)
        .description(one.text)
        .datasource(_SOURCE)
        .unit(one.unit)
        .span(8)
        .height(8)
        .with_target(_query(one.query, one.legend))
    )


if __name__ == "__main__":
    keep(FILE, build())
