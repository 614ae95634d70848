"""The chart as helm renders it, without a cluster."""

from __future__ import annotations

import subprocess
from typing import Any, Final

import yaml

from cluster.release import CHART
from cluster.tools import tools_folder
from holdfast_operator.settings import OperatorSettings, read_settings

MONITORED: Final = "--api-versions=monitoring.coreos.com/v1"
"""What `helm template` is told where Prometheus' operator is in the cluster."""
EVERYTHING: Final = (
    *("replicas=2", "metrics.dashboard.enabled=true", "networkPolicy.enabled=true"),
    "crds.enabled=false",
)
"""Values with which every object is rendered but the CRD, which takes seconds to read."""


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    """Run helm, whatever it answers."""
    command = [str(tools_folder() / "helm"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


def render(
    *values: str,
    flags: tuple[str, ...] = ("--skip-tests",),
    release: str = "holdfast",
    namespace: str = "holdfast-system",
) -> list[dict[str, Any]]:
    """Return the objects that a release with these values (KEY=VALUE) would have."""
    chosen = [f"--set={value}" for value in values]
    words = ("template", release, str(CHART), f"--namespace={namespace}")
    done = helm(*words, *flags, *chosen)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def one_of(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Return the first object of a kind."""
    return next(one for one in objects if one["kind"] == kind)


def operator_settings(objects: list[dict[str, Any]]) -> OperatorSettings:
    """Return the settings as the operator reads them in its pod."""
    container = one_of(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return read_settings({one["name"]: one.get("value", "x") for one in container["env"]})


def leaves_of(found: object, path: str = "") -> dict[str, object]:
    """Return what is no group and no list in an object, by its path."""
    if isinstance(found, dict):
        parts = found.items()
    elif isinstance(found, list):
        parts = dict(enumerate(found)).items()
    else:
        return {path: found}
    return {
        name: leaf for key, part in parts for name, leaf in leaves_of(part, f"{path}.{key}").items()
    }
