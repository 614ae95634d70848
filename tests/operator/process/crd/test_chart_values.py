"""The chart as helm reads it, without a cluster: values, schema, what it renders."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
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
_OWN_VALUE = {"watch_namespace", "log_level", "master_pod", "job_ingress"}


def _helm(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(tools_folder() / "helm"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


def _rendered(
    *values: str,
    flags: tuple[str, ...] = ("--skip-tests",),
    release: str = "holdfast",
    namespace: str = "holdfast-system",
) -> list[dict[str, Any]]:
    chosen = [f"--set={value}" for value in values]
    words = ("template", release, str(CHART), f"--namespace={namespace}")
    done = _helm(*words, *flags, *chosen)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def _one(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(one for one in objects if one["kind"] == kind)


def _given(objects: list[dict[str, Any]]) -> OperatorSettings:
    """Return the settings as the operator reads them in its pod."""
    container = _one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return read_settings({one["name"]: one.get("value", "x") for one in container["env"]})


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
    found = _given(_rendered())
    for name in _FIELDS.keys() - _SET_BY_TEMPLATE:
        assert getattr(found, name) == _FIELDS[name].default, name
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    names = {_camel(name) for name in _FIELDS.keys() - _SET_BY_TEMPLATE - _OWN_VALUE}
    assert set(values["settings"]) == names


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
_MONITORED = "--api-versions=monitoring.coreos.com/v1"
"""What `helm template` is told where Prometheus' operator is in the cluster."""
_EVERYTHING = (
    *("replicas=2", "metrics.dashboard.enabled=true", "networkPolicy.enabled=true"),
    "crds.enabled=false",
)
"""Values with which every object is rendered but the CRD, which takes seconds to read."""


def _paths(values: dict[str, Any]) -> dict[str, Any]:
    """Return every value and every group by its path, but for what lies in a user's own."""
    found: dict[str, Any] = {}
    for group in _groups(values):
        place = values
        for name in group.split(".")[:-1]:
            place = place[name]
        found |= {f"{group}{name}": value for name, value in place.items()}
    return found


def _strings(found: object, path: str = "") -> dict[str, object]:
    """Return what is no group and no list in an object, by its path."""
    if isinstance(found, dict):
        parts = found.items()
    elif isinstance(found, list):
        parts = dict(enumerate(found)).items()
    else:
        return {path: found}
    return {
        name: leaf for key, part in parts for name, leaf in _strings(part, f"{path}.{key}").items()
    }


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
    usual = _rendered(*_EVERYTHING, flags=(_MONITORED,))
    found = _rendered(*_EVERYTHING, *nulls, flags=(_MONITORED,))
    assert _given(found) == _given(usual)
    for objects in (usual, found):  # JSON, which has been compared as it is read
        env = _one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["env"]
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
        rendered = _strings(_rendered(*_EVERYTHING, *nulls, flags=(_MONITORED,))).items()
        assert [path for path, one in rendered if one is None or "<nil>" in str(one)] == []


def test_null_is_refused_by_name_where_there_is_a_default() -> None:
    """Before a template meets it."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    needed = [path for path, value in _paths(values).items() if not _may_be_null(path, value)]
    assert {"image", "metrics.dashboard", "crds.keep", "replicas"} <= set(needed)
    for path in needed:
        done = _helm("template", "x", str(CHART), f"--set={path}=null")
        assert done.returncode != 0, path
        assert f"missing property '{path.rpartition('.')[2]}'" in done.stderr, done.stderr


def test_an_unknown_value_is_refused_by_its_name_in_every_group() -> None:
    """A misspelt value would otherwise be ignored for ever, at whatever depth."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    groups = _groups(values)
    assert {"", "image.", "metrics.dashboard.", "master.resources."} <= set(groups)
    flags = [f"--set={group}misspelt{number}=1" for number, group in enumerate(groups)]
    done = _helm("template", "x", str(CHART), *flags)
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
    done = _helm("template", "x", str(CHART), f"--set-json=watchNamespaces=[{json.dumps(name)}]")
    assert done.returncode != 0
    assert "/watchNamespaces/0" in done.stderr


