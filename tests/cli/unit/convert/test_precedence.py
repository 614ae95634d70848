"""Where two fields of a foreign job meet, the one that decides there decides here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from holdfast_cli.convert.command import convert_documents, write
from holdfast_cli.convert.conversion import Conversion
from holdfast_cli.convert.rules import Outcome
from holdfast_cli.errors import BadInputError
from holdfast_operator.crd import load_crd
from holdfast_operator.spec import read_job

_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"


def _pod(command: str, name: str = "pytorch") -> dict[str, Any]:
    container = {"name": name, "image": "i", "command": command.split()}
    return {"spec": {"containers": [container]}}


def _pytorchjob(command: str = "torchrun x.py", **spec: Any) -> dict[str, Any]:
    worker = {"replicas": 2, "template": _pod(command)}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "job"},
        "spec": {"pytorchReplicaSpecs": {"Worker": worker}} | spec,
    }


def _roles(*policies: str | None) -> dict[str, Any]:
    """Return Master and Worker with their restart policies."""
    template = _pod("torchrun x.py")
    roles = [
        {"template": template} | ({"restartPolicy": policy} if policy else {})
        for policy in policies
    ]
    return {"pytorchReplicaSpecs": dict(zip(("Master", "Worker"), roles, strict=True))}


def _dlrover(worker: Mapping[str, Any] | None = None, **replicas: Any) -> dict[str, Any]:
    template = _pod("dlrover-run x.py", "main")
    own = {"replicas": 2, "template": template} | dict(worker or {})
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "job"},
        "spec": {"replicaSpecs": {"worker": own} | replicas},
    }


def _runtime(pod: Mapping[str, Any] | None = None, **policy: Any) -> dict[str, Any]:
    """Return a runtime; pod: further fields of its container."""
    template = _pod("torchrun x.py", "node")
    template["spec"]["containers"][0] |= pod or {}
    labels = {_STEP: "trainer"}
    job = {"metadata": {"labels": labels}, "spec": {"template": template}}
    jobs = [{"name": "node", "template": job}]
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "torch"},
        "spec": {
            "mlPolicy": {"torch": {}} | policy,
            "template": {"spec": {"replicatedJobs": jobs}},
        },
    }


def _trainjob(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "job"},
        "spec": {"runtimeRef": {"name": "torch"}} | spec,
    }


def _patch(template: Mapping[str, Any], job: str = "node") -> list[Any]:
    """Return the patches of a TrainJob: one, of a pod's template."""
    entry = {"name": job, "template": {"spec": {"template": template}}}
    spec = {"template": {"spec": {"replicatedJobs": [entry]}}}
    return [{"manager": "example.io/team", "trainingRuntimeSpec": spec}]


def _made(*documents: dict[str, Any]) -> Conversion:
    """Convert; what is not refused is a job that our own admission takes."""
    made = convert_documents(documents)
    if not made.refused:
        read_job(write(made, "job.yaml"), load_crd())
    return made


def _container(made: Conversion) -> dict[str, Any]:
    container: dict[str, Any] = made.spec["worker"]["template"]["spec"]["containers"][0]
    return container


def _told(made: Conversion, outcome: Outcome) -> list[str]:
    return [str(one) for one in made.findings if one.outcome is outcome]


@pytest.mark.parametrize(("seconds", "kept"), [(0, 0), (60, 60), (None, None)])
def test_a_job_that_is_deleted_at_once_still_is(seconds: int | None, kept: int | None) -> None:
    """0 seconds after the end is a time; no field is none."""
    made = _made(_pytorchjob(runPolicy={"ttlSecondsAfterFinished": seconds}))
    assert made.spec.get("cleanup", {}).get("ttlSecondsAfterFinished") == kept


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("activeDeadlineSeconds", {"activeDeadlineSeconds": 0}),
        ("scheduling.gang.timeoutSeconds", {"schedulingPolicy": {"scheduleTimeoutSeconds": 0}}),
    ],
)
def test_a_zero_that_an_elasticjob_does_not_know_is_named(
    field: str, value: dict[str, Any]
) -> None:
    """It asks for something, so it does not vanish: admission says what the field takes."""
    with pytest.raises(Exception, match=f"spec.{field}"):
        _made(_pytorchjob(runPolicy=value))


