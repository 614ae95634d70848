"""The chart's values and their schema: what is known, what is refused, what null means."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from cluster.release import CHART
from cluster.rendered import (
    EVERYTHING,
    MONITORED,
    helm,
    leaves_of,
    one_of,
    operator_settings,
    render,
)
from holdfast_wire.json_log import LogLevel

pytestmark = pytest.mark.kube


def test_the_schema_knows_every_value_and_nothing_else() -> None:
    """Group by group: what stands in values.yaml is described, by its type or its words."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert schema["properties"]["logLevel"]["enum"] == [level.value for level in LogLevel]
    rest: list[tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]] = [((), schema, values)]
    while rest:
        path, group, given = rest.pop()
        told = group["properties"]
        assert set(told) - set(given) <= {"claims"}, path  # of resources: seldom wanted
        assert group.get("additionalProperties", "global" in path) is ("global" in path), path
        for name, value in given.items():
            assert {"type", "enum"} & told[name].keys(), (*path, name)
            if "properties" in told[name]:
                rest.append(((*path, name), told[name], value))


def _groups(values: dict[str, Any], path: str = "") -> list[str]:
    """Return the paths of the values that are groups of named values, as `--set` writes them."""
    found = [path]
    for name, value in values.items():
        if isinstance(value, dict) and f"{path}{name}" not in _FREE:
            found += _groups(value, f"{path}{name}.")
    return found


_FREE = {
    *(f"{part}resources.{kind}" for part in ("", "master.") for kind in ("requests", "limits")),
    *(f"{part}{name}" for part in ("", "master.") for name in ("podAnnotations", "podLabels")),
    *("nodeSelector", "master.nodeSelector", "affinity", "serviceAccount.annotations"),
    *("metrics.labels", "metrics.service.annotations", "metrics.dashboard.labels"),
    "global",
}
"""Values whose keys are a user's own; `global` gets more of them from Helm."""


def _paths(values: dict[str, Any]) -> dict[str, Any]:
    """Return every value and every group by its path, but for what lies in a user's own."""
    found: dict[str, Any] = {}
    for group in _groups(values):
        place = values
        for name in group.split(".")[:-1]:
            place = place[name]
        found |= {f"{group}{name}": value for name, value in place.items()}
    return found


_DEFAULTS_BELOW = {"settings", "master", "resources"}
"""Groups that may be null with all that is in them: what reads them has defaults of its own."""


def _may_be_null(path: str, value: object) -> bool:
    return path.partition(".")[0] in _DEFAULTS_BELOW or path in _empty({path: value})


def _empty(paths: dict[str, Any]) -> list[str]:
    return [path for path, one in paths.items() if path == "global" or one in (None, "", [], {})]


def test_null_is_as_good_as_empty() -> None:
    """Null in place of each value that is empty by default changes nothing."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    empty = _empty(_paths(values))
    assert {"watchNamespaces", "imagePullSecrets", "image.tag", "master.tolerations"} <= set(empty)
    nulls = [f"{path}=null" for path in empty]
    usual = render(*EVERYTHING, flags=(MONITORED,))
    found = render(*EVERYTHING, *nulls, flags=(MONITORED,))
    assert operator_settings(found) == operator_settings(usual)
    for objects in (usual, found):  # JSON, which has been compared as it is read
        env = one_of(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["env"]
        env[:] = [one for one in env if one["name"] != "HOLDFAST_OPERATOR_MASTER_POD"]
    assert found == usual


@pytest.mark.parametrize("group", sorted(_DEFAULTS_BELOW))
def test_null_in_a_group_with_defaults_elsewhere_renders(group: str) -> None:
    """The group itself, or each of its values; nothing that is rendered is null."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    inside = [path for path in _paths(values) if path.startswith(f"{group}.")]
    leaves = [path for path in inside if not any(one.startswith(f"{path}.") for one in inside)]
    assert leaves
    for nulls in ([f"{group}=null"], [f"{path}=null" for path in leaves]):
        rendered = leaves_of(render(*EVERYTHING, *nulls, flags=(MONITORED,))).items()
        assert [path for path, one in rendered if one is None or "<nil>" in str(one)] == []


def test_null_is_refused_by_name_where_there_is_a_default() -> None:
    """Before a template meets it."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    needed = [path for path, value in _paths(values).items() if not _may_be_null(path, value)]
    assert {"image", "metrics.dashboard", "crds.keep", "replicas"} <= set(needed)
    for path in needed:
        done = helm("template", "x", str(CHART), f"--set={path}=null")
        assert done.returncode != 0, path
        assert f"missing property '{path.rpartition('.')[2]}'" in done.stderr, done.stderr


def test_an_unknown_value_is_refused_by_its_name_in_every_group() -> None:
    """A misspelt value would otherwise be ignored for ever, at whatever depth."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    groups = _groups(values)
    assert {"", "image.", "metrics.dashboard.", "master.resources."} <= set(groups)
    flags = [f"--set={group}misspelt{number}=1" for number, group in enumerate(groups)]
    done = helm("template", "x", str(CHART), *flags)
    assert done.returncode != 0
    missing = [
        group for number, group in enumerate(groups) if f"misspelt{number}'" not in done.stderr
    ]
    assert missing == [], done.stderr


def test_the_page_lists_every_value_with_its_default() -> None:
    """As values.yaml has it; each has words of its own."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    lines = (CHART / "README.md").read_text().splitlines()
    rows = [line.split(" | ", 2) for line in lines if line.startswith("| `")]
    listed = {row[0].strip("| `"): row[1].strip("`") for row in rows if len(row) == 3}
    for group in _groups(values):
        place = values
        for name in group.split(".")[:-1]:
            place = place[name]
        for name, value in place.items():
            path = f"{group}{name}"
            if path == "global":
                assert json.loads(listed["global.imagePullSecrets"]) == value["imagePullSecrets"]
            elif f"{path}." not in _groups(values):
                assert json.loads(listed[path]) == value, path


@pytest.mark.parametrize("name", ["A", "-a", "a.b", ""])
def test_what_cannot_be_a_namespace_is_refused(name: str) -> None:
    """Before a Role is made for it."""
    done = helm("template", "x", str(CHART), f"--set-json=watchNamespaces=[{json.dumps(name)}]")
    assert done.returncode != 0
    assert "/watchNamespaces/0" in done.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        *("replicas=-1", "logLevel=loud", "settings.workers=0", "image.repository="),
        *(f"podDisruptionBudget.maxUnavailable={none}" for none in ("0", "0%", "101%", "some")),
        *(f"metrics.interval={none}" for none in ("30", "1m30", "s", "often")),
    ],
)
def test_a_value_that_cannot_work_is_refused(wrong: str) -> None:
    """Before anything reaches the cluster, and naming the value."""
    done = helm("template", "x", str(CHART), f"--set={wrong}")
    assert done.returncode != 0
    assert "/" + wrong.partition("=")[0].replace(".", "/") in done.stderr
