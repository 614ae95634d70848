"""Jobs of other operators become ElasticJobs that say the same."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from holdfast_cli.convert.command import convert_documents, convert_files, write
from holdfast_cli.convert.conversion import Conversion
from holdfast_cli.errors import BadInputError
from holdfast_cli.main import main
from holdfast_operator.crd import load_crd
from holdfast_operator.spec import read_job

PYTORCH = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: imagenet
  namespace: team
  uid: 4711
  labels: {kueue.x-k8s.io/queue-name: gpus}
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}"}
spec:
  nprocPerNode: "8"
  runPolicy:
    cleanPodPolicy: All
    ttlSecondsAfterFinished: 60
    activeDeadlineSeconds: 900
    backoffLimit: 3
    suspend: false
    managedBy: kubeflow.org/training-operator
    schedulingPolicy: {minAvailable: 2, priorityClass: high, scheduleTimeoutSeconds: 60}
  elasticPolicy:
    rdzvBackend: c10d
    minReplicas: 1
    maxReplicas: 3
    maxRestarts: 100
    metrics:
    - type: Resource
      resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template:
        metadata: {labels: {team: a}}
        spec:
          restartPolicy: Never
          nodeSelector: {pool: gpu}
          containers:
          - name: pytorch
            image: imagenet:1
            command: [python, -m, torch.distributed.run, --rdzv_backend=c10d]
            args: [train.py, --lr=3e-4]
status: {conditions: []}
"""
RUNTIME = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: torch-distributed}
spec:
  mlPolicy: {numNodes: 1, torch: {}}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec:
            backoffLimit: 2
            template:
              spec:
                containers:
                - {name: node, image: torch:1, env: [{name: A, value: "1"}]}
"""
TRAIN_JOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: fine}
spec:
  runtimeRef: {name: torch-distributed}
  runtimePatches:
  - manager: example.io/team
    trainingRuntimeSpec:
      template:
        spec:
          replicatedJobs:
          - name: node
            template: {spec: {template: {spec: {nodeSelector: {pool: gpu}}}}}
  trainer:
    image: mine:2
    command: [torchrun, train.py]
    numNodes: 3
    numProcPerNode: 4
    env: [{name: A, value: "2"}, {name: B, value: "3"}]
    resourcesPerNode: {limits: {nvidia.com/gpu: 4}}
"""
DLROVER = """
apiVersion: elastic.iml.github.io/v1alpha1
kind: ElasticJob
metadata: {name: llama}
spec:
  distributionStrategy: AllreduceStrategy
  optimizeMode: single-job
  envs: {SEED: {value: "1"}}
  replicaSpecs:
    worker:
      replicas: 4
      restartCount: 3
      BatchScheduler: volcano
      autoScale: true
      template:
        spec:
          containers:
          - name: main
            image: llama:1
            command:
            - /bin/bash
            - -c
            - "cd /src && dlrover-run --network-check --exclude-straggler \\
              --nnodes=3:$NODE_NUM --nproc_per_node 2 --node_unit=1 --auto_tunning \\
              --max_restarts=3 train.py --data '/a b' && echo done"
"""


def _made(*texts: str) -> Conversion:
    return convert_documents([body for text in texts for body in yaml.safe_load_all(text)])


def _spec(*texts: str) -> dict[str, Any]:
    """Return the spec, after our own admission has taken the whole text."""
    made = _made(*texts)
    assert made.refused == ()
    job = read_job(write(made, "job.yaml"), load_crd())
    assert job.name
    return made.spec


def _changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def test_a_pytorchjob_keeps_what_it_says() -> None:
    """Sizes, limits, policies and the pod are the same; the launcher is the agent."""
    template = {
        "metadata": {"labels": {"team": "a"}},
        "spec": {
            "nodeSelector": {"pool": "gpu"},
            "containers": [
                {
                    "name": "pytorch",
                    "image": "imagenet:1",
                    "command": ["holdfast-run", "train.py", "--lr=3e-4"],
                }
            ],
        },
    }
    assert _spec(PYTORCH) == {
        "activeDeadlineSeconds": 900,
        "suspend": False,
        "cleanup": {"pods": "All", "ttlSecondsAfterFinished": 60},
        "scheduling": {
            "priorityClassName": "high",
            "gang": {"backend": "Auto", "timeoutSeconds": 60},
        },
        "replicas": 2,
        "minReplicas": 1,
        "maxReplicas": 3,
        "failurePolicy": {"budgets": {"failures": {"limit": 100, "windowSeconds": 0}}},
        "nprocPerNode": 8,
        "worker": {"template": template},
    }