def test_several_namespaces_have_a_role_each() -> None:
    """And the operator is told of them; one that is named twice counts once."""
    objects = _rendered("watchNamespaces={team-a,b,team-a}")
    assert _given(objects).watch_namespace.scopes == ("team-a", "b")
    for kind in ("Role", "RoleBinding"):
        found = [one["metadata"]["namespace"] for one in objects if one["kind"] == kind]
        assert sorted(found) == ["b", "holdfast-system", "team-a"]
    jobs = [one for one in objects if one["metadata"].get("name") == "holdfast-operator-jobs"]
    roles = [one["rules"] for one in jobs if one["kind"] == "Role"]
    assert roles[0] == roles[1]
    assert not [one for one in jobs if one["kind"].startswith("Cluster")]


def test_who_may_speak_to_jobs_reaches_the_operator() -> None:
    """Nobody is named unless jobs shall have NetworkPolicies; the right comes with them."""
    assert _given(_rendered()).job_ingress.rules is None
    objects = _rendered("networkPolicy.jobs=true", "networkPolicy.metricsFrom[0].podSelector.a=b")
    operator, scrape = _given(objects).job_ingress.rules or ()
    (peer,) = operator["from"]
    template = _one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= template.items()
    home = {"kubernetes.io/metadata.name": "holdfast-system"}
    assert peer["namespaceSelector"] == {"matchLabels": home}
    assert scrape == {"ports": [{"port": "metrics"}], "from": [{"podSelector": {"a": "b"}}]}
    rules = [rule for one in objects if one["kind"] == "ClusterRole" for rule in one["rules"]]
    mine = [rule["verbs"] for rule in rules if "networkpolicies" in rule["resources"]]
    assert mine == [["get", "create", "patch"]]


def test_the_operators_own_network_policy_is_as_tight_as_it_is_told() -> None:
    """Only scrapers come in; what goes out is open unless it is named."""
    found = _one(_rendered("networkPolicy.enabled=true"), "NetworkPolicy")["spec"]
    assert found["policyTypes"] == ["Ingress"]
    assert found["ingress"] == [{"ports": [{"port": "metrics"}]}]
    given = ("networkPolicy.enabled=true", "networkPolicy.egress[0].ports[0].port=6443")
    found = _one(_rendered(*given), "NetworkPolicy")["spec"]
    assert found["policyTypes"] == ["Ingress", "Egress"]
    assert found["egress"] == [{"ports": [{"port": 6443}]}]


