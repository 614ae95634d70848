"""The images that `make images` builds, also as the nodes run them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cluster.kubectl import CommandFailedError, Kubectl
from cluster.real import image_contents
from cluster.real.images import image_folder, lacking, operator_image
from cluster.real.node import RealNodes
from house.repository import ROOT

pytestmark = [
    pytest.mark.node,
    pytest.mark.slow,
    pytest.mark.timeout(1200),  # a build without a cache takes minutes
    pytest.mark.skipif(bool(lacking()), reason=lacking()),
]
_MOST_MEGABYTES = 120
"""What the operator's image may have beyond its base."""
_REVISION = "0123abcd"
"""Not the checkout's own: a commit during the build would make it another."""
_NAMES = {"operator": "holdfast", "worker": "holdfast-worker"}


def _pod(name: str, *command: str) -> dict[str, Any]:
    """Obeys the Pod Security standard, and leaves the user to the image."""
    rights = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    container = {
        "name": "it",
        "image": operator_image(),
        "imagePullPolicy": "Never",
        "command": command,
        "securityContext": rights | {"capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def test_the_operators_image_has_what_it_runs_and_no_more(
    nodes: RealNodes, kubectl: Kubectl
) -> None:
    """In a restricted namespace all its modules are imported; there is no torch and no shell."""
    standard = "pod-security.kubernetes.io/enforce=restricted"
    kubectl.run("label", "namespace", kubectl.namespace, standard)
    source = Path(image_contents.__file__).read_text(encoding="utf-8")
    kubectl.run("create", "-f", "-", stdin=_pod("look", "python3", "-I", "-c", source))
    sleep = ("python3", "-c", "import time; time.sleep(600)")
    kubectl.run("create", "-f", "-", stdin=_pod("stay", *sleep))
    try:
        kubectl.run("wait", "pod/stay", "--for=condition=Ready", "--timeout=50s")
        with pytest.raises(CommandFailedError, match="executable file not found"):
            kubectl.run("exec", "stay", "--", "sh", "-c", "true")
        assert "--in-pod" in kubectl.run("exec", "stay", "--", "holdfast-master", "--help")
        kubectl.run("wait", "pod/look", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=50s")
        found = json.loads(kubectl.run("logs", "look"))
    finally:
        kubectl.run("delete", "pod", "look", "stay", "--now")
    size, modules = found.pop("megabytes"), found.pop("modules")
    assert 40 < size < _MOST_MEGABYTES
    assert modules > 100
    assert found == {
        "uid": 65532,
        "gid": 65532,
        "capabilities": "0000000000000000",
        "not imported": [],
        "imported": [],
        "shells": [],
        "written": [],
        "without byte code": [],
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, dict[str, Any]]]:
    """What a build without a cache said, and what buildah says of both images."""
    folder = tmp_path_factory.mktemp("again")
    environ = {**os.environ, "TORCH": "none", "TAG": "again", "BASE": "", "REVISION": _REVISION}
    command = [str(ROOT / "scripts" / "images.sh"), "--no-cache", "--storage", f"{folder}/storage"]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        storage = ["--root", f"{folder}/storage", "--runroot", f"{folder}/run"]
        inspect = ["unshare", "-m", "buildah", *storage, "inspect"]
        return done.stdout, {
            name: json.loads(subprocess.check_output([*inspect, f"localhost/{name}:again"]))
            for name in _NAMES.values()
        }
    finally:
        shutil.rmtree(folder / "storage", ignore_errors=True)


def test_two_builds_have_the_same_layers(
    built: tuple[str, dict[str, dict[str, Any]]],
) -> None:
    """Of equal sources, on one base and by one builder: no time, no order of files is in them."""
    for name, again in built[1].items():
        first = json.loads((image_folder() / f"{name}.json").read_text())
        layers = first["OCIv1"]["rootfs"]["diff_ids"]
        assert len(layers) > 2
        assert again["OCIv1"]["rootfs"]["diff_ids"] == layers, name


def test_images_say_what_they_are(built: tuple[str, dict[str, dict[str, Any]]]) -> None:
    """Labels by the names of the OCI; a user that is not root."""
    for image in built[1].values():
        config = image["OCIv1"]["config"]
        labels = {key.rpartition(".")[2]: value for key, value in config["Labels"].items()}
        assert config["User"] == "65532:65532"
        assert labels["licenses"] == "Apache-2.0"
        assert labels["revision"] == _REVISION
        assert re.fullmatch(r"\d+\.\d+\.\d+\S*", labels["version"])
        assert labels["name"].startswith("localhost/holdfast-debian")


def test_the_build_ends_with_sizes_and_bills_of_materials(
    built: tuple[str, dict[str, dict[str, Any]]],
) -> None:
    """The operator's is within its bar; each bill names every library that pip installed."""
    sizes = dict(re.findall(r"^localhost/([\w-]+):again +\d+ +(\d+) ", built[0], re.MULTILINE))
    assert sizes.keys() == set(_NAMES.values())
    assert 40 < int(sizes["holdfast"]) <= _MOST_MEGABYTES
    for part in _NAMES:
        bill = json.loads((ROOT / "build" / "images" / f"{part}.cdx.json").read_text())
        listed = {one["name"].lower().replace("_", "-") for one in bill["components"]}
        pins = (ROOT / "images" / f"{part}.txt").read_text(encoding="utf-8")
        wanted = set(re.findall(r"^([\w-]+)==[^;\n]+\\$", pins, re.MULTILINE))
        assert len(wanted) > 20
        assert wanted | {"holdfast"} <= listed