def test_metadata_keeps_labels_and_loses_what_a_server_wrote() -> None:
    """A queue's label goes along; uid and kubectl's annotation do not."""
    assert _made(PYTORCH).job()["metadata"] == {
        "name": "imagenet",
        "namespace": "team",
        "labels": {"kueue.x-k8s.io/queue-name": "gpus"},
    }


def test_metrics_become_the_autoscaler_that_kubeflow_would_make() -> None:
    """The autoscaler is a second object and scales the ElasticJob in the same bounds."""
    (scaler,) = _made(PYTORCH).others
    assert scaler["kind"] == "HorizontalPodAutoscaler"
    assert scaler["spec"]["scaleTargetRef"]["kind"] == "ElasticJob"
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (1, 3)
    assert scaler["spec"]["metrics"][0]["resource"]["name"] == "cpu"


def test_a_comment_names_each_field_that_is_left_out() -> None:
    """Nothing goes without a word, with its value and the reason."""
    text = write(_made(PYTORCH), "job.yaml")
    assert '#   spec.elasticPolicy.rdzvBackend ("c10d"): the job master is the rendezvous' in text
    assert "schedulingPolicy.minAvailable (2): a gang has minReplicas workers, 1" in text
    assert "command --rdzv-backend (c10d): the job master is the rendezvous" in text


@pytest.mark.parametrize(
    ("policy", "gang"),
    [
        ("coscheduling: {}", {"backend": "Coscheduling"}),
        (
            "coscheduling: {scheduleTimeoutSeconds: 90}",
            {"backend": "Coscheduling", "timeoutSeconds": 90},
        ),
        ("volcano: {}", {"backend": "Volcano"}),
    ],
)
def test_a_runtimes_pod_group_becomes_a_gang_of_the_same_scheduler(
    policy: str, gang: dict[str, Any]
) -> None:
    """A volcano topology has no counterpart, which names no label of nodes."""
    runtime = RUNTIME.replace("spec:\n", f"spec:\n  podGroupPolicy: {{{policy}}}\n", 1)
    made = _made(TRAIN_JOB, runtime)
    assert (made.spec["scheduling"]["gang"], made.refused) == (gang, ())
    tiers = runtime.replace("volcano: {}", "volcano: {networkTopology: {mode: hard}}")
    assert bool(_made(TRAIN_JOB, tiers).refused) is (gang["backend"] == "Volcano")


_MASTER = """    Master:
      replicas: 1
      template:
        metadata: {labels: {team: a}}
        spec:
          nodeSelector: {pool: gpu}
          containers:
          - name: pytorch
            image: imagenet:1
            command: [python, -m, torch.distributed.run, --rdzv_backend=c10d]
            args: [train.py, --lr=3e-4]
    Worker:
"""


def test_a_master_is_one_worker_more() -> None:
    """Kubeflow's bounds count workers only; ours count all pods."""
    spec = _spec(_changed(PYTORCH, "    Worker:\n", _MASTER))
    assert (spec["replicas"], spec["minReplicas"], spec["maxReplicas"]) == (3, 2, 4)


def test_a_master_of_another_kind_is_refused() -> None:
    """Two commands cannot become one; the message names the field."""
    text = _changed(PYTORCH, "    Worker:\n", _MASTER.replace("imagenet:1", "other:1"))
    (finding,) = _made(text).refused
    assert finding.field == "spec.pytorchReplicaSpecs.Master.template"


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        ("Never", {"budgets": {"failures": {"limit": 100, "windowSeconds": 0}}}),
        (
            "ExitCode",
            {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {"operator": "In", "values": list(range(1, 128))},
                    }
                ],
                "budgets": {"failures": {"limit": 100, "windowSeconds": 0}},
            },
        ),
    ],
)
def test_restart_policies_become_failure_policies(policy: str, wanted: dict[str, Any]) -> None:
    """Under Never torchrun alone restarts; ExitCode fails the job at the permanent codes."""
    spec = _spec(_changed(PYTORCH, "restartPolicy: OnFailure", f"restartPolicy: {policy}"))
    assert spec["failurePolicy"] == wanted


def test_a_train_job_and_its_runtime_become_one_template() -> None:
    """Image, command, variables, resources and patches of the TrainJob lie over the runtime's."""
    spec = _spec(TRAIN_JOB, RUNTIME)
    assert (spec["replicas"], spec["nprocPerNode"]) == (3, 4)
    assert spec["failurePolicy"]["budgets"]["failures"]["limit"] == 2
    assert spec["worker"]["template"]["spec"] == {
        "nodeSelector": {"pool": "gpu"},
        "containers": [
            {
                "name": "node",
                "image": "mine:2",
                "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}],
                "resources": {"limits": {"nvidia.com/gpu": 4}},
                "command": ["holdfast-run", "train.py"],
            }
        ],
    }


