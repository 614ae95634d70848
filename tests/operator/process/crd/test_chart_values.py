"""The chart as helm reads it, without a cluster: values, schema, what it renders."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import subprocess
from typing import Any

import pytest
import yaml

from cluster.release import CHART
from cluster.tools import tools_folder
from holdfast_operator.settings import OperatorSettings, read_settings
from holdfast_wire.json_log import LogLevel
from house.repository import ROOT

pytestmark = pytest.mark.kube
_FIELDS = {field.name: field for field in dataclasses.fields(OperatorSettings)}
_SET_BY_TEMPLATE = {
    *("namespace", "identity", "image", "node_name", "lease", "probe_port"),
    "node_notices",
}
_OWN_VALUE = {"watch_namespace", "log_level", "master_pod"}


def _helm(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(tools_folder() / "helm"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


def _rendered(*values: str) -> list[dict[str, Any]]:
    flags = [f"--set={value}" for value in values]
    done = _helm("template", "holdfast", str(CHART), "--namespace=holdfast-system", *flags)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def _one(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(one for one in objects if one["kind"] == kind)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def test_lint_has_nothing_against_it() -> None:
    """`helm lint --strict` passes."""
    done = _helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_renders_alike_each_time() -> None:
    """Two renderings of the same values are the same text: an upgrade without a change is none."""
    words = ("template", "holdfast", str(CHART), "--set=podLabels.b=x,podLabels.a=y")
    assert _helm(*words).stdout == _helm(*words).stdout != ""


def test_the_crd_of_the_chart_is_the_crd() -> None:
    """But for the annotation that keeps it when the release goes."""
    crd = _one(_rendered(), "CustomResourceDefinition")
    assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert crd == yaml.safe_load((ROOT / "manifests/crd/elasticjobs.yaml").read_text())


def test_the_plain_manifests_are_the_chart_with_its_defaults() -> None:
    """manifests/install.yaml has a namespace, and then what helm renders."""
    objects = list(yaml.safe_load_all((ROOT / "manifests/install.yaml").read_text()))
    assert [one for one in objects if one][1:] == _rendered()


def test_every_setting_of_the_operator_can_be_given_with_its_own_default() -> None:
    """The chart's defaults equal those of the operator itself."""
    container = _one(_rendered(), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    given = {one["name"]: one.get("value", "from the pod") for one in container["env"]}
    found = read_settings(given)
    for name in _FIELDS.keys() - _SET_BY_TEMPLATE:
        assert getattr(found, name) == _FIELDS[name].default, name
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    names = {_camel(name) for name in _FIELDS.keys() - _SET_BY_TEMPLATE - _OWN_VALUE}
    assert set(values["settings"]) == names


def test_the_schema_knows_every_value_and_nothing_else() -> None:
    """A value that stands in values.yaml is described; a misspelt one is refused by name."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(schema["properties"]) == set(values) | {"global"}
    assert schema["properties"]["logLevel"]["enum"] == [level.value for level in LogLevel]
    done = _helm("template", "x", str(CHART), "--set=settings.apiRates=3")
    assert done.returncode != 0
    assert "apiRates" in done.stderr


@pytest.mark.parametrize(
    "wrong",
    ["replicas=-1", "logLevel=loud", "settings.workers=0", "image.repository=", "watchNamespace=A"],
)
def test_a_value_that_cannot_work_is_refused(wrong: str) -> None:
    """Before anything reaches the cluster, and naming the value."""
    done = _helm("template", "x", str(CHART), f"--set={wrong}")
    assert done.returncode != 0
    assert "/" + wrong.partition("=")[0].replace(".", "/") in done.stderr


def test_large_numbers_reach_the_operator_as_numbers() -> None:
    """Helm's own way to write a million, 1e+06, is none that the operator reads."""
    deployment = _one(_rendered("settings.apiBurst=1000000"), "Deployment")
    env = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "HOLDFAST_OPERATOR_API_BURST", "value": "1000000"} in env


def test_what_masters_shall_have_reaches_the_operator() -> None:
    """Pull secrets are the operator's own unless masters have others."""
    values = ["imagePullSecrets[0].name=registry", "master.nodeSelector.pool=system"]
    container = _one(_rendered(*values), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    given = {one["name"]: one.get("value", "from the pod") for one in container["env"]}
    fields = read_settings(given).master_pod.fields
    assert fields["imagePullSecrets"] == [{"name": "registry"}]
    assert fields["nodeSelector"] == {"pool": "system"}
    assert fields["resources"]["limits"] == {"cpu": "2", "memory": "2Gi"}


def test_one_namespace_needs_no_right_beyond_it() -> None:
    """With watchNamespace nothing but the roles for people spans the cluster."""
    objects = _rendered("watchNamespace=team", "crds.enabled=false", "rbac.aggregate=false")
    assert {one["kind"] for one in objects} == {
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "Deployment",
    }
    places = {one["metadata"]["namespace"] for one in objects if one["kind"] == "Role"}
    assert places == {"holdfast-system", "team"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [((), "on"), (("nodeNotices=false",), "off"), (("watchNamespace=team",), "off")],
)
def test_the_operator_watches_nodes_where_it_has_the_right(
    values: tuple[str, ...], expected: str
) -> None:
    """The right and the setting come and go together."""
    objects = _rendered(*values)
    container = _one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    given = {one["name"]: one.get("value", "from the pod") for one in container["env"]}
    assert read_settings(given).node_notices.value == expected
    roles = [one for one in objects if one["kind"] in ("Role", "ClusterRole")]
    rules = [rule for one in roles for rule in one["rules"] if rule.get("resources") == ["nodes"]]
    wanted = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}]
    assert rules == (wanted if expected == "on" else [])


def test_each_release_has_a_lease_of_its_own() -> None:
    """Its name is the Deployment's, and the operator has rights to no other."""
    for release, name in (("holdfast", "holdfast-operator"), ("b", "b-holdfast-operator")):
        done = _helm("template", release, str(CHART), "--set=watchNamespace=team")
        objects = [one for one in yaml.safe_load_all(done.stdout) if one]
        container = _one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
        given = {one["name"]: one.get("value", "from the pod") for one in container["env"]}
        assert read_settings(given).lease == name
        rules = [rule for one in objects if one["kind"] == "Role" for rule in one["rules"]]
        named = [
            one["resourceNames"]
            for one in rules
            if one["resources"] == ["leases"] and "resourceNames" in one
        ]
        assert named == [[name]]


def test_chart_and_package_have_one_version() -> None:
    """The chart's default image tag is the package's version."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == importlib.metadata.version("holdfast")


def test_the_pod_is_restricted() -> None:
    """It would be admitted to a namespace under Pod Security's `restricted`."""
    pod = _one(_rendered(), "Deployment")["spec"]["template"]["spec"]
    container = pod["containers"][0]["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_monitors_keep_the_labels_of_jobs() -> None:
    """A series names its job and that job's namespace; the target's own would hide them."""
    kinds = {"ServiceMonitor": "endpoints", "PodMonitor": "podMetricsEndpoints"}
    flags = [f"metrics.{kind[0].lower()}{kind[1:]}.enabled=true" for kind in kinds]
    objects = _rendered(*flags)
    for kind, field in kinds.items():
        (found,) = _one(objects, kind)["spec"][field]
        assert (found["port"], found["honorLabels"]) == ("metrics", True)
