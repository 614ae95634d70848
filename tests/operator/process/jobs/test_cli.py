"""`holdfast …` with a job in a cluster: found by name, reached through the API server."""

from __future__ import annotations

import base64
import json
import signal
import textwrap
from pathlib import Path

import grpc
import pytest

from cluster.commands import Commands
from cluster.control_plane import ControlPlane
from cluster.forwarded import Forward
from cluster.jobs import SHARED, Make, looping, manifest, share
from cluster.kubectl import Kubectl
from cluster.rights import needs_pods
from holdfast_wire import keys
from holdfast_wire.channel import master_channel_options
from holdfast_wire.v1.job_pb2 import GetJobRequest
from holdfast_wire.v1.job_pb2_grpc import JobServiceStub

pytestmark = [pytest.mark.kube, pytest.mark.timeout(240), needs_pods]


@pytest.fixture
def holdfast(plane: ControlPlane, namespace: str, tmp_path: Path) -> Commands:
    """The command line."""
    return Commands(plane.kubeconfig, tmp_path, namespace)


@pytest.fixture
def training(make_job: Make, tmp_path: Path) -> str:
    """A job whose two workers train, until the test is over."""
    sizes = {"replicas": 2, "minReplicas": 1, "maxReplicas": 3}
    job = make_job("loop")
    job.create(looping(tmp_path, "--steps=100000", **sizes))
    job.until_training(2)
    return job.name


def test_every_command_works_as_with_a_local_job(
    plane: ControlPlane, kubectl: Kubectl, holdfast: Commands, training: str
) -> None:
    """Look, follow, scale, restart, replace a node, drain, stop, and look again after the end."""
    assert holdfast.json("status", training)["world_size"] == 2
    assert "loop" in holdfast.run("status")
    assert [node["node_rank"] for node in holdfast.json("nodes", training)] == [0, 1]
    assert "WorldTraining" in {event["reason"] for event in holdfast.json("events", training)}
    assert holdfast.json("goodput", training)["goodput"] > 0
    assert "loop.py" in holdfast.run("stacks", training)
    watch = holdfast.start("watch", training, "-o", "json")
    try:
        holdfast.run("scale", training, "3")
        plane.until("three", lambda: holdfast.json("status", training)["world_size"] == 3)
        assert kubectl.json("get", "ej", training)["spec"]["replicas"] == 3
        round_ = holdfast.json("status", training)["round"]
        holdfast.run("restart", training)
        plane.until("a round", lambda: holdfast.json("status", training)["round"] > round_)
        _replace(plane, kubectl, holdfast, training)
        _drain(plane, holdfast, training)
        holdfast.run("stop", training, "--now")
        lines, complaint = watch.communicate(timeout=60)
    finally:
        watch.kill()
        watch.communicate()
    assert watch.returncode == 1
    assert "job loop was stopped" in complaint
    seen = [json.loads(line) for line in lines.splitlines()]
    assert seen[-1]["status"]["phase"] == "FAILED"
    assert "NodeDraining" in {line["event"]["reason"] for line in seen if "event" in line}
    plane.until(
        "the end", lambda: "completionTime" in kubectl.json("get", "ej", training)["status"]
    )
    _check_ended(holdfast, training)


def _check_ended(holdfast: Commands, job: str) -> None:
    assert holdfast.json("status", job)["phase"] == "FAILED"
    assert "WorldTraining" in {event["reason"] for event in holdfast.json("events", job)}
    assert "has ended" in holdfast.run("scale", job, "2", code=5)
    assert "has ended" in holdfast.run("nodes", job, code=5)


def _replace(plane: ControlPlane, kubectl: Kubectl, holdfast: Commands, job: str) -> None:
    """Have one node replaced: its place has another pod, and all three train."""
    round_ = holdfast.json("status", job)["round"]
    holdfast.run("restart", job, "--node", "1")
    new = ("get", "pod", f"{job}-worker-1-1")
    plane.until("another pod", lambda: kubectl.try_run(*new).returncode == 0)

    def trains() -> bool:
        status = holdfast.json("status", job)
        return bool(status["round"] > round_ and status["world_size"] == 3)

    plane.until("three again", trains)


def _drain(plane: ControlPlane, holdfast: Commands, job: str) -> None:
    """Have one node leave at a step boundary: the others train on, nothing is charged."""
    before = holdfast.json("status", job)
    assert "node 2" in holdfast.json("drain", job, "2")["text"]

    def trains() -> bool:
        status = holdfast.json("status", job)
        return bool(status["round"] > before["round"] and status["step"] > before["step"])

    plane.until("the next round", trains)
    reasons = {event["reason"] for event in holdfast.json("events", job)}
    assert {"NodeDraining", "NodeReleased"} <= reasons


_SAVES = '''
    """Saves a small model when it is asked to."""
    import sys, time
    import torch, torch.distributed as dist
    import holdfast
    from holdfast.flash.schedule import Schedule

    torch.set_num_threads(1)
    torch.manual_seed(0)  # the ranks hold one model
    dist.init_process_group("gloo")
    schedule = Schedule(storage_every=100000)
    flash = holdfast.Checkpointer(sys.argv[1], model=torch.nn.Linear(3, 2), schedule=schedule)
    for step in range(flash.load() + 1, 100000):
        time.sleep(0.05)
        dist.barrier()
        if flash.step(step) is holdfast.SAVE_AND_STOP:
            break
    flash.close()
'''


