"""The process kubelet behaves as a kubelet where tests of the operator rely on it."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster.control_plane import ControlPlane
from cluster.kubectl import Kubectl
from cluster.nodes import Nodes
from cluster.rights import needs_pods
from house import forks
from house.patience import patience

pytestmark = [pytest.mark.kube, needs_pods]


def _until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds * patience()
    while not (found := condition()):
        assert time.monotonic() < deadline, f"it did not happen within {seconds} s"
        time.sleep(0.1)
    return found


def _pod(name: str, script: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "local", "command": ["sh", "-c", script]}
    container |= spec.pop("container", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }


def _make(kubectl: Kubectl, *objects: dict[str, Any]) -> None:
    """Make them, once the namespace has its account."""
    account = ("get", "serviceaccount", "default")
    _until(lambda: kubectl.try_run(*account).returncode == 0, 20)
    for one in objects:
        kubectl.run("create", "-f", "-", stdin=one)


def _over(kubectl: Kubectl, name: str) -> dict[str, Any]:
    def ended() -> Any:
        status = kubectl.json("get", "pod", name)["status"]
        return status if status["phase"] in {"Succeeded", "Failed"} else None

    found: dict[str, Any] = _until(ended)
    return found


def test_a_pod_finds_everything_that_its_manifest_promises(kubectl: Kubectl, nodes: Nodes) -> None:
    """Init containers, variables, files of Secrets and ConfigMaps, shared folders, its own name."""
    secret: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    secret["data"] = {"word": base64.b64encode(b"hidden").decode()}
    config: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}}
    config["data"] = {"file": "plain"}
    mounts = [
        {"name": "s", "mountPath": "/var/run/s"},
        {"name": "m", "mountPath": "/m"},
        {"name": "e", "mountPath": "/e"},
    ]
    env = [
        {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "s", "key": "word"}}},
        {"name": "PLAIN", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "file"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "BOTH", "value": "$(WORD)-$(PLAIN)"},
    ]
    script = "echo $BOTH $NODE; cat /var/run/s/word /m/file /e/first; hostname; "
    script += "echo last words > /dev/termination-log; exit 3"
    init: dict[str, Any] = {
        "name": "i",
        "image": "x",
        "command": ["sh", "-c", "echo one > /e/first"],
    }
    init["volumeMounts"] = mounts[2:]
    volumes = [
        {"name": "s", "secret": {"secretName": "s"}},
        {"name": "m", "configMap": {"name": "m"}},
        {"name": "e", "emptyDir": {}},
    ]
    pod = _pod(
        "all",
        f"{script}",
        container={"env": env, "volumeMounts": mounts},
        volumes=volumes,
        initContainers=[init],
        hostname="called",
    )
    _make(kubectl, secret, config, pod)
    status = _over(kubectl, "all")
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    assert ended["message"] == "last words\n"
    words = kubectl.run("logs", "all").split()
    assert words[0] == "hidden-plain"
    assert words[1] in {"n1", "n2"}
    assert words[2:] == ["hiddenplainone", "called"]


def test_a_container_is_started_again_as_its_policy_says(kubectl: Kubectl, nodes: Nodes) -> None:
    """OnFailure starts again after a failure; the folder of the pod stays."""
    volumes = [{"name": "e", "emptyDir": {}}]
    mounts = {"volumeMounts": [{"name": "e", "mountPath": "/e"}]}
    script = "test -f /e/x && exit 0; touch /e/x; exit 1"
    _make(
        kubectl, _pod("again", script, container=mounts, volumes=volumes, restartPolicy="OnFailure")
    )
    (container,) = _over(kubectl, "again")["containerStatuses"]
    assert container["restartCount"] == 1
    assert container["lastState"]["terminated"]["exitCode"] == 1


def test_probes_hold_a_container_back_and_end_it(kubectl: Kubectl, nodes: Nodes) -> None:
    """It is not ready before it has started, nor without being ready; it is killed if it is ill."""
    look: dict[str, Any] = {"periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 30}
    probes = {
        f"{kind}Probe": look | {"exec": {"command": ["test", "-f", f"/e/{kind}"]}}
        for kind in ("startup", "readiness", "liveness")
    }
    container = {"volumeMounts": [{"name": "e", "mountPath": "/e"}], **probes}
    volumes = [{"name": "e", "emptyDir": {}}]
    _make(
        kubectl,
        _pod(
            "probed",
            "touch /e/liveness; sleep 600",
            container=container,
            volumes=volumes,
            restartPolicy="Always",
        ),
    )

    def state() -> dict[str, Any]:
        found = kubectl.json("get", "pod", "probed")["status"].get("containerStatuses", [{}])[0]
        whole: dict[str, Any] = {"started": False, "ready": False, "restartCount": 0} | found
        return whole

    def touch(*words: str) -> None:
        kubectl.run("exec", "probed", "--", *words)

    _until(lambda: "running" in state().get("state", {}))
    touch("touch", "/e/readiness")
    assert not state()["started"]
    assert not state()["ready"]
    touch("touch", "/e/startup")
    _until(lambda: state()["started"] and state()["ready"])
    touch("rm", "/e/readiness")
    _until(lambda: state()["started"] and not state()["ready"])
    touch("rm", "/e/liveness")
    _until(lambda: state()["restartCount"] == 1)
    assert state()["lastState"]["terminated"]["exitCode"] == 128 + signal.SIGKILL
    kubectl.run("delete", "pod", "probed", "--grace-period=1", "--wait=false")


def test_what_others_say_of_a_pods_readiness_is_put_right(kubectl: Kubectl, nodes: Nodes) -> None:
    """As the node controller does, for a node that it has not heard of for a while."""
    _make(kubectl, _pod("well", "sleep 600"))
    ready = ("wait", "pod/well", "--for=condition=Ready", "--timeout=30s")
    kubectl.run(*ready)
    wrong = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    before = kubectl.json("get", "pod", "well")["metadata"]["resourceVersion"]
    kubectl.run("patch", "pod", "well", "--subresource=status", "-p", json.dumps(wrong))
    kubectl.run(*ready)
    assert kubectl.json("get", "pod", "well")["metadata"]["resourceVersion"] != before


def test_a_deleted_pod_gets_its_grace(kubectl: Kubectl, nodes: Nodes) -> None:
    """SIGTERM first, and the time to say something."""
    script = "trap 'echo bye > /out/said; exit 0' TERM; echo up; while true; do sleep 0.1; done"
    folder = Path(kubectl.kubeconfig).parent / "grace"
    folder.mkdir()
    volumes = [{"name": "o", "hostPath": {"path": str(folder)}}]
    mounts = {"volumeMounts": [{"name": "o", "mountPath": "/out"}]}
    _make(kubectl, _pod("graced", script, container=mounts, volumes=volumes))
    _until(lambda: "up" in kubectl.try_run("logs", "graced").stdout)
    kubectl.run("delete", "pod", "graced", "--timeout=20s")
    assert (folder / "said").read_text() == "bye\n"


_ASK = """
import json, ssl, urllib.request
base = "/var/run/secrets/kubernetes.io/serviceaccount/"
context = ssl.create_default_context(cafile=base + "ca.crt")
headers = {"Authorization": "Bearer " + open(base + "token").read()}
for path in ("/version", "/api/v1/namespaces/default/pods"):
    request = urllib.request.Request("https://kubernetes.default.svc" + path, headers=headers)
    try:
        print(urllib.request.urlopen(request, context=context).status)
    except urllib.error.HTTPError as error:
        print(error.code, json.load(error)["message"])
