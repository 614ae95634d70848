"""What the chart renders, as helm does, without a cluster."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
import shutil
import tarfile
from pathlib import Path

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
from holdfast_operator.settings import OperatorSettings
from house.repository import ROOT

pytestmark = pytest.mark.kube
_FIELDS = {field.name: field for field in dataclasses.fields(OperatorSettings)}
_SET_BY_TEMPLATE = {
    *("namespace", "identity", "image", "node_name", "lease", "probe_port"),
    "node_notices",
}
_OWN_VALUE = {"watch_namespace", "log_level", "master_pod", "job_ingress"}


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def test_lint_has_nothing_against_it() -> None:
    """`helm lint --strict` passes."""
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_renders_alike_each_time() -> None:
    """Two renderings of the same values are the same text: an upgrade without a change is none."""
    words = ("template", "holdfast", str(CHART), "--set=podLabels.b=x,podLabels.a=y")
    assert helm(*words).stdout == helm(*words).stdout != ""


def test_the_crd_of_the_chart_is_the_crd() -> None:
    """But for the annotation that keeps it when the release goes."""
    crd = one_of(render(), "CustomResourceDefinition")
    assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert crd == yaml.safe_load((ROOT / "manifests/crd/elasticjobs.yaml").read_text())


def test_the_plain_manifests_are_the_chart_with_its_defaults() -> None:
    """manifests/install.yaml has a namespace, and then what helm renders."""
    objects = list(yaml.safe_load_all((ROOT / "manifests/install.yaml").read_text()))
    assert [one for one in objects if one][1:] == render()


def test_every_setting_of_the_operator_can_be_given_with_its_own_default() -> None:
    """The chart's defaults equal those of the operator itself."""
    found = operator_settings(render())
    for name in _FIELDS.keys() - _SET_BY_TEMPLATE:
        assert getattr(found, name) == _FIELDS[name].default, name
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    names = {_camel(name) for name in _FIELDS.keys() - _SET_BY_TEMPLATE - _OWN_VALUE}
    assert set(values["settings"]) == names


def test_several_namespaces_have_a_role_each() -> None:
    """And the operator is told of them; one that is named twice counts once."""
    objects = render("watchNamespaces={team-a,b,team-a}")
    assert operator_settings(objects).watch_namespace.scopes == ("team-a", "b")
    for kind in ("Role", "RoleBinding"):
        found = [one["metadata"]["namespace"] for one in objects if one["kind"] == kind]
        assert sorted(found) == ["b", "holdfast-system", "team-a"]
    jobs = [one for one in objects if one["metadata"].get("name") == "holdfast-operator-jobs"]
    roles = [one["rules"] for one in jobs if one["kind"] == "Role"]
    assert roles[0] == roles[1]
    assert not [one for one in jobs if one["kind"].startswith("Cluster")]


