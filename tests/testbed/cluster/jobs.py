"""A job in the test cluster: its manifest, a script that really trains, what is seen of it."""

from __future__ import annotations

import contextlib
import copy
import json
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from agents.loop_script import loop_script
from cluster.control_plane import ClusterError, ControlPlane
from cluster.kubectl import CommandFailedError, Kubectl
from house.patience import patience

SHARED: Final = "/work-files"
"""Where a job's pods see the test's own folder."""
_OWNED_KINDS: Final = (
    ("api/v1", "pods"),
    ("api/v1", "services"),
    ("api/v1", "secrets"),
    ("apis/apps/v1", "controllerrevisions"),
    ("apis/policy/v1", "poddisruptionbudgets"),
    ("apis/networking.k8s.io/v1", "networkpolicies"),
)
"""API group and kind of what the operator makes for a job."""
_ENDS: Final = {"Complete", "Failed"}
_TRAIN: Final = '''
    """Fits a line on gloo; rank 0 writes what it has learnt after every step."""
    import argparse, os, pathlib, sys, time
    import torch, torch.distributed as dist
    import holdfast

    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    parser.add_argument("--exit", default="", help="CODE:RANK:STEP, once")
    parser.add_argument("--save-every", type=int, default=1, help="steps; and when told to stop")
    parser.add_argument("--state", type=pathlib.Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    job = holdfast.init()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = torch.nn.Linear(2, 1)
    done, file, mark = 0, args.state / "state.pt", args.state / "exited"
    if file.exists():
        saved = torch.load(file, weights_only=True)
        model.load_state_dict(saved["model"])
        done = saved["step"]

    def save(step):
        torch.save({"model": model.state_dict(), "step": step}, f"{file}.new")
        os.replace(f"{file}.new", file)

    print(f"rank {rank} of {world} begins after step {done}", flush=True)
    for step in range(done + 1, args.steps + 1):
        while step == args.steps and (args.state / "hold").exists():
            time.sleep(0.05)
        time.sleep(args.step_seconds)
        x = torch.rand(8, 2)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        model.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.data -= 0.1 * parameter.grad / world
        code, _, where = args.exit.partition(":")
        if code and where == f"{rank}:{step}" and not mark.exists():
            mark.touch()
            sys.exit(int(code))
        if rank == 0:
            with open(args.state / "steps", "a") as log:
                print(step, world, time.time(), file=log)
            if step % args.save_every == 0:
                save(step)
        if job.step(step, samples=8, loss=loss.item()) is holdfast.SAVE_AND_STOP:
            if rank == 0:
                save(step)
            print(f"rank {rank} saves and stops after step {step}", flush=True)
            break
    dist.barrier()
    dist.destroy_process_group()
'''


