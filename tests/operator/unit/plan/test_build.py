"""A pod as a plain process: command, environment, what is refused and what is left out."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_operator.plan.pods import PodSlot
from holdfast_operator.pods.command import CommandError, read_command
from holdfast_operator.pods.environment import RESERVED, PodIdentity
from holdfast_operator.pods.process import build_process, check_job, expand, job_notices
from holdfast_operator.spec.admission import ElasticJob
from holdfast_wire import keys
from jobs.job_files import TEMPLATE, job, read


def _job(container: dict[str, Any] | None = None, /, **pod: Any) -> ElasticJob:
    main = {"name": "worker", "command": ["train"], **(container or {})}
    spec = {"containers": [main], **pod}
    return read(job(minReplicas=2, maxReplicas=8, worker={"template": {"spec": spec}}))


def _who(slot: PodSlot = PodSlot("worker", 3)) -> PodIdentity:  # noqa: B008, frozen
    return PodIdentity(
        job="t",
        namespace="team",
        job_uid="ju",
        slot=slot,
        pod_name=slot.pod_name("t", 1),
        pod_uid="pu",
        master="127.0.0.1:5",
        tls_dir="/tls",
    )


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain", "plain"),
        ("$(A)", "1"),
        ("x$(A)y$(B)z", "x1y$(A)z"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$(NONE)", "$(NONE)"),
        ("$A", "$A"),
        ("$", "$"),
        ("$$", "$"),
        ("$(A", "$(A"),
        ("$()", "$()"),
        ("$(A)$(A", "1$(A"),
        ("$(B)", "$(A)"),
        ("a$b(c)", "a$b(c)"),
    ],
)
def test_references_are_expanded_as_in_kubernetes(text: str, result: str) -> None:
    """Known names are replaced once, `$$` is a dollar, everything else stays."""
    assert expand(text, {"A": "1", "B": "$(A)"}) == result


def test_a_worker_gets_the_contract_of_agents_and_of_torchrun() -> None:
    """All that holdfast-run or an unmodified torchrun needs stands in its environment."""
    env = build_process(_job().spec, _who()).env
    assert env == {
        "HOLDFAST_MASTER": "127.0.0.1:5",
        "HOLDFAST_JOB": "t",
        "HOLDFAST_JOB_UID": "ju",
        "HOLDFAST_POD_UID": "pu",
        "HOLDFAST_NODE_RANK": "3",
        "HOLDFAST_TLS_DIR": "/tls",
        "HOLDFAST_NPROC_PER_NODE": "auto",
        "HOLDFAST_NNODES": "2:8",
        "PET_RDZV_BACKEND": "holdfast",
        "PET_RDZV_ENDPOINT": "127.0.0.1:5",
        "PET_RDZV_ID": "ju",
        "PET_NNODES": "2:8",
        "PET_NODE_RANK": "3",
        "PET_NPROC_PER_NODE": "auto",
    }
    assert set(env) == RESERVED


def test_an_extra_pod_learns_only_whose_it_is() -> None:
    """It is not part of the world: no rank and no certificate."""
    role = {"name": "eval", "template": {"spec": {"containers": [{"name": "c", "command": ["e"]}]}}}
    spec = read(job(extraRoles=[role])).spec
    process = build_process(spec, _who(PodSlot("eval", 0)))
    assert process.argv == ("e",)
    assert set(process.env) == {keys.ENV_MASTER, keys.ENV_JOB, keys.ENV_JOB_UID, keys.ENV_POD_UID}


def test_command_arguments_and_environment_are_put_together() -> None:
    """Values may use what stands before them and Holdfast's own; the last of a name wins."""
    found = _job(
        {
            "command": ["run", "--rank=$(HOLDFAST_NODE_RANK)"],
            "args": ["$(B)", "$(NOT)", "$$(B)"],
            "workingDir": "/w",
            "env": [
                {"name": "A", "value": "1"},
                {"name": "B", "value": "$(A)-$(C)"},
                {"name": "C", "value": "3"},
                {"name": "A", "value": "2"},
                {"name": "EMPTY"},
                {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "NS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
                {"name": "UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
            ],
        },
        terminationGracePeriodSeconds=5,
    )
    assert check_job(found) == ()
    process = build_process(found.spec, _who())
    assert process.argv == ("run", "--rank=3", "1-$(C)", "$(NOT)", "$(B)")
    own = {name: value for name, value in process.env.items() if name not in RESERVED}
    assert own == {
        "A": "2",
        "B": "1-$(C)",
        "C": "3",
        "EMPTY": "",
        "POD": "t-worker-3-1",
        "NS": "team",
        "UID": "pu",
    }
    assert (process.working_dir, process.grace_s) == ("/w", 5)


@pytest.mark.parametrize(
    ("names", "argv"), [(("a", "worker"), ("2",)), (("a", "b"), ("1",)), (("worker", "a"), ("1",))]
)
def test_the_container_named_worker_trains_else_the_first(
    names: tuple[str, str], argv: tuple[str, ...]
) -> None:
    """The other containers are left out, with a notice."""
    containers = [{"name": name, "command": [str(at)]} for at, name in enumerate(names, 1)]
    found = read(job(worker={"template": {"spec": {"containers": containers}}}))
    assert check_job(found) == ()
    assert build_process(found.spec, _who()).argv == argv
    assert any("is not started on this machine" in notice for notice in job_notices(found))


def test_a_grace_of_zero_is_a_second() -> None:
    """Zero would mean in Kubernetes: forget the pod while it runs."""
    assert build_process(_job(terminationGracePeriodSeconds=0).spec, _who()).grace_s == 1
    assert build_process(_job().spec, _who()).grace_s == 30


C = "spec.worker.template.spec.containers[0]"
BAD_CONTAINERS: list[tuple[dict[str, Any], str]] = [
    ({"command": None}, f"{C}.command: must be set"),
    ({"command": []}, f"{C}.command: must be set"),
    ({"command": "train --x"}, f'{C}.command: "train --x" is not a list'),
    ({"command": ["train", 3]}, f"{C}.command[1]: 3 is not a text; write it in quotes"),
    ({"args": ["--lr", 0.1]}, f"{C}.args[1]: 0.1 is not a text"),
    ({"args": ["a\0b"]}, f'{C}.args[0]: "a\\u0000b" has a NUL character'),
    ({"workingDir": 5}, f"{C}.workingDir: 5 is not a text"),
    ({"commnad": ["x"]}, f"{C}.commnad: is not a known field; did you mean command?"),
    ({"zzz": 1}, f"{C}.zzz: is not a known field; remove it"),
    ({"envFrom": [{"secretRef": {}}]}, f"{C}.envFrom: needs a cluster"),
    ({"env": {"A": "1"}}, f"{C}.env: (a mapping of 1) is not a list"),
    ({"env": ["A=1"]}, f'{C}.env[0]: "A=1" is not a mapping'),
    ({"env": [{"name": "A", "value": 1}]}, f"{C}.env[0].value: 1 is not a text"),
    ({"env": [{"name": "A", "value": "\0"}]}, f'{C}.env[0].value: "\\u0000" is not a text'),
    ({"env": [{"name": "A=B", "value": "1"}]}, f'{C}.env[0].name: "A=B" is not a variable\'s'),
    ({"env": [{"value": "1"}]}, f"{C}.env[0].name: null is not a variable's name"),
    ({"env": [{"name": "", "value": "1"}]}, f'{C}.env[0].name: "" is not a variable\'s name'),
    ({"env": [{"name": "A", "valu": "1"}]}, f"{C}.env[0].valu: is not a known field; did you"),
    (
        {"env": [{"name": "PET_NNODES", "value": "1"}]},
        f'{C}.env[0].name: "PET_NNODES" is set by Holdfast itself; remove it',
    ),
    (
        {"env": [{"name": "A", "value": "1", "valueFrom": {}}]},
        f"{C}.env[0]: (a mapping of 3) has both value and valueFrom",
    ),
    (
        {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}]},
        f"{C}.env[0].valueFrom: secretKeyRef needs a cluster",
    ),
    (
        {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]},
        f'{C}.env[0].valueFrom.fieldRef.fieldPath: "status.podIP" needs a cluster',
    ),
    ({"env": [{"name": "A", "valueFrom": "x"}]}, f'{C}.env[0].valueFrom: "x" needs a cluster'),
    (
        {"env": [{"name": "A", "valueFrom": {"fieldRef": 1}}]},
        f"{C}.env[0].valueFrom: fieldRef needs a cluster",
    ),
]


