"""The way from v1alpha1 to v1beta1, as docs/reference/api-stability.md plans it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from cluster.control_plane import ControlPlane
from holdfast_operator.crd import load_crd
from jobs.job_files import job

pytestmark = pytest.mark.kube
_GROUP: Final = "next.example"
"""Of a copy of the CRD: the cluster's own one serves other tests."""
_CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_CRD: Final = f"{_CRDS}/elasticjobs.{_GROUP}"


def _with_versions(served: dict[str, bool], stored: str) -> dict[str, Any]:
    """Return the CRD of a release that serves some versions of one schema, and stores one."""
    crd: dict[str, Any] = yaml.safe_load(load_crd())
    crd["metadata"]["name"] = f"elasticjobs.{_GROUP}"
    crd["spec"]["group"] = _GROUP
    crd["spec"]["names"] |= {"shortNames": ["nextej"], "categories": []}
    (only,) = crd["spec"]["versions"]
    crd["spec"]["versions"] = []
    for name, deprecated in served.items():
        version = {**copy.deepcopy(only), "name": name, "storage": name == stored}
        crd["spec"]["versions"].append(version | ({"deprecated": True} if deprecated else {}))
    return crd


@pytest.fixture
def release(plane: ControlPlane) -> Iterator[Any]:
    """Installs releases of the CRD, one over the other."""
    done = plane.api.post(_CRDS, _with_versions({"v1alpha1": False}, "v1alpha1"))
    assert done.ok, done.message
    plane.until("the first release", lambda: _readable(plane, "v1alpha1"))

    def install(served: dict[str, bool], stored: str) -> None:
        done = plane.api.merge(_CRD, {"spec": _with_versions(served, stored)["spec"]})
        assert done.ok, done.message
        plane.until("the release", lambda: all(_readable(plane, one) for one in served))

    yield install
    plane.api.delete(_CRD)


def _readable(plane: ControlPlane, version: str) -> bool:
    return plane.api.get(f"/apis/{_GROUP}/{version}/elasticjobs").ok


def test_a_stored_job_lives_through_all_three_releases(
    plane: ControlPlane, namespace: str, release: Any
) -> None:
    """Both versions show the same job in both directions, and v1alpha1 can be taken away."""
    where = f"namespaces/{namespace}/elasticjobs"
    first = {**job("old"), "apiVersion": f"{_GROUP}/v1alpha1"}
    made = plane.api.post(f"/apis/{_GROUP}/v1alpha1/{where}", first)
    assert made.ok, made.message
    release({"v1alpha1": False, "v1beta1": False}, "v1alpha1")
    old, new = (f"/apis/{_GROUP}/{version}/{where}/old" for version in ("v1alpha1", "v1beta1"))
    assert plane.api.get(new).body["spec"] == made.body["spec"]
    assert plane.api.merge(new, {"spec": {"suspend": True}}).ok
    assert plane.api.get(old).body["spec"] == {**made.body["spec"], "suspend": True}
    release({"v1alpha1": True, "v1beta1": False}, "v1beta1")
    stored = plane.api.get(_CRD).body["status"]["storedVersions"]
    assert stored == ["v1alpha1", "v1beta1"]
    body = plane.api.get(new).body
    assert plane.api.call("PUT", new, body).ok
    assert "v1alpha1 ElasticJob is deprecated" in str(plane.api.get(old).warnings)
    assert plane.api.merge(f"{_CRD}/status", {"status": {"storedVersions": ["v1beta1"]}}).ok
    release({"v1beta1": False}, "v1beta1")
    assert plane.api.get(new).body["spec"] == body["spec"]
    assert plane.api.get(new).body["metadata"]["uid"] == made.body["metadata"]["uid"]
    plane.until("the end of v1alpha1", lambda: not _readable(plane, "v1alpha1"))


def test_a_version_with_stored_jobs_cannot_be_taken_away(
    plane: ControlPlane, namespace: str, release: Any
) -> None:
    """The API server itself refuses a release that skips the migration."""
    release({"v1alpha1": False, "v1beta1": False}, "v1beta1")
    too_soon = {"spec": _with_versions({"v1beta1": False}, "v1beta1")["spec"]}
    refused = plane.api.merge(_CRD, too_soon)
    assert not refused.ok
    assert "storedVersions" in refused.message