def test_a_train_job_without_its_runtime_says_how_to_get_it() -> None:
    """The runtime has the image and the pod; without it nothing can be said."""
    with pytest.raises(BadInputError, match="kubectl get clustertrainingruntime torch-distributed"):
        _made(TRAIN_JOB)


def test_a_runtime_of_mpi_is_refused() -> None:
    """Ranks that mpirun starts over ssh are not an agent's."""
    made = _made(TRAIN_JOB, _changed(RUNTIME, "torch: {}", "mpi: {numProcPerNode: 1}"))
    assert [finding.field for finding in made.refused] == ["of the runtime: spec.mlPolicy.mpi"]


def test_a_dlrover_job_keeps_sizes_checks_and_the_text_around_its_launcher() -> None:
    """Flags become fields of the job; the rest of the shell's text stays."""
    spec = _spec(DLROVER)
    container = spec["worker"]["template"]["spec"]["containers"][0]
    assert container["command"] == [
        "/bin/bash",
        "-c",
        "cd /src && holdfast-run --max_restarts=3 train.py --data '/a b' && echo done",
    ]
    assert container["env"] == [{"name": "SEED", "value": "1"}]
    assert spec["worker"]["template"]["spec"]["schedulerName"] == "volcano"
    assert (spec["replicas"], spec["minReplicas"], spec["maxReplicas"]) == (4, 3, 4)
    assert spec["nprocPerNode"] == 2
    assert spec["health"] == {
        "preflight": {"mode": "Act", "networkCheck": True},
        "straggler": {"mode": "Act"},
    }
    assert spec["failurePolicy"]["budgets"]["failures"]["limit"] == 12


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (_changed(PYTORCH, "  nprocPerNode", "  nprocPerNod"), "spec.nprocPerNod"),
        (_changed(DLROVER, "AllreduceStrategy", "ParameterServerStrategy"), "spec.distribution"),
        (
            _changed(PYTORCH, "kubeflow.org/training-operator", "a.b/c"),
            "spec.runPolicy.managedBy",
        ),
        (_changed(PYTORCH, '"8"', "$(GPUS)"), "spec.nprocPerNode"),
    ],
)  # fmt: skip
def test_what_an_elasticjob_cannot_say_is_refused_by_name(text: str, field: str) -> None:
    """A typing error and a meaning without counterpart are for a person to decide."""
    (finding,) = _made(text).refused
    assert finding.field.startswith(field)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("replicas: 2", "replicas: two", "Worker.replicas: \"two\" is not a whole number"),
        ("runPolicy:", "runPolicy: []\n  x:", "spec.runPolicy: (a list of 0) is not a mapping"),
        ("args: [train.py", "args: [3", "containers[0].args[0]: 3 is not a text"),
        ("kind: PyTorchJob", "kind: MPIJob", "kind: MPIJob cannot be converted: its ranks are"),
        ("kind: PyTorchJob", "kind: Pod", "0 jobs to convert in Pod imagenet; give one of"),
        ("kubeflow.org/v1", "kubeflow.org/v1beta1", "write the job as kubeflow.org/v1"),
        ("kubeflow.org/v1", "holdfast.dev/v1alpha1", "is Holdfast's own already"),
        ("cleanPodPolicy: All", "cleanPodPolicy: Some", "not valid: spec.cleanup.pods"),
    ],
)  # fmt: skip
def test_wrong_input_names_field_and_value(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    """Wrong types, kinds and values end in one error, and nothing is written."""
    _refused(tmp_path, _changed(PYTORCH, old, new), message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "job.yaml: holds no object; give a file with one of: PyTorchJob"),
        ("# nothing\n---\n", "holds no object"),
        ("kind: [", "job.yaml: line 1: is not YAML"),
        ("- kind: PyTorchJob", "line 1: the document is (a list of 1), not a mapping"),
        ("kind: List\nitems: []", "holds no object"),
        ("kind: List\nitems: 3", "items: 3 is not a list"),
        ("kind: List\nitems: [3]", "items[0]: 3 is not a mapping"),
        ("kind: PyTorchJob", "apiVersion: null of PyTorchJob without a name is not known here"),
        (f"{PYTORCH}---{DLROVER}", "2 jobs to convert in PyTorchJob imagenet, ElasticJob llama"),
        (_changed(TRAIN_JOB, "v1alpha1", "v1beta1"), "trainer.kubeflow.org/v1beta1"),
        (_changed(DLROVER, "v1alpha1", "v1beta1"), "write the job as elastic.iml.github.io/v1a"),
    ],
)  # fmt: skip
def test_a_file_without_a_job_says_what_to_give(tmp_path: Path, text: str, message: str) -> None:
    """Empty files, other documents and other versions are told by what stands there."""
    _refused(tmp_path, text, message)