@pytest.mark.extended(
    "the master and the ranks do the same without a cluster; every command reaches a cluster's job",
    held_by=[
        "recovery/test_checkpoints.py::test_a_world_goes_on_from_memory_and_a_smaller_one_from_what_is_left",
        "operator/process/jobs/test_cli.py::test_every_command_works_as_with_a_local_job",
    ],
)
def test_a_checkpoint_on_request_is_on_storage_when_the_command_ends(
    make_job: Make, holdfast: Commands, tmp_path: Path
) -> None:
    """All ranks save after one step and train on; the answer names the step and its directory."""
    (tmp_path / "saves.py").write_text(textwrap.dedent(_SAVES))
    words = ("holdfast-run", "--nproc-per-node=1", f"{SHARED}/saves.py", f"{SHARED}/kept")
    job = make_job("saves")
    job.create(share(manifest(*words, replicas=2), tmp_path))
    job.until_training(2)
    before = job.world
    answer = holdfast.json("checkpoint", "saves", "--reason", "an upgrade")
    assert answer["step"] > before["step"]
    assert answer["path"] == f"{SHARED}/kept/step_{answer['step']}"
    assert (tmp_path / "kept" / f"step_{answer['step']}" / "holdfast.json").is_file()
    job.until_steps(5)
    assert job.world["round"] == before["round"]


@pytest.mark.extended(
    "watchers follow masters without a cluster; in one a master is replaced in another test",
    held_by=[
        "master/process/test_master_absent.py::test_a_watcher_continues_at_the_next_master_without_a_gap",
        "operator/process/outages/test_journal_on_a_claim.py::test_a_master_whose_pod_is_deleted_is_followed_by_one_that_knows_what_it_knew",
    ],
)
def test_watching_survives_the_masters_pod(
    kubectl: Kubectl, holdfast: Commands, training: str
) -> None:
    """The master's pod is deleted under a watcher, who goes on with the next one.

    So can whoever forwards the port of the master's Service with kubectl, which ends with the pod.
    """
    watch = holdfast.start("watch", training, "-o", "json")
    assert watch.stdout is not None
    try:
        while "status" not in json.loads(watch.stdout.readline()):
            pass
        with Forward(kubectl, f"svc/{training}-master", 50051) as forward:
            before = _epoch(kubectl, training, forward)
            kubectl.run("delete", "pod", "-l", "holdfast.dev/job=loop,holdfast.dev/role=master")
            with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
                _epoch(kubectl, training, forward)
            assert "lost connection to pod" in forward.last_words()
        epoch = 0
        while epoch < 2000:
            told = json.loads(watch.stdout.readline())
            epoch = told.get("status", {}).get("epoch", 0)
    finally:
        watch.send_signal(signal.SIGINT)
        watch.communicate(timeout=30)
    assert watch.returncode == 130
    with Forward(kubectl, f"svc/{training}-master", 50051) as forward:
        assert _epoch(kubectl, training, forward) == epoch > before


_KEY_PAIR = (keys.CA_FILE, keys.KEY_FILE, keys.CERT_FILE)
"""In the order in which gRPC wants them."""


def _epoch(kubectl: Kubectl, job: str, forward: Forward) -> int:
    """Ask the master through a forwarded port, with the key pair that a person may read."""
    files = kubectl.json("get", "secret", f"{job}-user-tls")["data"]
    named = (base64.b64decode(files[name]) for name in _KEY_PAIR)
    uid = kubectl.json("get", "ej", job)["metadata"]["uid"]
    target, options = f"127.0.0.1:{forward.port}", master_channel_options(uid)
    with grpc.secure_channel(target, grpc.ssl_channel_credentials(*named), options) as channel:
        answer = JobServiceStub(channel).GetJob(GetJobRequest(), timeout=10)
    return int(answer.status.epoch)


def test_who_cannot_be_found_or_reached_is_said(
    plane: ControlPlane, make_job: Make, holdfast: Commands, tmp_path: Path
) -> None:
    """Each ends with its exit code and a sentence that says what to do."""
    assert '"absent" not found' in holdfast.run("status", "absent", code=3)
    make_job("held").create(manifest("sleep", "1", managedBy="example.com/other"))
    assert "no operator has looked at it" in holdfast.run("status", "held", code=4)
    config = json.loads(plane.kubeconfig.read_text())
    config["users"][0]["user"]["token"] = "wrong"
    stranger = tmp_path / "stranger"
    stranger.write_text(json.dumps(config))
    words = ("status", "held", f"--kubeconfig={stranger}")
    assert "log in to it again" in holdfast.run(*words, code=4)
    assert "no context 'else'" in holdfast.run("status", "held", "--context=else", code=2)


def test_who_may_only_view_is_told_which_right_is_missing(
    plane: ControlPlane, kubectl: Kubectl, holdfast: Commands, training: str, tmp_path: Path
) -> None:
    """A viewer may not read the Secret that opens the master; `edit` may."""
    kubectl.run("create", "rolebinding", "v", "--clusterrole=view", "--user=viewer")
    kubectl.run("create", "rolebinding", "e", "--clusterrole=edit", "--user=editor")
    config = json.loads(plane.kubeconfig.read_text())
    for who in ("viewer", "editor"):
        config["users"][0]["user"]["as"] = who
        (tmp_path / who).write_text(json.dumps(config))

    def asked(who: str, code: int) -> str:
        return holdfast.run("status", training, f"--kubeconfig={tmp_path / who}", code=code)

    said = asked("viewer", 4)
    assert "secrets" in said
    assert "`edit`" in said
    assert "Phase:" in asked("editor", 0)
