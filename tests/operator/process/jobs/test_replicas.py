"""Replicas of local SGD as pods: they come and go, and those that stay keep processes and steps."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cluster.claims import make_claim, remove_claim
from cluster.commands import Commands
from cluster.jobs import SHARED, Job, Make, container, manifest, pod_spec, share
from cluster.kubectl import Kubectl
from cluster.rights import needs_pods
from house.repository import ROOT

pytestmark = [
    pytest.mark.kube,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("witness"),
    needs_pods,
]
_NAME: Final = "replicas"
_CLAIM: Final = "journal"
_NODES: Final = 2
"""Workers of a replica."""
_INTERVAL: Final = 5
"""Steps between two outer rounds."""
_ROUNDS_LEFT: Final = 6
"""Outer rounds after which all end, once they are told: time to read it before the last step."""
_TRAIN: Final = '''
    """A rank of a replica; its log has its process and each step, and at last its weights."""
    import json, os, pathlib, sys, time
    import torch, torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    import holdfast
    from holdfast.local_sgd import LocalSGD, LocalSGDConfig, members_of_environment, mesh_of

    class Position:
        step = 0

        def state_dict(self):
            return {"step": self.step}

        def load_state_dict(self, state):
            self.step = state["step"]

    folder, interval = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    job = holdfast.init()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    members = members_of_environment()
    replica, rank = int(os.environ["HOLDFAST_REPLICA"]), dist.get_rank()
    torch.manual_seed(0)
    mesh = mesh_of(members, "cpu")
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2))
    for part in model:
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    config = LocalSGDConfig(local_sgd_sync_interval=interval)
    local, position = LocalSGD(model, optimizer, members, config), Position()
    local.carry("position", position)
    flash = holdfast.Checkpointer(folder / "kept", shards=local.shards())
    if not local.joined:
        position.step = flash.load()
    # A replica never begins twice under one number: "x".
    log = (folder / f"log-{replica}-{rank}").open("x", buffering=1)

    def tell(**what):
        log.write(json.dumps(what) + "\\n")

    def is_over():
        file = folder / "last-step"
        return file.exists() and position.step >= int(file.read_text())

    tell(pid=os.getpid(), host=os.uname().nodename, joined=local.joined)
    while not is_over():
        time.sleep(0.1)
        x = torch.rand(8, 8)
        loss = ((model(x) - x[:, :2]) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        position.step += 1
        tell(step=position.step)
        step = flash.step if local.replicas.rank == 0 else job.step
        if step(position.step, samples=8, loss=loss.item()) is holdfast.SAVE_AND_STOP:
            flash.close()
            sys.exit()
    local.finish()
    tell(weights=[one.tolist() for value in model.parameters() for one in value.to_local()])
    flash.close(position.step if local.replicas.rank == 0 else None)
'''


class _Watch:
    """`holdfast watch` on the job, across its masters, until it has ended."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Take over a watcher that was just started."""
        self._process = process
        self.status: dict[str, Any] = {}
        """The newest one."""
        self.events: list[dict[str, Any]] = []
        """All, oldest first."""
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            self.status = told.get("status", self.status)
            if "event" in told:
                self.events.append(told["event"])

    def texts(self, reason: str) -> list[str]:
        """Return the texts of all events of a reason."""
        return [one["text"] for one in self.events if one["reason"] == reason]

    def code(self) -> int:
        """Wait for its end; return its exit code."""
        return self._process.wait(30)

    def stop(self) -> None:
        """End it for certain."""
        self._process.kill()
        self._process.wait(10)
        self._thread.join(10)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