def test_replicas_are_spread_and_drained_one_by_one() -> None:
    """Where there are two; one alone has neither, because a budget would only block its drain."""
    assert not [one for one in _rendered() if one["kind"] == "PodDisruptionBudget"]
    objects = _rendered("replicas=2")
    assert _one(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    template = _one(objects, "Deployment")["spec"]["template"]
    for one in template["spec"]["topologySpreadConstraints"]:
        assert one["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        assert one["whenUnsatisfiable"] == "ScheduleAnyway"
    own = _one(_rendered("replicas=2", "topologySpreadConstraints[0].a=b"), "Deployment")
    assert own["spec"]["template"]["spec"]["topologySpreadConstraints"] == [{"a": "b"}]


def test_a_digest_and_a_parents_pull_secrets_reach_every_pod() -> None:
    """The operator's, its masters', and the test's."""
    digest = "sha256:" + "0" * 64
    flags = [
        f"--set=image.digest={digest},global.imagePullSecrets[0].name=parent",
        "--set=imagePullSecrets[0].name=own",
    ]
    done = _helm("template", "holdfast", str(CHART), *flags)
    assert done.returncode == 0, done.stderr
    objects = [one for one in yaml.safe_load_all(done.stdout) if one]
    secrets = [{"name": "own"}, {"name": "parent"}]
    for pod in (
        _one(objects, "Deployment")["spec"]["template"]["spec"],
        _one(objects, "Pod")["spec"],
    ):
        assert pod["containers"][0]["image"] == f"holdfast@{digest}"
        assert pod["imagePullSecrets"] == secrets
    assert _given(objects).image == f"holdfast@{digest}"
    assert _given(objects).master_pod.fields["imagePullSecrets"] == secrets


def test_extra_variables_volumes_and_mounts_are_added() -> None:
    """To the operator's own, which stay."""
    objects = _rendered(
        *("extraEnv[0].name=HTTPS_PROXY", "extraEnv[0].value=http://proxy:3128"),
        *("extraEnvFrom[0].secretRef.name=more", "extraVolumes[0].name=trust"),
        *("extraVolumes[0].configMap.name=roots", "extraVolumeMounts[0].name=trust"),
        "extraVolumeMounts[0].mountPath=/etc/trust",
    )
    pod = _one(objects, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["env"][-1] == {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}
    assert container["envFrom"] == [{"secretRef": {"name": "more"}}]
    assert [one["name"] for one in pod["volumes"]] == ["tmp", "trust"]
    assert [one["name"] for one in container["volumeMounts"]] == ["tmp", "trust"]


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
    done = _helm("template", "x", str(CHART), f"--set={wrong}")
    assert done.returncode != 0
    assert "/" + wrong.partition("=")[0].replace(".", "/") in done.stderr


@pytest.mark.parametrize(("written", "read"), [("1", 1), ("1%", "1%"), ("100%", "100%")])
def test_a_drain_takes_a_number_or_a_share(written: str, read: object) -> None:
    """As the budget of Kubernetes has it: a number, or text."""
    objects = _rendered(
        "crds.enabled=false", "replicas=2", f"podDisruptionBudget.maxUnavailable={written}"
    )
    assert _one(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] == read


def test_an_interval_of_several_units_is_taken() -> None:
    """Prometheus reads it as a minute and a half."""
    objects = _rendered("crds.enabled=false", "metrics.interval=1m30s", flags=(_MONITORED,))
    for kind, field in _ENDPOINTS.items():
        assert _one(objects, kind)["spec"][field][0]["interval"] == "1m30s"


def test_names_that_are_digits_stay_text() -> None:
    """A release or a namespace `1234` would otherwise be a number, which no cluster takes."""
    places = {"release": "1234", "namespace": "5678"}
    flags = (_MONITORED, "--set-string=watchNamespaces={99}")
    objects = _rendered(*_EVERYTHING, flags=flags, **places)
    for one in objects:
        leaves = _strings(one).items()
        numbers = [path for path, leaf in leaves if str(leaf) in {*places.values(), "99"}]
        assert [path for path in numbers if not isinstance(_strings(one)[path], str)] == []
    assert {one["metadata"].get("namespace") for one in objects} == {"5678", "99", None}
    assert _given(objects).watch_namespace.scopes == ("99",)


def test_large_numbers_reach_the_operator_as_numbers() -> None:
    """Helm's own way to write a million, 1e+06, is none that the operator reads."""
    deployment = _one(_rendered("settings.apiBurst=1000000"), "Deployment")
    env = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "HOLDFAST_OPERATOR_API_BURST", "value": "1000000"} in env


def test_what_masters_shall_have_reaches_the_operator() -> None:
    """Pull secrets are the operator's own unless masters have others."""
    values = ["imagePullSecrets[0].name=registry", "master.nodeSelector.pool=system"]
    fields = _given(_rendered(*values)).master_pod.fields
    assert fields["imagePullSecrets"] == [{"name": "registry"}]
    assert fields["nodeSelector"] == {"pool": "system"}
    assert fields["resources"]["limits"] == {"cpu": "2", "memory": "2Gi"}


def test_one_namespace_needs_no_right_beyond_it() -> None:
    """With watchNamespaces nothing but the roles for people spans the cluster."""
    objects = _rendered("watchNamespaces={team}", "crds.enabled=false", "rbac.aggregate=false")
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
    [((), "on"), (("nodeNotices=false",), "off"), (("watchNamespaces={team}",), "off")],
)
def test_the_operator_watches_nodes_where_it_has_the_right(
    values: tuple[str, ...], expected: str
) -> None:
    """The right and the setting come and go together."""
    objects = _rendered(*values)
    assert _given(objects).node_notices.value == expected
    roles = [one for one in objects if one["kind"] in ("Role", "ClusterRole")]
    rules = [rule for one in roles for rule in one["rules"] if rule.get("resources") == ["nodes"]]
    wanted = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}]
    assert rules == (wanted if expected == "on" else [])