@pytest.mark.parametrize(
    ("command", "given", "kept", "reason"),
    [
        ("torchrun --nproc_per_node=4 x.py", "auto", 4, "the command's flag wins"),
        ("torchrun --nproc-per-node 4 x.py", "8", 4, "the command's flag wins"),
        ("torchrun --nproc-per-node 4 x.py", "4", 4, None),
        ("torchrun x.py", "8", 8, None),
        ("python x.py", "auto", 1, "a script without a launcher is one process"),
        ("python x.py", "1", 1, None),
    ],
)
def test_a_launchers_flag_wins_over_the_field(
    command: str, given: str, kept: int, reason: str | None
) -> None:
    """Kubeflow passes the field as a variable, over which torchrun's own flag wins."""
    made = _made(_pytorchjob(command, nprocPerNode=given))
    assert made.spec["nprocPerNode"] == kept
    told = [f'spec.nprocPerNode ("{given}"): {reason}'] if reason else []
    assert [one for one in _told(made, Outcome.DROPPED) if "nprocPerNode" in one] == told
    trainer = {"command": command.split()}
    more = {"numProcPerNode": int(given)} if given.isdecimal() else {}
    made = _made(_trainjob(trainer=trainer | more), _runtime())
    assert made.spec["nprocPerNode"] == kept


def test_a_plain_script_that_is_to_start_processes_itself_is_refused() -> None:
    """One process with a world of eight for each pod has no counterpart."""
    made = _made(_pytorchjob("python x.py", nprocPerNode="8"))
    (told,) = _told(made, Outcome.REFUSED)
    assert told.startswith('spec.nprocPerNode ("8"): the command starts one process; write torchr')
    made = _made(
        _trainjob(trainer={"command": ["python", "x.py"], "numProcPerNode": 8}), _runtime()
    )
    assert [one.field for one in made.refused] == ["spec.trainer.numProcPerNode"]


def test_the_older_field_of_processes_wins_as_in_kubeflow() -> None:
    """Kubeflow writes the variable of elasticPolicy behind the other one."""
    made = _made(_pytorchjob(nprocPerNode="2", elasticPolicy={"nProcPerNode": 3}))
    assert made.spec["nprocPerNode"] == 3
    assert 'spec.nprocPerNode ("2"): spec.elasticPolicy.nProcPerNode wins' in _told(
        made, Outcome.DROPPED
    )


@pytest.mark.parametrize(
    ("flag", "sizes", "dropped"),
    [
        ("--nnodes=1:4", (1, 4), ["minReplicas", "maxReplicas"]),
        ("--nnodes=2", (None, None), ["maxReplicas"]),
        ("--nnodes=$PET_NNODES", (2, 3), []),
        ("--nnodes=2:3", (2, 3), []),
        ("", (2, 3), []),
    ],
)
def test_bounds_of_the_launcher_win_over_those_of_the_policy(
    flag: str, sizes: tuple[int | None, int | None], dropped: list[str]
) -> None:
    """PET_NNODES is the policy; any other --nnodes is torchrun's own."""
    elastic = {"minReplicas": 2, "maxReplicas": 3}
    made = _made(_pytorchjob(f"torchrun {flag} x.py", elasticPolicy=elastic))
    assert (made.spec.get("minReplicas"), made.spec.get("maxReplicas")) == sizes
    told = [one for one in _told(made, Outcome.DROPPED) if "elasticPolicy" in one]
    assert [one.partition(" ")[0].rpartition(".")[2] for one in told] == dropped
    assert all(one.endswith("the command's --nnodes wins") for one in told)


@pytest.mark.parametrize("flag", ["--nnodes=$MIN:4", "--node_unit=$UNIT"])
def test_a_size_that_only_the_pod_knows_is_refused(flag: str) -> None:
    """A variable that is neither DLRover's nor Kubeflow's could be any number."""
    worker = {"template": _pod(f"dlrover-run {flag} x.py", "main")}
    (told,) = _told(_made(_dlrover(worker)), Outcome.REFUSED)
    assert "is known only in the pod" in told


@pytest.mark.parametrize(
    ("master", "worker", "refused"),
    [
        ("Never", "OnFailure", 1),
        ("ExitCode", "OnFailure", 1),
        (None, "Never", 1),
        ("Always", "OnFailure", 0),
        (None, "OnFailure", 0),
        ("ExitCode", "ExitCode", 0),
    ],
)
def test_a_master_with_another_restart_policy_is_refused(
    master: str | None, worker: str, refused: int
) -> None:
    """One kind of worker has one policy; those that both retry are one."""
    made = _made(_pytorchjob(**_roles(master, worker)))
    fields = ["spec.pytorchReplicaSpecs.Master.restartPolicy"] * refused
    assert [one.field for one in made.refused] == fields