@dataclasses.dataclass(frozen=True, slots=True)
class _Rank:
    """What one rank of a replica has written."""

    begun: dict[str, Any]
    """Its process and its host, and whether it has joined others that trained."""
    steps: list[int]
    weights: list[Any]
    """Of its shards, once it has finished."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Scene:
    """The job, and everybody who looks at it."""

    job: Job
    kubectl: Kubectl
    holdfast: Commands
    watch: _Watch
    folder: Path

    def ranks(self, replica: int) -> list[_Rank]:
        """Return what the ranks of a replica have written, by rank; of some, perhaps, nothing."""
        files = [self.folder / f"log-{replica}-{rank}" for rank in range(_NODES)]
        return [_read(file) for file in files if file.exists()]

    def processes(self, *replicas: int) -> dict[int, list[Any]]:
        """Return where the ranks of replicas began, and as which processes."""
        return {one: [rank.begun for rank in self.ranks(one)] for one in replicas}

    def until_together(self, *replicas: int) -> int:
        """Wait until just these replicas are in the roster, and all have stepped since.

        Returns the epoch of that roster.
        """
        watch, what = self.watch, f"a roster of {replicas}"
        self.until(what, lambda: watch.status.get("outer_replicas") == list(replicas))
        epoch = int(watch.status["outer_epoch"])
        self.until_steps(*replicas)
        return epoch

    def until_steps(self, *replicas: int) -> None:
        """Wait until all ranks of replicas have made all steps of two more outer rounds."""
        newest = [max(one.steps, default=0) for one in self.ranks(replicas[0])]
        goal = max(newest, default=0) + 2 * _INTERVAL

        def there() -> bool:
            found = [one for replica in replicas for one in self.ranks(replica)]
            enough = len(found) == _NODES * len(replicas)
            return enough and all(goal in one.steps for one in found)

        self.until(f"step {goal} of replicas {replicas}", there)

    def until(self, what: str, happens: Callable[[], bool]) -> None:
        """Wait; a failure tells what the master says, and where each rank stands."""
        try:
            self.job.until(what, happens)
        except AssertionError as error:
            told = "\n".join(str(one) for one in self.watch.events[-20:])
            stands = self.holdfast.run("stacks", _NAME)
            raise AssertionError(f"{error}\n--- events\n{told}\n--- stacks\n{stands}") from error

    def used(self) -> dict[str, int]:
        """Return what each budget has paid that has paid something."""
        return {name: used for name, used in self.job.used().items() if used}


def _read(file: Path) -> _Rank:
    lines = file.read_text().splitlines(keepends=True)
    told = [json.loads(line) for line in lines if line.endswith("\n")]
    steps = [one["step"] for one in told if "step" in one]
    weights = [one["weights"] for one in told if "weights" in one]
    return _Rank(told[0] if told else {}, steps, weights)


@pytest.fixture
def scene(kubectl: Kubectl, make_job: Make, tmp_path: Path) -> Iterator[_Scene]:
    """A job of two replicas of two workers, whose master's journal is on a claim."""
    (tmp_path / "train.py").write_text(textwrap.dedent(_TRAIN))
    words = ("holdfast-run", "--nproc-per-node=1", f"{SHARED}/train.py", SHARED, str(_INTERVAL))
    body = manifest(
        *words,
        replicas=2 * _NODES,
        minReplicas=_NODES,
        maxReplicas=3 * _NODES,
        localSGD__replicaNodes=_NODES,
        master__journal={"mode": "PersistentVolumeClaim", "claimName": _CLAIM},
    )
    del container(body)["env"]  # ranks with an optimizer start sooner where all is imported before
    make_claim(kubectl, _CLAIM, tmp_path / "journal", "n2")
    job = make_job(_NAME)
    job.create(share(body, tmp_path))
    job.until("its master", lambda: job.holds("MasterReady"))
    holdfast = Commands(kubectl.kubeconfig, tmp_path, kubectl.namespace)
    watch = _Watch(holdfast.start("watch", _NAME, "-o", "json"))
    try:
        yield _Scene(job, kubectl, holdfast, watch, tmp_path)
    finally:
        watch.stop()


@pytest.mark.extended(
    "the master decides who stays, in a cluster as without; the operator's part is pods",
    held_by=[
        "recovery/test_replicas.py::test_kills_at_any_instant_restart_one_replica_and_cost_the_others_no_step",
        "operator/process/jobs/test_life.py::test_a_job_follows_its_size_and_pauses_when_it_is_told",
        "simulation/test_seeds.py::test_a_job_of_replicas_survives_whatever_happens",
    ],
)
def test_replicas_that_stay_keep_processes_and_steps_whoever_comes_and_goes(scene: _Scene) -> None:
    """4 workers, 6 and 4; a killed rank, a lost pod, a lost master: each replica runs in one go."""
    first = scene.until_together(1, 2)
    assert "replicas 1, 2, since epoch 1" in scene.holdfast.run("status", _NAME)
    stay = scene.processes(1, 2)
    scene.job.patch(replicas=3 * _NODES)
    assert scene.until_together(1, 2, 3) > first
    assert scene.processes(1, 2) == stay, scene.job.seen()
    _kill_a_rank(scene)
    _lose_a_pod(scene)
    _lose_the_master(scene)
    refused = scene.holdfast.run("scale", _NAME, str(2 * _NODES - 1), code=5)
    assert "must be a multiple of localSGD.replicaNodes" in refused
    scene.holdfast.run("scale", _NAME, str(2 * _NODES))
    stay = scene.processes(1, 4)
    scene.until_together(1, 4)
    assert scene.processes(1, 4) == stay, scene.job.seen()
    scene.job.until("four pods", lambda: len(scene.job.pods()) == 2 * _NODES)
    _end(scene)
    assert scene.processes(1, 4) == stay
    scene.job.delete()
    remove_claim(scene.kubectl, _CLAIM)