def test_who_may_speak_to_jobs_reaches_the_operator() -> None:
    """Nobody is named unless jobs shall have NetworkPolicies; the right comes with them."""
    assert operator_settings(render()).job_ingress.rules is None
    objects = render("networkPolicy.jobs=true", "networkPolicy.metricsFrom[0].podSelector.a=b")
    operator, scrape = operator_settings(objects).job_ingress.rules or ()
    (peer,) = operator["from"]
    template = one_of(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= template.items()
    home = {"kubernetes.io/metadata.name": "holdfast-system"}
    assert peer["namespaceSelector"] == {"matchLabels": home}
    assert scrape == {"ports": [{"port": "metrics"}], "from": [{"podSelector": {"a": "b"}}]}
    rules = [rule for one in objects if one["kind"] == "ClusterRole" for rule in one["rules"]]
    mine = [rule["verbs"] for rule in rules if "networkpolicies" in rule["resources"]]
    assert mine == [["get", "create", "patch"]]


def test_the_operators_own_network_policy_is_as_tight_as_it_is_told() -> None:
    """Only scrapers come in; what goes out is open unless it is named."""
    found = one_of(render("networkPolicy.enabled=true"), "NetworkPolicy")["spec"]
    assert found["policyTypes"] == ["Ingress"]
    assert found["ingress"] == [{"ports": [{"port": "metrics"}]}]
    given = ("networkPolicy.enabled=true", "networkPolicy.egress[0].ports[0].port=6443")
    found = one_of(render(*given), "NetworkPolicy")["spec"]
    assert found["policyTypes"] == ["Ingress", "Egress"]
    assert found["egress"] == [{"ports": [{"port": 6443}]}]


def test_replicas_are_spread_and_drained_one_by_one() -> None:
    """Where there are two; one alone has neither, because a budget would only block its drain."""
    assert not [one for one in render() if one["kind"] == "PodDisruptionBudget"]
    objects = render("replicas=2")
    assert one_of(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    template = one_of(objects, "Deployment")["spec"]["template"]
    for one in template["spec"]["topologySpreadConstraints"]:
        assert one["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        assert one["whenUnsatisfiable"] == "ScheduleAnyway"
    own = one_of(render("replicas=2", "topologySpreadConstraints[0].a=b"), "Deployment")
    assert own["spec"]["template"]["spec"]["topologySpreadConstraints"] == [{"a": "b"}]


def test_a_digest_and_a_parents_pull_secrets_reach_every_pod() -> None:
    """The operator's, its masters', and the test's."""
    digest = "sha256:" + "0" * 64
    flags = [
        f"--set=image.digest={digest},global.imagePullSecrets[0].name=parent",
        "--set=imagePullSecrets[0].name=own",
    ]
    done = helm("template", "holdfast", str(CHART), *flags)
    assert done.returncode == 0, done.stderr
    objects = [one for one in yaml.safe_load_all(done.stdout) if one]
    secrets = [{"name": "own"}, {"name": "parent"}]
    for pod in (
        one_of(objects, "Deployment")["spec"]["template"]["spec"],
        one_of(objects, "Pod")["spec"],
    ):
        assert pod["containers"][0]["image"] == f"holdfast@{digest}"
        assert pod["imagePullSecrets"] == secrets
    assert operator_settings(objects).image == f"holdfast@{digest}"
    assert operator_settings(objects).master_pod.fields["imagePullSecrets"] == secrets


def test_extra_variables_volumes_and_mounts_are_added() -> None:
    """To the operator's own, which stay."""
    objects = render(
        *("extraEnv[0].name=HTTPS_PROXY", "extraEnv[0].value=http://proxy:3128"),
        *("extraEnvFrom[0].secretRef.name=more", "extraVolumes[0].name=trust"),
        *("extraVolumes[0].configMap.name=roots", "extraVolumeMounts[0].name=trust"),
        "extraVolumeMounts[0].mountPath=/etc/trust",
    )
    pod = one_of(objects, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["env"][-1] == {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}
    assert container["envFrom"] == [{"secretRef": {"name": "more"}}]
    assert [one["name"] for one in pod["volumes"]] == ["tmp", "trust"]
    assert [one["name"] for one in container["volumeMounts"]] == ["tmp", "trust"]


@pytest.mark.parametrize(("written", "read"), [("1", 1), ("1%", "1%"), ("100%", "100%")])
def test_a_drain_takes_a_number_or_a_share(written: str, read: object) -> None:
    """As the budget of Kubernetes has it: a number, or text."""
    objects = render(
        "crds.enabled=false", "replicas=2", f"podDisruptionBudget.maxUnavailable={written}"
    )
    assert one_of(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] == read


def test_an_interval_of_several_units_is_taken() -> None:
    """Prometheus reads it as a minute and a half."""
    objects = render("crds.enabled=false", "metrics.interval=1m30s", flags=(MONITORED,))
    for kind, field in _ENDPOINTS.items():
        assert one_of(objects, kind)["spec"][field][0]["interval"] == "1m30s"


def test_names_that_are_digits_stay_text() -> None:
    """A release or a namespace `1234` would otherwise be a number, which no cluster takes."""
    places = {"release": "1234", "namespace": "5678"}
    flags = (MONITORED, "--set-string=watchNamespaces={99}")
    objects = render(*EVERYTHING, flags=flags, **places)
    for one in objects:
        leaves = leaves_of(one).items()
        numbers = [path for path, leaf in leaves if str(leaf) in {*places.values(), "99"}]
        assert [path for path in numbers if not isinstance(leaves_of(one)[path], str)] == []
    assert {one["metadata"].get("namespace") for one in objects} == {"5678", "99", None}
    assert operator_settings(objects).watch_namespace.scopes == ("99",)


def test_large_numbers_reach_the_operator_as_numbers() -> None:
    """Helm's own way to write a million, 1e+06, is none that the operator reads."""
    deployment = one_of(render("settings.apiBurst=1000000"), "Deployment")
    env = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "HOLDFAST_OPERATOR_API_BURST", "value": "1000000"} in env


def test_what_masters_shall_have_reaches_the_operator() -> None:
    """Pull secrets are the operator's own unless masters have others."""
    values = ["imagePullSecrets[0].name=registry", "master.nodeSelector.pool=system"]
    fields = operator_settings(render(*values)).master_pod.fields
    assert fields["imagePullSecrets"] == [{"name": "registry"}]
    assert fields["nodeSelector"] == {"pool": "system"}
    assert fields["resources"]["limits"] == {"cpu": "2", "memory": "2Gi"}


def test_one_namespace_needs_no_right_beyond_it() -> None:
    """With watchNamespaces nothing but the roles for people spans the cluster."""
    objects = render("watchNamespaces={team}", "crds.enabled=false", "rbac.aggregate=false")
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
    objects = render(*values)
    assert operator_settings(objects).node_notices.value == expected
    roles = [one for one in objects if one["kind"] in ("Role", "ClusterRole")]
    rules = [rule for one in roles for rule in one["rules"] if rule.get("resources") == ["nodes"]]
    wanted = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}]
    assert rules == (wanted if expected == "on" else [])


def test_each_release_has_a_lease_of_its_own() -> None:
    """Its name is the Deployment's, and the operator has rights to no other."""
    for release, name in (("holdfast", "holdfast-operator"), ("b", "b-holdfast-operator")):
        done = helm("template", release, str(CHART), "--skip-tests", "--set=watchNamespaces={team}")
        objects = [one for one in yaml.safe_load_all(done.stdout) if one]
        assert operator_settings(objects).lease == name
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
    pod = one_of(render(), "Deployment")["spec"]["template"]["spec"]
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
    objects = render(*flags)
    for kind, field in _ENDPOINTS.items():
        (found,) = one_of(objects, kind)["spec"][field]
        assert (found["port"], found["honorLabels"]) == ("metrics", True)


@pytest.mark.parametrize("release", ["holdfast", "x" * 53, "holdfast-" + "x" * 44])
def test_the_service_monitor_finds_a_port_of_the_operators_pods(release: str) -> None:
    """By a Service of its namespace that it selects, whose pods are the Deployment's."""
    objects = render(*EVERYTHING, flags=(MONITORED,), release=release)
    monitor, deployment = one_of(objects, "ServiceMonitor"), one_of(objects, "Deployment")
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
    objects = render(*EVERYTHING, flags=(MONITORED,), release=release)
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
    done = helm("package", str(copy), f"--destination={tmp_path}")
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.glob("holdfast-*.tgz")
    with tarfile.open(package) as packed:
        names = {name.removeprefix("holdfast/") for name in packed.getnames()}
    assert {"Chart.yaml", "files/check_release.py", "templates/crd.yaml"} <= names
    assert [name for name in names if "pycache" in name] == []