@pytest.mark.parametrize(("container", "said"), BAD_CONTAINERS)
def test_what_a_process_cannot_be_made_from_is_refused(
    container: dict[str, Any], said: str
) -> None:
    """Before anything starts, by field and value, with what would be right."""
    (problem,) = check_job(_job(container))
    assert said in str(problem)
    assert problem.remedy


@pytest.mark.parametrize("grace", ["30", -1, True, 1.5])
def test_a_grace_that_is_no_number_of_seconds_is_refused(grace: Any) -> None:
    """The API server would refuse it, too."""
    (problem,) = check_job(_job(terminationGracePeriodSeconds=grace))
    assert "terminationGracePeriodSeconds" in problem.field
    if isinstance(grace, str):
        assert build_process(_job(terminationGracePeriodSeconds=grace).spec, _who()).grace_s == 30


def test_a_misspelt_field_of_a_pod_is_refused_in_every_role() -> None:
    """Without a cluster nobody else would notice."""
    role = {"name": "eval", "template": {"spec": {**TEMPLATE["spec"], "volume": []}}}
    misspelt, without = check_job(read(job(extraRoles=[role])))
    path = "spec.extraRoles[0].template.spec"
    assert str(misspelt) == f"{path}.volume: is not a known field; did you mean volumes?"
    assert str(without).startswith(f"{path}.containers[0].command: must be set; without an image")


