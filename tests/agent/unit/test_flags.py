"""The command line and the environment: what is accepted, what it means, what is refused."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast_agent.config import cgroups, flags
from holdfast_agent.config import settings as agent_settings
from holdfast_agent.config.settings import Settings
from holdfast_agent.errors import InputError
from holdfast_agent.zygote.settings import DEFAULT_PRELOAD
from holdfast_operator.pods import command
from jobs.foreign_jobs import DLROVER_FLAGS

torch = pytest.importorskip("torch")


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A script that exists."""
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


@pytest.fixture(autouse=True)
def pet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's parser reads PET_* from os.environ itself."""
    for name in [name for name in os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(name)


def _load(*argv: str, **environ: str) -> Settings:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            if name.startswith("PET_"):
                patch.setenv(name, value)
        return agent_settings.load(argv, environ)


def _split(given: str) -> tuple[list[str], dict[str, str]]:
    """Return the flags and the variables in a line of both."""
    argv = [word for word in given.split() if word.startswith("-")]
    variables = (word.partition("=") for word in given.split() if not word.startswith("-"))
    return argv, {name: value for name, _, value in variables}


def test_every_torchrun_flag_is_taken(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torchrun command line works unchanged, on a machine with an accelerator."""
    from torch.distributed.run import get_args_parser

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)

    argv = []
    values = {
        "nnodes": "1:1",
        "nproc_per_node": "2",
        "max_restarts": "3",
        "redirects": "3",
        "tee": "0:1,1:3",
        "local_ranks_filter": "0,1",
        "log_dir": str(tmp_path / "logs"),
        "numa_binding": "node",
        "signals_to_handle": "SIGTERM,SIGUSR1",
        "rdzv_conf": "timeout=30",
    }
    skipped = {"help", "print_completion", "no_python", "logs_specs"}
    for action in get_args_parser()._actions:
        if not action.option_strings or action.dest in skipped:
            continue
        flag = action.option_strings[-1]
        if action.nargs == 0:
            argv.append(flag) if action.dest != "module" else None
        elif action.choices is not None:
            argv.append(f"{flag}={values.get(action.dest, next(iter(action.choices)))}")
        else:
            argv.append(f"{flag}={values.get(action.dest, '1')}")
    launch = _load(*argv, script, "--lr", "0.1").launch
    assert (launch.local_world_size, launch.max_restarts) == (2, 3)
    assert launch.args == ("--lr", "0.1")
    assert (launch.logs.redirects, launch.logs.tee) == ("3", "0:1,1:3")
    assert launch.logs.ranks_filter == frozenset({0, 1})
    assert launch.signals == (signal.SIGTERM, signal.SIGUSR1)
    assert launch.virtual_local_rank
    assert launch.numa == "node"


def test_pet_variables_are_defaults(script: str) -> None:
    """PET_* stand in for flags that are not given, and flags win."""
    assert _load(script, PET_NPROC_PER_NODE="3").launch.local_world_size == 3
    given = _load("--nproc-per-node=2", script, PET_NPROC_PER_NODE="3").launch
    assert given.local_world_size == 2


def test_the_operators_process_count_is_the_last_default(script: str) -> None:
    """HOLDFAST_NPROC_PER_NODE gives way to the flag and to PET_NPROC_PER_NODE."""
    assert _load(script, HOLDFAST_NPROC_PER_NODE="4").launch.local_world_size == 4
    both = _load(script, HOLDFAST_NPROC_PER_NODE="4", PET_NPROC_PER_NODE="3")
    assert both.launch.local_world_size == 3
    assert _load(script).launch.local_world_size == 1


def test_cpu_means_a_process_for_each_usable_core(script: str) -> None:
    """--nproc-per-node takes torchrun's words, and no more than the control group's CPUs."""
    expected = min(torch._utils.cpu_count(), cgroups.usable_cpus())
    assert _load("--nproc-per-node=cpu", script).launch.local_world_size == expected


def test_max_restarts_is_unknown_unless_given(script: str) -> None:
    """An absent flag leaves the job's own failure budget in force. torchrun would assume 0."""
    assert _load(script).launch.max_restarts is None
    assert _load("--max-restarts=0", script).launch.max_restarts == 0
    assert _load(script, PET_MAX_RESTARTS="2").launch.max_restarts == 2


def test_a_masters_environment_is_taken_over(script: str, managed: dict[str, str]) -> None:
    """The variables of an operator become the settings."""
    settings = _load(
        script,
        **managed,
        HOLDFAST_TOPOLOGY="zone=a,rack=7",
        HOLDFAST_GRACE_SECONDS="25",
        HOLDFAST_POD_UID="p1",
    )
    assert not settings.standalone
    assert (settings.master, settings.job, settings.job_uid) == ("10.0.0.7:7777", "gpt", "6f1e")
    assert (settings.node_rank, settings.pod_uid, settings.grace_seconds) == (3, "p1", 25.0)
    assert settings.topology == {"zone": "a", "rack": "7"}


WITHOUT_EFFECT = {
    "--rdzv-backend=c10d": "--rdzv-backend has no effect",
    "--rdzv-endpoint=h:1": "--rdzv-endpoint has no effect",
    "--rdzv-id=x": "--rdzv-id has no effect",
    "--rdzv-conf=a=b": "--rdzv-conf has no effect",
    "--master-addr=h": "--master-addr has no effect",
    "--master-port=1": "--master-port has no effect",
    "--node-rank=1": "--node-rank has no effect",
    "--standalone": "--standalone has no effect",
    "--monitor-interval=1": "--monitor-interval has no effect",
    "PET_MASTER_PORT=1": "PET_MASTER_PORT has no effect",
    "TORCHELASTIC_HEALTH_CHECK_PORT=9": "HEALTH_CHECK_PORT=9 has no",
    "TORCHELASTIC_ENABLE_FILE_TIMER=1": "FILE_TIMER=1 has no effect",
    "--nnodes=2 HOLDFAST_NNODES=1:4": "the job says 1:4",
}


@pytest.mark.parametrize("given", WITHOUT_EFFECT)
def test_flags_without_effect_under_a_master_are_named(
    given: str, script: str, managed: dict[str, str]
) -> None:
    """Nothing that the user typed is ignored silently."""
    argv, environ = _split(given)
    (note,) = _load(*argv, script, **managed, **environ).notes
    assert WITHOUT_EFFECT[given] in note


@pytest.mark.parametrize(
    ("text", "preload"),
    [
        ("", DEFAULT_PRELOAD),
        ("mine,also.mine", (*DEFAULT_PRELOAD, "mine", "also.mine")),
        ("-torch", ()),
        ("-torch,mine", ("mine",)),
        ("-torch.distributed,-torch._dynamo", ("torch", "torch.nn.parallel", DEFAULT_PRELOAD[-1])),
    ],
)
def test_the_preload_list_can_be_made_longer_and_shorter(
    script: str, text: str, preload: tuple[str, ...]
) -> None:
    """`-NAME` leaves a module out, and those below it."""
    assert _load(script, HOLDFAST_PRELOAD=text).preload == preload


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({"PET_RDZV_BACKEND": "holdfast"}, id="backend"),
        pytest.param({"PET_RDZV_ENDPOINT": "10.0.0.7:7777"}, id="endpoint"),
        pytest.param({"PET_NODE_RANK": "3"}, id="node-rank"),
        pytest.param({"PET_NNODES": "1:4", "HOLDFAST_NNODES": "1:4"}, id="nnodes"),
    ],
)
def test_the_operators_own_variables_are_no_news(
    environ: dict[str, str], script: str, managed: dict[str, str]
) -> None:
    """An operator's variables for an unmodified torchrun cause no notes."""
    assert _load(script, **managed, **environ).notes == ()