class Job:
    """One job, and what the API server says of it."""

    def __init__(
        self, plane: ControlPlane, kubectl: Kubectl, name: str, log: Callable[[], str]
    ) -> None:
        """Name a job; nothing is made yet.

        Args:
            plane: The cluster.
            kubectl: A person's kubectl in its namespace.
            name: Of the job.
            log: The operator's last words, for failures.
        """
        self.plane, self.kubectl, self.name = plane, kubectl, name
        self._log = log

    def create(self, manifest: dict[str, Any]) -> None:
        """Make it."""
        body = copy.deepcopy(manifest)
        body["metadata"]["name"] = self.name
        self.kubectl.run("create", "-f", "-", stdin=body)

    def _read(self, group: str, what: str) -> Any:
        """Ask as kubectl would; a process of kubectl for each look would be half of a test."""
        answer = self.plane.api.get(f"/{group}/namespaces/{self.kubectl.namespace}/{what}")
        if not answer.ok:
            raise CommandFailedError(f"get {what}: {answer.message}")
        return answer.body

    def _list(self, group: str, kind: str, chosen: str = "") -> Any:
        return self._read(group, f"{kind}?labelSelector={quote(chosen)}")["items"]

    def patch(self, **spec: Any) -> None:
        """Change fields of its spec."""
        self.kubectl.run("patch", "ej", self.name, "--type=merge", "-p", json.dumps({"spec": spec}))

    @property
    def body(self) -> dict[str, Any]:
        """The whole object."""
        found: dict[str, Any] = self._read("apis/holdfast.dev/v1alpha1", f"elasticjobs/{self.name}")
        return found

    @property
    def status(self) -> dict[str, Any]:
        """Its status; empty before the first."""
        found: dict[str, Any] = self.body.get("status", {})
        return found

    @property
    def world(self) -> dict[str, Any]:
        """The world that trains, as the status has it."""
        found: dict[str, Any] = self.status.get("world", {})
        return found

    def condition(self, kind: str) -> dict[str, Any]:
        """One condition; empty where there is none."""
        found = (one for one in self.status.get("conditions", ()) if one["type"] == kind)
        return next(found, {})

    def holds(self, kind: str) -> bool:
        """Return whether a condition is true."""
        return self.condition(kind).get("status") == "True"

    @contextlib.contextmanager
    def awaited(self, condition: str, seconds: int = 60) -> Iterator[None]:
        """Do something while a person already waits for a condition with kubectl."""
        words = ("wait", f"ej/{self.name}", f"--for=condition={condition}", f"--timeout={seconds}s")
        watching = self.kubectl.start(*words)
        try:
            yield
            said = watching.communicate(timeout=seconds * patience() + 5)[0]
        finally:
            watching.kill()
            watching.wait()
        assert watching.returncode == 0, f"{condition}: {said}\n{self.seen()}"

    def pods(self, role: str = "worker") -> list[dict[str, Any]]:
        """Its pods of one role that exist."""
        chosen = f"holdfast.dev/job={self.name},holdfast.dev/role={role}"
        found: list[dict[str, Any]] = self._list("api/v1", "pods", chosen)
        return found

    def uids(self) -> set[str]:
        """Return the UIDs of its workers' pods."""
        return {pod["metadata"]["uid"] for pod in self.pods()}

    def live(self, role: str = "worker") -> list[str]:
        """Names of its pods that run and stay."""
        return sorted(
            pod["metadata"]["name"]
            for pod in self.pods(role)
            if pod["status"].get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        )

    def until(self, what: str, happens: Callable[[], bool]) -> None:
        """Wait; a failure tells what is seen of the job."""
        try:
            self.plane.until(what, happens)
        except ClusterError as error:
            raise AssertionError(f"{error}\n{self.seen()}") from error

    def until_training(self, size: int) -> None:
        """Wait until a world of so many workers has made a step."""

        def trains() -> bool:
            status = self.status
            world = status.get("world", {})
            whole = world.get("activeReplicas") == size and status["phase"] == "Running"
            return bool(whole and world.get("step", 0) > 0)

        self.until(f"a world of {size}", trains)

    def until_steps(self, more: int = 5) -> None:
        """Wait until so many steps were made from now on."""
        begin = int(self.world.get("step", 0))
        self.until(f"{more} more steps", lambda: self.world.get("step", 0) >= begin + more)

    def until_over(self) -> dict[str, Any]:
        """Wait for its end; return the status."""
        self.until("the end", lambda: "completionTime" in self.status)
        return self.status

    def ended(self) -> tuple[str, str]:
        """Wait for its end; return the true one of Complete and Failed, with its reason."""
        ends = [one for one in self.until_over()["conditions"] if one["type"] in _ENDS]
        (last,) = (one for one in ends if one["status"] == "True")
        return last["type"], last["reason"]

    def used(self) -> dict[str, int]:
        """Return what each budget has paid."""
        return {one["name"]: one["used"] for one in self.status.get("budgets", ())}

    def events(self) -> list[str]:
        """Reasons of the events on it, oldest first."""
        found = self._list("apis/events.k8s.io/v1", "events")
        mine = [one for one in found if one["regarding"]["name"] == self.name]
        return [one["reason"] for one in sorted(mine, key=lambda one: str(one["eventTime"]))]

    def until_gone(self) -> None:
        """Wait until nothing of it is left."""
        chosen = f"holdfast.dev/job={self.name}"
        self.until(
            "the clean-up",
            lambda: not any(self._list(group, kind, chosen) for group, kind in _OWNED_KINDS),
        )

    def delete(self, *flags: str) -> None:
        """Delete it, and wait until nothing of it is left."""
        words = ("delete", "ej", self.name, "--ignore-not-found", "--wait=false", *flags)
        self.kubectl.run(*words)
        self.until_gone()

    def seen(self) -> str:
        """Everything that a person would look at."""
        told = self.kubectl.try_run("describe", "ej", self.name).stdout
        pods = self.kubectl.try_run("get", "pods", "-o", "wide").stdout
        logs = [
            f"--- {name}\n{self.kubectl.try_run('logs', name, '--tail=15').stdout}"
            for name in (line.split()[0] for line in pods.splitlines()[1:])
        ]
        return "\n".join([told, pods, *logs, self._log()])