def test_what_is_not_used_on_this_machine_is_told() -> None:
    """Images, volumes and what else only a cluster has; the command is used, so it is not told."""
    fields = {
        "worker": {
            "template": {
                "spec": {
                    "volumes": [{"name": "v"}],
                    "nodeSelector": {"a": "b"},
                    "containers": [
                        {"name": "worker", "command": ["t"], "image": "i", "resources": {}},
                        {"name": "side", "image": "s"},
                    ],
                }
            }
        },
        "scheduling": {"priorityClassName": "p", "podDisruptionBudget": "MinReplicas"},
        "cleanup": {"ttlSecondsAfterFinished": 0},
        "master": {"journal": {"mode": "None"}},
    }
    assert job_notices(read(job(**fields))) == (
        "spec.scheduling.priorityClassName: not used on this machine",
        "spec.scheduling.podDisruptionBudget: not used on this machine",
        "spec.cleanup.ttlSecondsAfterFinished: not used on this machine",
        "spec.master.journal.mode: not used on this machine",
        "spec.worker.template.spec: not used on this machine: nodeSelector, volumes",
        "spec.worker.template.spec.containers[0]: not used on this machine: image, resources",
        "spec.worker.template.spec.containers[1]: container side is not started on this machine",
    )


def test_a_job_that_uses_nothing_of_a_cluster_has_no_notice() -> None:
    """Nothing is said where nothing is left out."""
    assert job_notices(_job()) == ()
    assert check_job(_job()) == ()


def test_a_suspended_job_is_refused() -> None:
    """Without a cluster no command resumes it."""
    (problem,) = check_job(read(job(suspend=True)))
    assert str(problem).startswith("spec.suspend: true needs a cluster")


def test_who_manages_and_the_masters_port_are_not_used() -> None:
    """A plain process has no such keeper, and its port is chosen by the system."""
    found = read(job(managedBy="kueue.x-k8s.io/multikueue", master={"port": 6000}))
    said = [notice for notice in job_notices(found) if "image" not in notice]
    assert said == [
        "spec.managedBy: not used on this machine",
        "spec.master.port: not used on this machine",
    ]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["python", "train.py"], True),
        (["/usr/bin/python3.11", "-u", "train.py", "--lr=1"], True),
        (["python", "-m", "torch.distributed.run", "train.py"], False),
        (["python", "-m", "accelerate.commands.launch", "train.py"], False),
        (["python", "launch_all.py"], False),
        (["torchrun", "train.py"], False),
        (["sh", "-c", "python train.py"], False),
        (["holdfast-run", "train.py"], False),
    ],
)
def test_a_command_that_starts_no_agent_is_noticed(command: list[str], *, told: bool) -> None:
    """`python train.py` trains, and the job waits for an agent that nobody starts."""
    body = job()
    body["spec"]["worker"]["template"]["spec"]["containers"][0]["command"] = command
    said = [notice for notice in job_notices(read(body)) if "starts no agent" in notice]
    assert len(said) == told
    assert all("holdfast-run" in notice for notice in said)


def test_a_scripts_flag_may_be_short_for_several_of_the_agents() -> None:
    """Words behind the script belong to the script."""
    words = ["holdfast-run", "--nproc-per-node=2", "train.py", "--mo", "3", "--log=x", "--r"]
    assert read_command(words).name == "train.py"
    with pytest.raises(CommandError, match="'--mo' is not a flag"):
        read_command(["holdfast-run", "--mo", "train.py"])
