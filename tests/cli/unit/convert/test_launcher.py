"""Commands of other launchers become commands of the agent."""

from __future__ import annotations

import pytest

from holdfast_agent.config import flags
from holdfast_cli.convert.launcher import (
    DROPPED_FLAGS,
    HEALTH_FLAGS,
    Launch,
    convert_command,
)
from jobs.foreign_jobs import DLROVER_FLAGS


def _launch(*words: str) -> Launch:
    return convert_command(words, "command")


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("torchrun train.py -m 3", "holdfast-run train.py -m 3"),
        ("torchrun -m pkg.train --a", "holdfast-run -m pkg.train --a"),
        ("/opt/bin/torchrun --tee=3 train.py", "holdfast-run --tee=3 train.py"),
        ("python -m torch.distributed.launch --use_env x.py", "holdfast-run x.py"),
        ("python3 -u -m torch.distributed.run x.py", "holdfast-run x.py"),
        ("python -m dlrover.trainer.torch.elastic_run x.py", "holdfast-run x.py"),
        ("torchrun --rdzv-id 7 --master_addr=a --node_rank 0 x.py", "holdfast-run x.py"),
        ("dlrover-run --numa-affinity x.py", "holdfast-run --numa-binding=node x.py"),
        ("holdfast-run --tee 3 x.py", "holdfast-run --tee 3 x.py"),
        ("python train.py --nnodes=2", "holdfast-run train.py --nnodes=2"),
        ("python -u -m pkg", "holdfast-run -m pkg"),
        ("python3 -c code", "holdfast-run --no-python python3 -c code"),
    ],
)
def test_launchers_are_replaced(given: str, made: str) -> None:
    """Flags that Holdfast decides go; those of the script stay."""
    assert _launch(*given.split()).words == tuple(made.split())


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("torchrun x.py", "holdfast-run x.py"),
        ("set -e; torchrun --nnodes 2 x.py > log; ls", "set -e; holdfast-run x.py > log; ls"),
        ("pip list\ntorchrun x.py\necho torch", "pip list\nholdfast-run x.py\necho torch"),
        ("torchrun --nnodes=2 \\\n  x.py --a \\\n  --b", "holdfast-run x.py --a --b"),
        ("python prepare.sh.py", "holdfast-run prepare.sh.py"),
        ('torchrun "--nnodes=$PET_NNODES" x.py "$HOME"', 'holdfast-run x.py "$HOME"'),
        ("cd /x && python3 -m torch.distributed.run x.py", "cd /x && holdfast-run x.py"),
    ],
)
def test_a_launcher_inside_a_shell_text_is_replaced(given: str, made: str) -> None:
    """The text around the launcher stays as it was."""
    assert _launch("sh", "-c", given).words == ("sh", "-c", made)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "the image's own command trains"),
        (("--backend", "gloo"), "the image's own command trains"),
        (("deepspeed", "x.py"), "DeepSpeed's own launcher"),
        (("accelerate", "launch", "x.py"), "accelerate's own launcher"),
        (("./start.sh",), "'start.sh' starts the training"),
        (("bash", "/scripts/run.sh", "x"), "'bash' starts the training"),
        (("sh", "/code/start", "python x.py"), "'sh' starts the training"),
        (("sh", "-c", "torchrun a.py; torchrun b.py"), "several commands"),
        (("sh", "-c", "./start.sh"), "no command of this text"),
        (("bash", "-c", "torchrun x.py --rank $RANK"), "$RANK is not set for the shell"),
    ],
)
def test_commands_that_cannot_be_known_are_refused(words: tuple[str, ...], reason: str) -> None:
    """A person is asked to write holdfast-run before the script."""
    launch = _launch(*words)
    assert launch.words == ()
    assert [reason in finding.reason for finding in launch.findings] == [True]


@pytest.mark.parametrize(
    ("flags", "nodes"),
    [("--nnodes=2", ("2", "2")), ("--nnodes 1:4", ("1", "4")), ("", None)],
)
def test_bounds_of_nnodes_are_read(flags: str, nodes: tuple[str, str] | None) -> None:
    """They are the job's sizes."""
    assert _launch("torchrun", *flags.split(), "x.py").nodes == nodes


def test_a_plain_script_is_one_process_in_each_pod() -> None:
    """Kubeflow starts such a script once in each pod."""
    assert _launch("python", "x.py").nproc == "1"
    assert _launch("torchrun", "x.py").nproc is None


def test_every_flag_of_dlrover_that_the_agent_refuses_is_converted() -> None:
    """What `holdfast-run` would refuse must not be left in its command."""
    own = {"--numa-affinity", "--node-unit"}
    assert flags.DLROVER.keys() <= DROPPED_FLAGS.keys() | HEALTH_FLAGS.keys() | own


@pytest.mark.parametrize("words", DLROVER_FLAGS, ids=" ".join)
def test_no_flag_that_dlrover_run_has_is_left_in_the_command(words: tuple[str, ...]) -> None:
    """What is left is torchrun's, and what the flag asked for is a field, or is told."""
    joined = ("=".join(words),) if len(words) > 1 else words
    for given in {words, joined}:
        launch = _launch("dlrover-run", *given, "--tee=3", "x.py", "--network-check")
        *flags_, script, own = launch.words[1:]
        assert (script, own) == ("x.py", "--network-check")
        assert set(flags_) <= {"--tee=3", "--numa-binding=node"}
        assert launch.findings or launch.health or launch.unit == "2" or len(flags_) == 2