"""


def test_a_pod_speaks_to_the_api_server_as_its_account(kubectl: Kubectl, nodes: Nodes) -> None:
    """Over DNS and the Service, with a bound token, and RBAC holds."""
    _make(kubectl, _pod("ask", "", container={"command": ["python", "-c", _ASK]}))
    assert _over(kubectl, "ask")["phase"] == "Succeeded"
    said = kubectl.run("logs", "ask")
    assert said.startswith("200\n403 ")
    assert f"system:serviceaccount:{kubectl.namespace}:default" in said


def test_pods_reach_each_other_by_name(kubectl: Kubectl, nodes: Nodes) -> None:
    """Through a headless Service, before they are ready, and through a cluster address."""
    serve = (
        "import http.server as h;h.HTTPServer(('',80),h.SimpleHTTPRequestHandler).serve_forever()"
    )
    named = {"hostname": "web-0", "subdomain": "web"}
    selector = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    head: dict[str, Any] = {"apiVersion": "v1", "kind": "Service"}
    headless = {**head, "metadata": {"name": "web"}, "spec": {"clusterIP": "None", **selector}}
    front = {**head, "metadata": {"name": "front"}, "spec": selector}
    web = _pod("web", "", container={"command": ["python", "-c", serve]}, **named)
    _make(kubectl, headless, front, web)
    ask = "import urllib.request as u;print(u.urlopen('http://%s').status)"
    script = "; ".join(
        f'until python -c "{ask % host}" 2>/dev/null; do sleep 0.2; done'
        for host in ("web-0.web", "front")
    )
    _make(kubectl, _pod("ask-web", script))
    assert _over(kubectl, "ask-web")["phase"] == "Succeeded"


def test_a_command_runs_inside_a_container(kubectl: Kubectl, nodes: Nodes) -> None:
    """`kubectl exec` brings its output and its exit code."""
    _make(kubectl, _pod("in", "sleep 1000", hostname="inside"))
    _until(lambda: kubectl.json("get", "pod", "in")["status"]["phase"] == "Running")
    assert kubectl.run("exec", "in", "--", "hostname") == "inside\n"
    assert kubectl.try_run("exec", "in", "--", "sh", "-c", "exit 4").returncode == 4
    kubectl.run("delete", "pod", "in", "--grace-period=1", "--wait=false")


def test_a_pod_is_killed_as_by_the_kernel(kubectl: Kubectl, nodes: Nodes) -> None:
    """137 and OOMKilled, as after too much memory."""
    _make(kubectl, _pod("fat", "sleep 1000"))
    _until(lambda: kubectl.json("get", "pod", "fat")["status"]["phase"] == "Running")
    nodes.tell("kill", namespace=kubectl.namespace, pod="fat", reason="OOMKilled")
    ended = _over(kubectl, "fat")["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


def test_an_image_is_refused_until_it_is_not(kubectl: Kubectl, nodes: Nodes) -> None:
    """The pod waits with the reason that a kubelet gives."""
    nodes.tell("refuse-image", images=["bad"])
    _make(kubectl, _pod("pull", "true", container={"image": "bad"}))

    def waiting() -> bool:
        (container,) = kubectl.json("get", "pod", "pull")["status"].get("containerStatuses", [{}])
        reason = container.get("state", {}).get("waiting", {}).get("reason", "")
        return reason in {"ErrImagePull", "ImagePullBackOff"}

    _until(waiting)
    nodes.tell("refuse-image", images=[])
    assert _over(kubectl, "pull")["phase"] == "Succeeded"


def _ready(kubectl: Kubectl, node: str) -> str:
    conditions = kubectl.json("get", "node", node)["status"]["conditions"]
    return next(str(one["status"]) for one in conditions if one["type"] == "Ready")


def test_a_lost_node_is_noticed_and_comes_back(kubectl: Kubectl, nodes: Nodes) -> None:
    """NotReady within seconds, its pods are to go; back, what ran there has ended."""
    _make(kubectl, _pod("there", "sleep 1000", nodeName="n2"))
    stays = [{"operator": "Exists"}]
    _make(kubectl, _pod("kept", "echo begun; sleep 1000", nodeName="n2", tolerations=stays))
    again = {"restartPolicy": "Always", "tolerations": stays}
    _make(kubectl, _pod("again", "sleep 1000", nodeName="n2", **again))
    for name in ("there", "kept", "again"):
        kubectl.run("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=30s")
    nodes.tell("lose", node="n2")
    _until(lambda: _ready(kubectl, "n2") == "Unknown", 20)
    _until(lambda: kubectl.json("get", "pod", "there")["metadata"].get("deletionTimestamp"), 20)
    nodes.tell("return", node="n2")
    _until(lambda: _ready(kubectl, "n2") == "True", 20)
    _until(lambda: kubectl.try_run("get", "pod", "there").returncode != 0, 30)
    status = _over(kubectl, "kept")
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (status["phase"], ended["exitCode"], ended["reason"]) == ("Failed", 255, "Unknown")
    kubectl.run("wait", "pod/again", "--for=condition=Ready", "--timeout=30s")
    (container,) = kubectl.json("get", "pod", "again")["status"]["containerStatuses"]
    assert container["restartCount"] == 1
    assert container["lastState"]["terminated"]["exitCode"] == 255
    assert kubectl.run("logs", "kept") == "begun\n"
    kubectl.run("delete", "pod", "kept", "again", "--grace-period=1", "--timeout=20s")


def test_a_silent_node_makes_up_for_what_it_did_not_say(kubectl: Kubectl, nodes: Nodes) -> None:
    """A node back from silence reports the pod that ended and ends the pod that was deleted."""
    mark = f"98{os.getpid()}"
    kept = {"nodeName": "n2", "tolerations": [{"operator": "Exists"}]}
    _make(kubectl, _pod("ends", "while test ! -e /end; do sleep 0.1; done", **kept))
    _make(kubectl, _pod("goes", f"exec sleep {mark}", **kept))
    for name in ("ends", "goes"):
        kubectl.run("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=30s")
    nodes.tell("silence", node="n2")
    kubectl.run("exec", "ends", "--", "touch", "/end")
    kubectl.run("delete", "pod", "goes", "--force", "--grace-period=0", "--timeout=10s")
    assert _sleepers(mark)
    assert kubectl.json("get", "pod", "ends")["status"]["phase"] == "Running"
    nodes.tell("return", node="n2")
    assert _over(kubectl, "ends")["phase"] == "Succeeded"
    _until(lambda: not _sleepers(mark), 10)


def test_nothing_is_left_of_a_killed_kubelet(plane: ControlPlane, kubectl: Kubectl) -> None:
    """SIGKILL to it ends every process of its pods; mounts and interfaces go with them."""
    mark = f"99{os.getpid()}"
    # The other tests' kubelet, which still runs, has the first two.
    nodes = Nodes(plane, count=1, first=3)
    try:
        _make(kubectl, _pod("left", f"sleep {mark} & sleep {mark}", nodeName="n3"))
        _until(lambda: len(_sleepers(mark)) == 2)
    finally:
        nodes.stop()
    _until(lambda: not _sleepers(mark), 5)
    assert str(plane.folder / "pods") not in Path("/proc/self/mounts").read_text()


# An interpreter that finds no locale names LC_CTYPE itself.
_FACTS = """
import json, os, sys
agent, names = os.getppid(), "Uid Gid Groups Seccomp NoNewPrivs CapEff CapPrm SigIgn Umask".split()
statuses = [
    dict(line.split(":\\t", 1) for line in open(f"/proc/{process}/status"))
    for process in (agent, "self")
]
print(json.dumps({
    "statuses": [[status[name] for name in names] for status in statuses],
    "path": sys.path, "argv": sys.argv, "prefix": sys.prefix, "cwd": os.getcwd(),
    "variables": sorted(set(os.environ) - {"PYTHONNODEBUGRANGES", "LC_CTYPE"}),
    "environ": os.stat(f"/proc/{agent}/environ").st_uid, "host": os.uname().nodename,
    "files": len(os.listdir("/proc/self/fd")),
}))
print("forked" if b"fork_server.py" in open(f"/proc/{agent}/cmdline", "rb").read() else "started")
"""


def test_an_agent_that_is_a_fork_is_what_a_start_would_have_made(
    kubectl: Kubectl, nodes: Nodes
) -> None:
    """An agent's container shares an import of torch, unless a variable is read at a start."""
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "facts"}}
    config |= {"data": {"facts.py": _FACTS}}
    words = ["holdfast-run", "--standalone", "--nproc-per-node=1", "/facts/facts.py", "--one"]
    security = {"runAsUser": 1234, "runAsGroup": 1234, "allowPrivilegeEscalation": False}
    spec: dict[str, Any] = {"command": words, "securityContext": security}
    spec["volumeMounts"] = [{"name": "facts", "mountPath": "/facts"}]
    volumes = [{"name": "facts", "configMap": {"name": "facts"}}]
    # Whoever runs the tests may have set some, such as PYTHONUNBUFFERED.
    ours = {name for name in os.environ if name.startswith(forks.AT_START)}
    spec["env"] = [
        {"name": name, "value": os.environ[name]}
        for name in sorted(ours - {"PYTHONPATH", *forks.THREADS})
    ]
    read_once = [*spec["env"], {"name": "PYTHONNODEBUGRANGES", "value": "1"}]
    _make(
        kubectl,
        config,
        _pod("fork", "", container=spec, volumes=volumes, hostname="one"),
        _pod("start", "", container=spec | {"env": read_once}, volumes=volumes, hostname="one"),
    )
    said = {}
    for name, way in (("fork", "forked"), ("start", "started")):
        assert _over(kubectl, name)["phase"] == "Succeeded", kubectl.run("logs", name)
        lines = kubectl.run("logs", name).splitlines()
        assert way in lines
        said[name] = json.loads(next(line for line in lines if line.startswith("{")))
    assert said["fork"] == said["start"]