@pytest.mark.parametrize(
    ("backoff", "restarts", "limit", "dropped"),
    [
        (None, 10, 10, ["spec.pytorchReplicaSpecs.Worker.restartPolicy"]),
        (5, None, 0, ["spec.runPolicy.backoffLimit"]),
        (
            5,
            3,
            3,
            ["spec.runPolicy.backoffLimit", "spec.pytorchReplicaSpecs.Worker.restartPolicy"],
        ),
        (0, 0, 0, []),
        (None, None, 0, []),
    ],
)  # fmt: skip
def test_never_beside_a_limit_names_the_one_that_goes(
    backoff: int | None, restarts: int | None, limit: int, dropped: list[str]
) -> None:
    """Under Never Kubeflow retries no pod, but torchrun still restarts inside of it."""
    job = _pytorchjob(elasticPolicy={"maxRestarts": restarts}, runPolicy={"backoffLimit": backoff})
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = "Never"
    made = _made(job)
    assert made.spec["failurePolicy"]["budgets"]["failures"]["limit"] == limit
    assert [one.field for one in made.findings] == dropped


@pytest.mark.parametrize(("count", "limit"), [(3, 6), (0, 0), (None, 0)])
def test_never_beside_dlrovers_restarts_is_named(count: int | None, limit: int) -> None:
    """DLRover's master goes by restartCount, for each of two workers."""
    made = _made(_dlrover({"restartPolicy": "Never", "restartCount": count}))
    assert made.spec["failurePolicy"]["budgets"]["failures"]["limit"] == limit
    fields = ["spec.replicaSpecs.worker.restartPolicy"] if limit else []
    assert [one.field for one in made.findings] == fields


@pytest.mark.parametrize(
    ("replicas", "roles", "told"),
    [(0, None, "replicas (0): there is none"), (2, 2, None), (None, 1, None)],
)
def test_an_evaluator_of_no_pods_is_none(
    replicas: int | None, roles: int | None, told: str | None
) -> None:
    """A role of one pod would evaluate what nobody asked for."""
    evaluator = {"replicas": replicas, "template": _pod("python e.py", "main")}
    made = _made(_dlrover(evaluator=evaluator))
    counts = [role["replicas"] for role in made.spec.get("extraRoles", [])]
    assert counts == ([roles] if roles else [])
    assert [one.rpartition("evaluator.")[2] for one in _told(made, Outcome.DROPPED)] == (
        [told] if told else []
    )


def test_an_evaluators_exit_codes_are_named() -> None:
    """A role's pods are replaced after each failure, whatever its code."""
    evaluator = {"restartPolicy": "ExitCode", "template": _pod("python e.py", "main")}
    made = _made(_dlrover(evaluator=evaluator))
    assert made.spec["extraRoles"][0]["restartPolicy"] == "OnFailure"
    assert "evaluator.restartPolicy" in _told(made, Outcome.DROPPED)[0]


def test_lists_of_a_patch_are_merged_by_the_key_that_kubernetes_takes() -> None:
    """Two mounts of one volume stay two; a list without a key is the patch's."""
    mounts = [{"name": "data", "mountPath": "/a"}, {"name": "data", "mountPath": "/b"}]
    own = {
        "volumeMounts": [*mounts, {"name": "code", "mountPath": "/c"}],
        "ports": [{"containerPort": 1}, {"containerPort": 2, "name": "b"}],
    }
    runtime = _runtime(own)
    job = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    job["template"]["spec"]["tolerations"] = [{"key": "old", "operator": "Exists"}]
    container = {
        "name": "node",
        "volumeMounts": [{"name": "data", "mountPath": "/d"}, {"name": "new", "mountPath": "/c"}],
        "ports": [{"containerPort": 2, "name": "c"}],
    }
    spec = {"containers": [container], "tolerations": [{"key": "new", "operator": "Exists"}]}
    made = _made(_trainjob(runtimePatches=_patch({"spec": spec})), runtime)
    got = _container(made)
    assert [(one["name"], one["mountPath"]) for one in got["volumeMounts"]] == [
        *(("data", "/a"), ("data", "/b")),
        *(("new", "/c"), ("data", "/d")),
    ]
    assert got["ports"] == [{"containerPort": 1}, {"containerPort": 2, "name": "c"}]
    assert made.spec["worker"]["template"]["spec"]["tolerations"] == spec["tolerations"]