def manifest(*command: str, grace_s: int = 10, **spec: Any) -> dict[str, Any]:
    """A job whose worker runs a command; `a__b` in `spec` is the field b of a.

    Its agents import nothing but torch before the first fork: no script here has an optimizer.
    `sleep` hears no SIGTERM as the first process of its pod, and lasts as long as its grace.
    """
    env = [{"name": "HOLDFAST_PRELOAD", "value": "-torch"}]
    worker = {"name": "worker", "image": "i", "command": list(command), "env": env}
    pod = {"containers": [worker], "terminationGracePeriodSeconds": grace_s}
    body: dict[str, Any] = {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "job"},
        "spec": {"replicas": 1, "worker": {"template": {"spec": pod}}},
    }
    for path, value in spec.items():
        place = body["spec"]
        *groups, last = path.split("__")
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    return body


def training(folder: Path, *flags: str, nproc: int = 1, **spec: Any) -> dict[str, Any]:
    """A job that trains with real torch; its state lies in `folder`, which all its pods share.

    While the folder has a file `hold` the last step is not made.
    """
    (folder / "train.py").write_text(textwrap.dedent(_TRAIN))
    words = ("holdfast-run", f"--nproc-per-node={nproc}", f"{SHARED}/train.py")
    return share(manifest(*words, f"--state={SHARED}", *flags, **spec), folder)


def looping(folder: Path, *flags: str, nproc: int = 1, **spec: Any) -> dict[str, Any]:
    """A job that only counts steps, by the flags of `loop_script`; `folder` is for the script."""
    words = ("holdfast-run", f"--nproc-per-node={nproc}", *loop_script(folder, *flags))
    return manifest(*words, **spec)


def share(body: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Let all pods of a manifest's worker see one folder, as `SHARED`; return the manifest."""
    pod_spec(body)["volumes"] = [{"name": "shared", "hostPath": {"path": str(folder)}}]
    container(body)["volumeMounts"] = [{"name": "shared", "mountPath": SHARED}]
    return body


def until_stands(file: Path) -> int:
    """Wait until no step is written for a second; return when the last one was."""
    last, since = file.stat().st_mtime_ns, time.monotonic()
    while time.monotonic() - since < 1.0:
        now = file.stat().st_mtime_ns
        if now != last:
            last, since = now, time.monotonic()
        time.sleep(0.02)
    return last


def pod_spec(body: dict[str, Any]) -> dict[str, Any]:
    """The spec of the worker's pod in a manifest, to be changed in place."""
    found: dict[str, Any] = body["spec"]["worker"]["template"]["spec"]
    return found


def container(body: dict[str, Any]) -> dict[str, Any]:
    """The worker's container of a manifest, to be changed in place."""
    found: dict[str, Any] = pod_spec(body)["containers"][0]
    return found


Make = Callable[[str], Job]
"""Names a job of the test's own."""