def _sleepers(mark: str) -> list[int]:
    every = psutil.process_iter(["cmdline"])
    return [one.pid for one in every if one.info["cmdline"] == ["sleep", mark]]


def test_a_native_sidecar_starts_first_and_ends_last(
    kubectl: Kubectl, nodes: Nodes, tmp_path: Path
) -> None:
    """The others wait for its startup probe; it starts again, and goes once they are done."""
    volume = {"name": "w", "hostPath": {"path": str(tmp_path)}}
    mount = {"name": "w", "mountPath": "/w"}
    script = (
        "echo start >> /w/sidecar; trap 'echo end >> /w/order; exit 0' TERM; "
        "[ -e /w/first ] || { touch /w/first; exit 1; }; "
        "sleep 1; touch /w/ready; while :; do sleep 0.1; done"
    )
    sidecar = {
        "name": "mesh",
        "image": "local",
        "restartPolicy": "Always",
        "command": ["sh", "-c", script],
        "startupProbe": {
            "exec": {"command": ["test", "-e", "/w/ready"]},
            "periodSeconds": 1,
            "timeoutSeconds": 10,  # a busy machine is slow to start a process in the pod
            "failureThreshold": 60,
        },
        "volumeMounts": [mount],
    }
    pod = _pod(
        "beside",
        "test -e /w/ready && echo main >> /w/order; sleep 1",
        container={"volumeMounts": [mount]},
        initContainers=[sidecar],
        volumes=[volume],
    )
    _make(kubectl, pod)
    status = _over(kubectl, "beside")
    assert status["phase"] == "Succeeded"
    assert (tmp_path / "order").read_text().split() == ["main", "end"]
    (mesh,) = status["initContainerStatuses"]
    assert mesh["restartCount"] == 1
    assert len((tmp_path / "sidecar").read_text().splitlines()) == 2
    kubectl.run("delete", "pod", "beside")
