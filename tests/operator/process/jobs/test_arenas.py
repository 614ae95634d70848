"""Checkpoints in memory outlive a worker's container: killed, it is started again in its pod."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from cluster.jobs import SHARED, Job, Make, container, manifest, share
from cluster.kubectl import Kubectl
from cluster.nodes import Nodes
from cluster.rights import needs_pods

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]
_TRAIN = '''
    """Fills a model with the number of the step; says what it starts from, and what is saved."""
    import json, os, pathlib, sys, time
    import torch, torch.distributed as dist
    import holdfast
    from holdfast.flash.schedule import Schedule

    folder, steps = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, model = dist.get_rank(), torch.nn.Linear(300, 200)
    flash = holdfast.Checkpointer(None, model=model, schedule=Schedule(storage_every=0))
    start = flash.load()
    value = float(model.weight.detach().double().mean()) if start else 0.0
    saved = [int(file.read_text()) for file in folder.glob("saved-?")]
    with (folder / "starts").open("a") as file:
        file.write(json.dumps([rank, start, value, min(saved, default=0)]) + "\\n")
    for step in range(start + 1, steps + 1):
        time.sleep(0.2)
        dist.barrier()
        with torch.no_grad():
            model.weight.fill_(step)
        answer = flash.step(step)
        (folder / f"saved-{rank}.new").write_text(str(step))
        os.replace(folder / f"saved-{rank}.new", folder / f"saved-{rank}")
        if answer is holdfast.SAVE_AND_STOP or (folder / "enough").exists():
            break
    dist.barrier()
    flash.close()
'''


def _job(folder: Path) -> dict[str, Any]:
    (folder / "train.py").write_text(textwrap.dedent(_TRAIN))
    words = ("holdfast-run", "--nproc-per-node=1", f"{SHARED}/train.py", SHARED, "100000")
    body = manifest(*words, replicas=2, minReplicas=1, cleanup__pods="None")
    container(body)["resources"] = {"limits": {"memory": "2Gi"}}
    return share(body, folder)


def _starts(folder: Path) -> list[list[Any]]:
    text = (folder / "starts").read_text() if (folder / "starts").exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def _saved(folder: Path) -> list[int]:
    found = [folder / f"saved-{rank}" for rank in (0, 1)]
    return [int(file.read_text()) if file.exists() else 0 for file in found]


def _told(kubectl: Kubectl, job: Job, reason: str) -> list[str]:
    found = kubectl.json("get", "events.events.k8s.io")["items"]
    mine = [one for one in found if one["regarding"]["name"] == job.name]
    return [one["note"] for one in mine if one["reason"] == reason]


def test_a_killed_container_goes_on_from_what_its_pod_has_in_memory(
    make_job: Make, nodes: Nodes, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    """Same pod, newest complete step, nothing on storage; and no file is left by the ended job."""
    job = make_job("arenas")
    job.create(_job(tmp_path))
    job.until("ten steps", lambda: min(_saved(tmp_path)) >= 10)
    before = job.pods()
    memory = [one for one in before[0]["spec"]["volumes"] if one["name"] == "holdfast-arena"]
    assert memory == [
        {"name": "holdfast-arena", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}
    ]
    uids = {pod["metadata"]["uid"] for pod in before}
    assert len(nodes.volumes("holdfast-arena/arena-*", uids)) == 2

    nodes.tell("kill", namespace=namespace, pod="arenas-worker-1-0")
    job.until("both start again", lambda: len(_starts(tmp_path)) >= 4)
    first, second = _starts(tmp_path)[2:4]
    assert {first[0], second[0]} == {0, 1}
    assert first[1:] == second[1:]
    assert first[1] == first[2], "the weights are those of the step"
    complete = first[3]
    assert complete >= 10
    # The rank that was killed may have saved a step that it had no time to say.
    assert complete <= first[1] <= complete + 1
    job.until("more steps", lambda: min(_saved(tmp_path)) > complete + 5)
    assert [text for text in _told(kubectl, job, "CheckpointRestored") if "in memory" in text]
    after = job.pods()
    assert {pod["metadata"]["uid"] for pod in after} == uids
    restarts = {
        pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"]
        for pod in after
    }
    assert restarts == {"arenas-worker-0-0": 0, "arenas-worker-1-0": 1}
    assert len(nodes.volumes("holdfast-arena/arena-*", uids)) == 2, (
        "the memory that was there is used, and no other"
    )

    (tmp_path / "enough").touch()
    assert job.until_over()["phase"] == "Succeeded"
    job.until("no memory", lambda: not nodes.volumes("holdfast-arena/arena-*", uids))
    job.delete()
    job.until("no volume", lambda: not nodes.volumes("holdfast-arena", uids))