def test_a_standalone_run_complains_only_of_what_it_ignores(script: str) -> None:
    """--standalone and an unused rendezvous are what torchrun users write."""
    assert _load("--standalone", "--rdzv-id=x", script).notes == ()
    assert _load("--standalone", "--rdzv-id=x", script).launch.rdzv_id == "x"
    assert len(_load("--monitor-interval=1", script).notes) == 1
    assert _load("--standalone", "--nnodes=1:4", script).notes == ()
    ignored = _load("--master-addr=here", "--master-port=29876", "--node-rank=0", script).notes
    assert [note.partition(" ")[0] for note in ignored] == ["--master-addr", "--master-port"]


@pytest.mark.parametrize(
    "words", [["--mo", "3"], ["--log=x"], ["--nn", "--max"], ["--r", "--stand", "-t2"]]
)
def test_a_script_may_have_any_flag(words: list[str], script: str) -> None:
    """Also one that is short for several flags of the launcher, or for one of them."""
    launch = _load("--nproc-per-node=1", script, *words).launch
    assert (launch.script, launch.args) == (script, tuple(words))
    assert {name for name in launch.given if "script" not in name} == {"nproc_per_node"}


def test_a_flag_before_the_script_may_be_short_for_one_of_the_launchers(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As under torchrun; one that could be several is refused by name."""
    assert "standalone" in _load("--stand", script).launch.given
    with pytest.raises(SystemExit) as caught:
        _load("--mo", script)
    assert caught.value.code == 2
    assert "--mo" in capsys.readouterr().err


BAD: Mapping[str, tuple[str, ...]] = {
    "--nnodes=0": ("--nnodes", "'0'", "MIN"),
    "--nnodes=3:2": ("--nnodes", "'3:2'"),
    "--nnodes=x": ("--nnodes", "'x'"),
    "--nnodes=2": ("--nnodes", "HOLDFAST_MASTER"),
    "--nnodes=1:2 --rdzv-backend=c10d --rdzv-endpoint=h:1": (
        *("--nnodes='1:2'", "--rdzv-endpoint", "holdfast run", "replicas: 2"),
    ),
    "--rdzv-endpoint=h:1 PET_NNODES=1:2": ("PET_NNODES='1:2'",),
    "--standalone --nnodes=2": ("--nnodes", "HOLDFAST_MASTER"),
    "--node-rank=1": ("--node-rank=1", "0 without"),
    "PET_NODE_RANK=3": ("PET_NODE_RANK=3",),
    "--nproc-per-node=0": ("--nproc-per-node", "'0'"),
    "--nproc-per-node=many": ("--nproc-per-node", "many"),
    "--max-restarts=-1": ("--max-restarts", "-1"),
    "--redirects=9": ("--redirects", "'9'"),
    "--tee=0:7": ("--tee", "'0:7'"),
    "--local-ranks-filter=a": ("--local-ranks-filter", "'a'"),
    "--signals-to-handle=SIGKILL": ("--signals-to-handle", "SIGKILL"),
    "--signals-to-handle=TERM": ("--signals-to-handle", "'TERM'"),
    "--shutdown-timeout=-1": ("--shutdown-timeout", "-1"),
    "PET_STANDALONE=yes": ("PET_STANDALONE", "'yes'"),
    "HOLDFAST_GRACE_SECONDS=x": ("GRACE_SECONDS", "'x'"),
    "HOLDFAST_GRACE_SECONDS=nan": ("GRACE_SECONDS",),
    "HOLDFAST_TOPOLOGY=zone": ("TOPOLOGY", "key=value"),
    "HOLDFAST_PRELOAD=a,-b": ("HOLDFAST_PRELOAD", "'a,-b'"),
    "HOLDFAST_FORK=no": ("HOLDFAST_FORK", "'no'"),
    "HOLDFAST_LOG_LEVEL=loud": ("LOG_LEVEL", "'loud'"),
    "HOLDFAST_MASTER=host": ("HOLDFAST_MASTER", "host:port"),
    "HOLDFAST_MASTER=h:0": ("HOLDFAST_MASTER", "'h:0'"),
    "PET_NPROC_PER_NODE=foo": ("PET_NPROC_PER_NODE='foo'", "a number"),
    "HOLDFAST_NPROC_PER_NODE=foo": ("HOLDFAST_NPROC_PER_NODE='foo'", "a number"),
    "--nproc-per-node=foo PET_NPROC_PER_NODE=2": ("--nproc-per-node='foo'",),
    "PET_MAX_RESTARTS=x": ("PET_MAX_RESTARTS='x'", "whole number"),
    "PET_MAX_RESTARTS=-1": ("PET_MAX_RESTARTS=-1",),
    "PET_NNODES=x": ("PET_NNODES='x'", "MIN:MAX"),
    "PET_NUMA_BINDING=x": ("PET_NUMA_BINDING='x'", "node"),
    "--local-ranks-filter=0,2 --nproc-per-node=2": (
        *("--local-ranks-filter='0,2'", "0 to 1", "2 is none"),
    ),
    "--tee=1:3": ("--tee='1:3'", "0 only"),
    "PYTHON_EXEC=/no/python": ("PYTHON_EXEC", "/no/python"),
}
"""Flags and variables, and what the error says."""


@pytest.mark.parametrize("given", BAD)
def test_bad_input_is_refused_by_name_value_and_remedy(given: str, script: str) -> None:
    """One clear error, before anything starts."""
    argv, environ = _split(given)
    with pytest.raises(InputError) as caught:
        _load(*argv, script, **environ)
    for part in BAD[given]:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOLDFAST_JOB", ""),
        ("HOLDFAST_JOB_UID", ""),
        ("HOLDFAST_NODE_RANK", ""),
        ("HOLDFAST_NODE_RANK", "-1"),
        ("HOLDFAST_NODE_RANK", "4294967296"),
        ("HOLDFAST_TLS_DIR", "/nowhere"),
        ("HOLDFAST_TLS_DIR", ""),
        ("HOLDFAST_NNODES", "a:b"),
    ],
)
def test_an_incomplete_identity_is_refused_by_name(
    name: str, value: str, script: str, managed: dict[str, str]
) -> None:
    """With a master given, everything that the hello needs must be there and right."""
    with pytest.raises(InputError, match=name):
        _load(script, **{**managed, name: value})


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        pytest.param(["no_such_file.py"], "training_script='no_such_file.py'", id="script"),
        pytest.param(["-m", "no_such_module"], "-m='no_such_module'", id="module"),
        pytest.param(["--no-python", "no-such-program"], "--no-python=", id="program"),
        pytest.param(["-m", "json.no_such_module"], "-m='json.no_such_module'", id="submodule"),
        pytest.param(["-m", "json.tool.deeper"], "-m='json.tool.deeper'", id="below-a-module"),
        pytest.param(
            ["--no-python", "-m", "json"],
            "--no-python with --module='json': expected one of the two flags",
            id="both",
        ),
        pytest.param(
            ["--numa-binding=node", __file__],
            "--numa-binding='node': expected no such flag here",
            id="numa-without-accelerator",
            marks=pytest.mark.skipif(
                torch.accelerator.is_available(), reason="this machine has an accelerator"
            ),
        ),
    ],
)
def test_a_command_that_cannot_start_is_refused(argv: list[str], part: str) -> None:
    """A missing script is told at once instead of after a rendezvous."""
    with pytest.raises(InputError) as caught:
        _load(*argv)
    assert part in str(caught.value)


@pytest.mark.parametrize("name", ["json.tool", "package.inner", "package.sub", "odd.anything"])
def test_modules_in_packages_are_found_without_being_imported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that makes its own path is believed: only its import would tell."""
    for folder in ("package", "package/sub", "odd"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "odd" / "__init__.py").write_text("__path__ = [*__path__, '/elsewhere']")
    (tmp_path / "package" / "inner.py").write_text("raise AssertionError('imported')")
    monkeypatch.chdir(tmp_path)
    assert _load("-m", name).launch.module


def test_unknown_flags_are_the_parsers_to_refuse(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Torch's own parser answers with its usage and exit code 2."""
    with pytest.raises(SystemExit) as caught:
        _load("--no-such-flag", script)
    assert caught.value.code == 2
    assert "holdfast-run" in capsys.readouterr().err


@pytest.mark.parametrize("flag", flags.DLROVER)
def test_a_flag_of_dlrover_is_refused_with_what_replaces_it(script: str, flag: str) -> None:
    """Somebody who moves a job from dlrover-run learns the field or flag to use."""
    spelt = f"--{flag.removeprefix('--').replace('-', '_')}"
    for words in ((flag, script), (spelt, script), (f"{flag}=1", script)):
        with pytest.raises(InputError, match=flags.DLROVER[flag].split(":")[0]):
            _load(*words)


@pytest.mark.parametrize("words", DLROVER_FLAGS, ids=" ".join)
def test_each_flag_that_dlrover_run_has_is_taken_or_named(
    script: str, words: tuple[str, ...]
) -> None:
    """None ends as an unknown flag, or as the name of a script that does not exist."""
    joined = ("=".join(words),) if len(words) > 1 else words
    for given in {words, joined}:
        with pytest.raises(InputError, match="no flag of DLRover; use ") as refused:
            _load(*given, script)
        assert words[0] in str(refused.value)


def test_a_variable_of_dlrover_is_told_with_what_replaces_it(script: str) -> None:
    """dlrover-run reads each of its flags from a variable, too."""
    environ = {"PET_NETWORK_CHECK": "1", "PET_AUTO_CONFIG": "0", "PET_NODE_UNIT": "2"}
    first, second = _load(script, **environ).notes
    assert first.startswith("PET_NETWORK_CHECK=1 has no effect: use spec.health.preflight")
    assert second.startswith("PET_NODE_UNIT=2 has no effect: use spec.nodeUnit")


def test_help_says_what_differs_from_torchrun(capsys: pytest.CaptureFixture[str]) -> None:
    """--help names the difference in --max-restarts and the exit codes."""
    with pytest.raises(SystemExit) as caught:
        _load("--help")
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "torchrun's default is 0" in text
    assert "Exit codes: 0 success" in text


def test_a_variable_that_nothing_reads_is_told(script: str) -> None:
    """Not refused: a script may have its own, and Kubernetes makes some of a Service's name."""
    environ = {"HOLDFAST_GRACE_SECOND": "5", "HOLDFAST_HOME": "/x", "HOLDFAST_UI_PORT": "tcp://1"}
    (note,) = _load(script, **environ).notes
    assert note.startswith("HOLDFAST_GRACE_SECOND has no effect")
    assert "did you mean HOLDFAST_GRACE_SECONDS?" in note


def test_the_table_of_flags_is_the_parsers() -> None:
    """The tables for checking job files hold exactly the flags of torch's parser."""
    theirs = {}
    for action in flags._parser()._actions:
        if action.option_strings and action.dest != "help":
            kind = "switch" if action.nargs == 0 else getattr(action.type, "__name__", "str")
            kind = kind if kind in ("switch", "int", "float") else "str"
            choices = tuple(action.choices) if action.choices else None
            theirs[tuple(action.option_strings)] = choices or kind
    ours: dict[tuple[str, ...], object] = {names: each for names, each in command.CHOICES.items()}  # noqa: C416
    for kind, table in (
        ("switch", command.SWITCHES),
        ("str", command.TEXTS),
        ("int", command.NUMBERS),
        ("float", command.FRACTIONS),
    ):
        ours.update(dict.fromkeys(table, kind))
    assert ours == theirs


def test_flags_that_an_older_torchrun_lacks_mean_what_it_does_without_them(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older torch's parser has fewer flags: the agent starts all the same, and refuses them."""
    from torch.distributed import run

    newest = flags.parse([script], {}, None)

    def older() -> argparse.ArgumentParser:
        parser = get_args_parser()
        for action in [one for one in parser._actions if one.dest in flags.NEWER]:
            parser._remove_action(action)
            for option in action.option_strings:
                del parser._option_string_actions[option]
        return parser

    get_args_parser = run.get_args_parser
    monkeypatch.setattr(run, "get_args_parser", older)
    assert flags.parse([script], {}, None) == newest
    with pytest.raises(SystemExit):
        flags.parse(["--shutdown-timeout=3", script], {}, None)