def _kill_a_rank(scene: _Scene) -> None:
    """Kill one of replica 2: both of its ranks begin anew in their pods, as replica 4."""
    stay, pods = scene.processes(1, 3), scene.job.live()
    lost = scene.processes(2)[2][1]
    kill = f"kill -9 {lost['pid']}"
    scene.kubectl.run("exec", f"{lost['host']}-0", "--", "sh", "-c", kill)
    scene.until_together(1, 3, 4)
    assert scene.processes(1, 3) == stay, scene.job.seen()
    assert scene.job.live() == pods
    assert [one["host"] for one in scene.processes(4)[4]] == [
        f"{_NAME}-worker-2",
        f"{_NAME}-worker-3",
    ]
    scene.job.until("its charge", lambda: scene.used() == {"failures": 1})


def _lose_a_pod(scene: _Scene) -> None:
    """Delete one of replica 3 without a grace: with its successor it is replica 5, later."""
    stay = scene.processes(1, 4)
    pod = f"{_NAME}-worker-5"
    scene.kubectl.run("delete", "pod", f"{pod}-0", "--force", "--grace-period=0")
    scene.until_together(1, 4, 5)
    assert scene.processes(1, 4) == stay, scene.job.seen()
    assert f"{pod}-1" in scene.job.live()
    # A deletion is nobody's failure.
    wanted = {"failures": 1, "preemptions": 1}
    scene.job.until("its charge", lambda: scene.used() == wanted)
    changes = " ".join(scene.watch.texts("RosterChanged"))
    for what in ("2 is out", "4 comes in", "3 is out", "5 comes in"):
        assert f"replica {what}" in changes


def _lose_the_master(scene: _Scene) -> None:
    """Delete its pod: the next one knows the replicas from the journal, and changes nothing."""
    job, watch = scene.job, scene.watch
    stay, before = scene.processes(1, 4, 5), watch.status
    (master,) = job.live("master")
    scene.kubectl.run("delete", "pod", master)
    job.until("the next master", lambda: watch.status["epoch"] > before["epoch"])
    job.until("its word", lambda: job.holds("MasterReady"))
    scene.until_steps(1, 4, 5)
    assert scene.processes(1, 4, 5) == stay, job.seen()
    assert watch.status["outer_epoch"] == before["outer_epoch"]
    assert watch.status["outer_replicas"] == [1, 4, 5]
    assert scene.used() == {"failures": 1, "preemptions": 1}


def _end(scene: _Scene) -> None:
    """Let all end after one step: no replica has left one out, and all have the same weights."""
    fresh = scene.folder / "last-step.new"
    with scene.job.awaited("Complete"):
        last = max(scene.ranks(1)[0].steps) + _ROUNDS_LEFT * _INTERVAL
        fresh.write_text(str(last))
        fresh.replace(scene.folder / "last-step")
    assert scene.watch.code() == 0
    assert "RosterChanged" in scene.job.events()
    ranks = {number: scene.ranks(number) for number in range(1, 6)}
    for number, both in ranks.items():
        for one in both:
            assert one.begun["joined"] is (number > 2)
            begin, end = one.steps[0], one.steps[-1]
            assert one.steps == list(range(begin, end + 1)), f"replica {number}"
            assert begin % _INTERVAL == 1
            assert (begin == 1) is (number <= 2)
            assert (end == last) is (number in {1, 4})
    assert all(one.weights for one in ranks[1])
    assert [one.weights for one in ranks[1]] == [one.weights for one in ranks[4]]


@pytest.mark.extended(
    "replicas on one machine, and the sample's way into a cluster, have tests of their own",
    held_by=[
        "recovery/test_replicas.py::test_kills_at_any_instant_restart_one_replica_and_cost_the_others_no_step",
        "operator/process/jobs/test_first_job.py::test_a_job_trains_to_its_end",
    ],
)
def test_the_example_of_replicas_runs_in_a_cluster(make_job: Make, tmp_path: Path) -> None:
    """Its pods need a script and a volume, as the examples' page says; two replicas train on it."""
    file = ROOT / "examples" / "with_local_sgd" / "job-elastic.yaml"
    body = yaml.safe_load(file.read_text())
    mounts = [{"name": "runs", "mountPath": str(ROOT / "runs")}]
    container(body).update(image="any", workingDir=str(ROOT), volumeMounts=mounts)
    pod_spec(body)["volumes"] = [{"name": "runs", "hostPath": {"path": str(tmp_path)}}]
    job = make_job(body["metadata"]["name"])
    job.create(body)
    with job.awaited("Complete", seconds=120):
        pass
    assert "RosterChanged" in job.events(), job.seen()
    assert list(tmp_path.glob("local-sgd-*/step_200/holdfast.json"))
    job.delete()