def test_each_release_has_a_lease_of_its_own() -> None:
    """Its name is the Deployment's, and the operator has rights to no other."""
    for release, name in (("holdfast", "holdfast-operator"), ("b", "b-holdfast-operator")):
        done = _helm(
            "template", release, str(CHART), "--skip-tests", "--set=watchNamespaces={team}"
        )
        objects = [one for one in yaml.safe_load_all(done.stdout) if one]
        assert _given(objects).lease == name
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


_ENDPOINTS = {"ServiceMonitor": "endpoints", "PodMonitor": "podMetricsEndpoints"}
"""Where each kind of Prometheus' operator names a port."""


def test_monitors_keep_the_labels_of_jobs() -> None:
    """A series names its job and that job's namespace; the target's own would hide them."""
    flags = [f"metrics.{kind[0].lower()}{kind[1:]}.enabled=true" for kind in _ENDPOINTS]
    objects = _rendered(*flags)
    for kind, field in _ENDPOINTS.items():
        (found,) = _one(objects, kind)["spec"][field]
        assert (found["port"], found["honorLabels"]) == ("metrics", True)


@pytest.mark.parametrize("release", ["holdfast", "x" * 53, "holdfast-" + "x" * 44])
def test_the_service_monitor_finds_a_port_of_the_operators_pods(release: str) -> None:
    """By a Service of its namespace that it selects, whose pods are the Deployment's."""
    objects = _rendered(*_EVERYTHING, flags=(_MONITORED,), release=release)
    monitor, deployment = _one(objects, "ServiceMonitor"), _one(objects, "Deployment")
    (endpoint,) = monitor["spec"]["endpoints"]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    assert "namespaceSelector" not in monitor["spec"]
    (service,) = [
        one
        for one in objects
        if one["kind"] == "Service"
        and one["metadata"]["namespace"] == monitor["metadata"]["namespace"]
        and wanted <= one["metadata"]["labels"].items()
    ]
    (port,) = [one for one in service["spec"]["ports"] if one["name"] == endpoint["port"]]
    template = deployment["spec"]["template"]
    assert service["metadata"]["namespace"] == deployment["metadata"]["namespace"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    assert port["targetPort"] in {one["name"] for one in container["ports"]}


@pytest.mark.parametrize("release", ["x" * 53, "holdfast-" + "x" * 44])
def test_names_of_a_long_release_are_within_the_limits(release: str) -> None:
    """63 characters for a Service and for a label's value; 253 for other names."""
    objects = _rendered(*_EVERYTHING, flags=(_MONITORED,), release=release)
    for one in objects:
        name, labels = one["metadata"]["name"], one["metadata"].get("labels", {})
        assert len(name) <= (63 if one["kind"] in {"Service", "Deployment"} else 253), name
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name), name
        for value in labels.values():
            assert re.fullmatch(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?", value), value
    (service,) = [one for one in objects if one["kind"] == "Service"]
    assert service["metadata"]["name"].endswith("-metrics")
    assert len({(one["kind"], one["metadata"]["name"]) for one in objects}) == len(objects)


def test_the_package_has_nothing_but_the_chart(tmp_path: Path) -> None:
    """No byte code of files/check_release.py, which Python leaves where a test imports it."""
    left = CHART / "files" / "__pycache__"
    assert not left.exists()
    copy = shutil.copytree(CHART, tmp_path / "holdfast")
    (copy / "files" / "__pycache__").mkdir()
    (copy / "files" / "__pycache__" / "check_release.cpython-311.pyc").write_bytes(b"code")
    done = _helm("package", str(copy), f"--destination={tmp_path}")
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.glob("holdfast-*.tgz")
    with tarfile.open(package) as packed:
        names = {name.removeprefix("holdfast/") for name in packed.getnames()}
    assert {"Chart.yaml", "files/check_release.py", "templates/crd.yaml"} <= names
    assert [name for name in names if "pycache" in name] == []