def test_a_variable_of_a_trainjob_takes_the_place_of_the_runtimes() -> None:
    """A value beside the source of another one would be no variable; resources are merged."""
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    own = {
        "env": [{"name": "A", "valueFrom": source}, {"name": "B", "value": "1"}],
        "resources": {"limits": {"nvidia.com/gpu": 8, "memory": "1Gi"}},
    }
    trainer = {
        "env": [{"name": "A", "value": "2"}],
        "resourcesPerNode": {"limits": {"memory": "2Gi"}},
    }
    got = _container(_made(_trainjob(trainer=trainer), _runtime(own)))
    assert got["env"] == [{"name": "A", "value": "2"}, {"name": "B", "value": "1"}]
    assert got["resources"] == {"limits": {"nvidia.com/gpu": 8, "memory": "2Gi"}}


@pytest.mark.parametrize(
    ("job", "outcome"), [("launcher", "REFUSED"), ("model-initializer", "DROPPED")]
)
def test_a_patch_of_another_job_is_named(job: str, outcome: str) -> None:
    """It would change pods that an ElasticJob does not have."""
    spec = {"nodeSelector": {"pool": "gpu"}}
    made = _made(_trainjob(runtimePatches=_patch({"spec": spec}, job)), _runtime())
    (told,) = (one for one in made.findings if one.field.endswith(".name"))
    assert (told.outcome, told.value) == (Outcome[outcome], f'"{job}"')
    assert "nodeSelector" not in made.spec["worker"]["template"]["spec"]


@pytest.mark.parametrize(
    ("resources", "policy", "wanted"),
    [
        ({"requests": {"cpu": "3500m"}, "limits": {"cpu": 8}}, {}, 4),
        ({"limits": {"cpu": 2}}, {"torch": {"numProcPerNode": "auto"}}, 2),
        ({}, {}, 1),
        ({"limits": {"nvidia.com/gpu": 8, "cpu": 2}}, {}, None),
        ({"limits": {"nvidia.com/gpu": 8}}, {"torch": {"numProcPerNode": 4}}, 4),
        ({"limits": {"cpu": 2}}, {"torch": None}, None),
    ],
)
def test_processes_of_a_trainjob_without_a_number_are_trainers(
    resources: dict[str, Any], policy: dict[str, Any], wanted: int | None
) -> None:
    """Trainer counts the CPUs that the container asks for, unless it asks for GPUs."""
    runtime = _runtime({"resources": resources}, **policy)
    if policy.get("torch", {}) is None:
        del runtime["spec"]["mlPolicy"]["torch"]
    assert _made(_trainjob(), runtime).spec.get("nprocPerNode") == wanted


@pytest.mark.parametrize("policy", ["jax", "xgboost", "mpi", "flux"])
def test_a_policy_that_only_stands_there_is_refused(policy: str) -> None:
    """Kubeflow's own runtime of JAX says no more than `jax: {}`."""
    runtime = _runtime(**{policy: {}})
    del runtime["spec"]["mlPolicy"]["torch"]
    made = _made(_trainjob(), runtime)
    assert [one.field for one in made.refused] == [f"of the runtime: spec.mlPolicy.{policy}"]


def test_an_unknown_field_is_refused_even_if_it_is_empty() -> None:
    """A policy of a newer version may decide by being there; an empty known one says nothing."""
    made = _made(_trainjob(), _runtime(tensorflow={}))
    assert [one.field for one in made.refused] == ["of the runtime: spec.mlPolicy.tensorflow"]
    assert _made(_pytorchjob(runPolicy={}, elasticPolicy={"metrics": []})).refused == ()


def test_the_runtime_has_the_kind_that_the_job_names() -> None:
    """Two kinds of runtimes may share a name."""
    local = _runtime({"image": "local"}) | {"kind": "TrainingRuntime"}
    cluster = _runtime({"image": "cluster"})
    assert _container(_made(_trainjob(), local, cluster))["image"] == "cluster"
    named = _trainjob(runtimeRef={"name": "torch", "kind": "TrainingRuntime"})
    assert _container(_made(named, cluster, local))["image"] == "local"
    with pytest.raises(BadInputError, match="kubectl get trainingruntime torch"):
        _made(named, cluster)