def _refused(folder: Path, text: str, message: str) -> None:
    """Convert a file by the command; it says why not, and leaves the old output as it was."""
    file, output = folder / "job.yaml", folder / "out.yaml"
    file.write_text(text)
    output.write_text("as before")
    done = CliRunner().invoke(main, ["convert", str(file), "-o", str(output)])
    assert done.exit_code == 2, done.output
    assert message in done.output
    assert output.read_text() == "as before"
    assert sorted(folder.iterdir()) == [file, output]


def test_the_output_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """Where only half of the text finds room, the old file stays, and nothing is left beside it."""
    file, output = tmp_path / "job.yaml", tmp_path / "out.yaml"
    file.write_text(PYTORCH)
    output.write_text("as before")
    convert = shlex.join([sys.executable, "-m", "holdfast_cli.main", "convert", str(file)])
    script = f"ulimit -f 1; {convert} -o {output}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert f"--output {output}: cannot be written: File too large" in done.stderr
    assert output.read_text() == "as before"
    assert sorted(tmp_path.iterdir()) == [file, output]


def test_a_pipe_gets_the_text_and_stays_one(tmp_path: Path) -> None:
    """`-o /dev/stdout` must not become a file in the place of the device."""
    file, pipe = tmp_path / "job.yaml", tmp_path / "pipe"
    file.write_text(PYTORCH)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        convert_files([file], pipe, force=False)
        assert b"kind: ElasticJob" in os.read(reader, 1 << 16)
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_other_objects_of_the_file_are_named() -> None:
    """A ConfigMap beside the job is still needed, and is not in the new file."""
    beside = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n"
    assert "#   ConfigMap settings: apply it as it is" in write(_made(PYTORCH, beside), "job.yaml")


def test_a_dlrover_launcher_without_a_number_starts_one_process() -> None:
    """dlrover-run's default is torchrun's; an ElasticJob's is to count devices."""
    assert _spec(_changed(DLROVER, "--nproc_per_node 2 ", ""))["nprocPerNode"] == 1
    counted = _changed(DLROVER, "--nproc_per_node 2", "--auto-config")
    assert "nprocPerNode" not in _spec(counted)


@pytest.mark.parametrize("texts", [(PYTORCH,), (TRAIN_JOB, RUNTIME), (DLROVER,)])
def test_the_queue_of_kueue_goes_along(texts: tuple[str, ...]) -> None:
    """The label of a foreign job is the label of its ElasticJob."""
    labels = "labels: {kueue.x-k8s.io/queue-name: gpus}"
    first = texts[0]
    if labels not in first:
        name = first.partition("metadata: {name: ")[2].partition("}")[0]
        first = _changed(first, f"{{name: {name}}}", f"{{name: {name}, {labels}}}")
    made = _made(first, *texts[1:]).job()
    assert made["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "gpus"}


def test_force_leaves_out_what_is_refused_with_a_comment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file says what was refused and why; without --force nothing is written."""
    file, output = tmp_path / "job.yaml", tmp_path / "out.yaml"
    file.write_text(_changed(PYTORCH, "  runPolicy:", "  hello: 1\n  runPolicy:"))
    with pytest.raises(BadInputError, match="nothing was written; --force"):
        convert_files([file], output, force=False)
    convert_files([file], output, force=True)
    assert "# REFUSED, and left out because of --force:\n#   spec.hello (1):" in output.read_text()
    assert "kubectl apply --dry-run=server" in capsys.readouterr().out


def test_a_list_of_kubectl_is_read() -> None:
    """`kubectl get -o yaml` wraps objects in a list."""
    jobs = [yaml.safe_load(TRAIN_JOB), yaml.safe_load(RUNTIME)]
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": jobs})
    assert _made_from_text(text).spec["replicas"] == 3


def _made_from_text(text: str) -> Conversion:
    from holdfast_cli.convert.command import read_objects

    return convert_documents(list(read_objects(text, "list.yaml")))