@pytest.mark.parametrize(("own", "jobs", "least"), [(9, 5, 5), (5, 9, 5), (None, 9, 9)])
def test_the_nearer_deadline_holds(own: int | None, jobs: int, least: int) -> None:
    """Trainer ends the TrainJob at one, Kubernetes its Job at the other."""
    runtime = _runtime()
    job = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    job["activeDeadlineSeconds"] = jobs
    spec = _made(_trainjob(activeDeadlineSeconds=own), runtime).spec
    assert spec["activeDeadlineSeconds"] == least


@pytest.mark.parametrize(("policy", "size", "told"), [({"numNodes": 2}, 2, 1), (None, 3, 0)])
def test_a_jobs_parallelism_is_the_size_without_a_policy(
    policy: dict[str, Any] | None, size: int, told: int
) -> None:
    """With a policy numNodes is, and the number that goes is named."""
    runtime = _runtime(**(policy or {}))
    if policy is None:
        del runtime["spec"]["mlPolicy"]
    job = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    job["parallelism"] = 3
    made = _made(_trainjob(), runtime)
    assert made.spec["replicas"] == size
    assert sum("parallelism (3)" in one for one in _told(made, Outcome.DROPPED)) == told


@pytest.mark.parametrize(
    ("job", "name"),
    [(_pytorchjob("python x.py"), "pytorch"), (_dlrover(), "main")],
    ids=["pytorchjob", "dlrover"],
)
def test_the_container_that_trains_is_the_one_of_the_operators_name(
    job: dict[str, Any], name: str
) -> None:
    """A sidecar in front of it keeps its command; ours has to stand first."""
    key = "pytorchReplicaSpecs" if name == "pytorch" else "replicaSpecs"
    (role,) = job["spec"][key].values()
    containers = role["template"]["spec"]["containers"]
    containers.insert(0, {"name": "logs", "image": "l", "command": ["python", "ship.py"]})
    made = _made(job)
    got = made.spec["worker"]["template"]["spec"]["containers"]
    assert [one["name"] for one in got] == [name, "logs"]
    assert [one["command"][0] for one in got] == ["holdfast-run", "python"]
    containers[0]["name"] = "worker"
    (told,) = _told(_made(job), Outcome.REFUSED)
    assert told.startswith(f"spec.{key}.")
    assert 'containers[0].name ("worker"): is the name' in told


def test_names_of_roles_are_read_in_any_case() -> None:
    """Kubeflow writes them as it wants them."""
    job = _pytorchjob()
    roles = job["spec"]["pytorchReplicaSpecs"]
    roles["worker"] = roles.pop("Worker")
    made = _made(job)
    assert (made.refused, made.spec["replicas"]) == ((), 2)


def test_a_hostname_that_pods_cannot_share_is_named() -> None:
    """The operator gives each pod its own, so that of the template goes with a word."""
    job = _pytorchjob()
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["hostname"] = "trainer"
    (told,) = _told(_made(job), Outcome.DROPPED)
    assert told.endswith('template.spec.hostname ("trainer"): each pod has its own')


@pytest.mark.parametrize(("variable", "refused"), [("RANK", 1), ("MINE", 0)])
def test_a_reference_to_a_variable_of_the_operator_is_refused(variable: str, refused: int) -> None:
    """Kubernetes puts it into the words only where the pod has it."""
    made = _made(_pytorchjob(f"python x.py --rank=$({variable})"))
    assert ["$(RANK) is not set" in one for one in _told(made, Outcome.REFUSED)] == [True] * refused
    job = _pytorchjob(f"python x.py --rank=$({variable})")
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": variable, "value": "0"}]
    assert _made(job).refused == ()


@pytest.mark.parametrize(
    "words",
    [
        ["python", "-m", "torch.distributed.launch", "x.py"],
        ["sh", "-c", "python -m torch.distributed.launch x.py"],
    ],
)
def test_the_old_launcher_gave_scripts_an_argument(words: list[str]) -> None:
    """Without --use-env a script reads --local-rank, which holdfast-run does not write."""
    job = _pytorchjob()
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["command"] = words
    (told,) = _told(_made(job), Outcome.REFUSED)
    assert "torch.distributed.launch: gives the script --local-rank" in told
    assert "holdfast-run" in " ".join(_container(_made(job))["command"])
    container["command"] = [one.replace("launch", "launch --use-env") for one in words]
    if len(container["command"]) == 4:
        container["command"] = " ".join(container["command"]).split()
    assert _made(job).refused == ()
