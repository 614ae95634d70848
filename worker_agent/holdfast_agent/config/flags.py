"""The command line: torchrun's own parser, with checks, to one frozen value.

Flags and PET_* variables; HOLDFAST_* ones are in `settings`. Imports torch inside functions.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.machinery
import importlib.util
import shutil
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from holdfast_agent.config import cgroups
from holdfast_agent.config.launch import Launch, LogFlags
from holdfast_agent.errors import InputError
from holdfast_wire import keys

PROGRAM = "holdfast-run"

SENSELESS: Mapping[str, str] = {
    "rdzv_backend": "the job master does the rendezvous",
    "rdzv_endpoint": "the job master is found by HOLDFAST_MASTER",
    "rdzv_id": "the run id is the job's name",
    "rdzv_conf": "the job master has no rendezvous settings here",
    "master_addr": "each round gets its own store, whose address the job master hands out",
    "master_port": "each round gets its own store, whose port the job master hands out",
    "node_rank": "the node rank is HOLDFAST_NODE_RANK",
    "monitor_interval": "an exit is seen at once, nothing is polled",
    "start_method": "workers are forked from a process that has imported torch",
    "event_log_handler": "events are the job master's: see `holdfast events`",
}
"""Flags without effect here, with the reason."""

ALWAYS_SENSELESS = frozenset(
    {"master_addr", "master_port", "monitor_interval", "start_method", "event_log_handler"}
)
"""Flags without effect in a standalone run too, where a script or a person can notice it."""

SENSELESS_VARIABLES: Mapping[str, str] = {
    "TORCHELASTIC_ENABLE_FILE_TIMER": "a rank whose steps stop is reported by the job master",
    "TORCHELASTIC_HEALTH_CHECK_PORT": "the job master watches the agent, by its stream",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "no rank is ended for a kernel sleep",
}
"""Variables of torchrun's own agent without effect here, with the reason."""

DLROVER: Final[Mapping[str, str]] = {
    "--network-check": "spec.health.preflight of the job, with mode Act and networkCheck",
    "--comm-perf-test": "spec.health.preflight of the job, with mode Act and networkCheck",
    "--precheck": "spec.health.preflight of the job, with mode Act and networkCheck",
    "--exclude-straggler": "spec.health.straggler of the job, with mode Act",
    "--node-unit": "spec.nodeUnit of the job",
    "--auto-config": "spec.nprocPerNode of the job: auto counts the devices",
    "--auto-tunning": "nothing in its place: no data loader is tuned",
    "--save-at-breakpoint": "nothing in its place: what ranks saved in memory outlives them",
    "--accelerator": "nothing in its place: torch finds the devices",
    "--training-port": "nothing in its place: each round has its own store",
    "--numa-affinity": "--numa-binding=node",
    "--membind-policy": "--numa-binding=node",
    "--ucp-device-type": "nothing in its place: checkpoints are resharded without a device",
}
"""Flags of dlrover-run that torchrun does not know, with what replaces each."""

NPROC_FLAG = "--nproc-per-node"

HELP_NOTE = (
    "holdfast-run takes every torchrun flag. Differences: --max-restarts bounds the job's failure "
    "budget, and where it is not given the job's own budget holds (torchrun's default is 0: the "
    "first failure ends the run). Without HOLDFAST_MASTER in the environment it starts a job "
    "master of its own for one node. Exit codes: 0 success or released, 1 the job failed, 2 wrong "
    "flag or environment, 75 another agent took this node's place, 128+N ended by signal N."
)


NEWER: Final[Mapping[str, object]] = {
    "signals_to_handle": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    "shutdown_timeout": None,
    "virtual_local_rank": False,
    "numa_binding": None,
    "log_line_prefix_template": None,
    "duplicate_stdout_filters": (),
    "duplicate_stderr_filters": (),
}
"""Flags that an older torchrun does not know and refuses, and its behaviour without them."""


def parse(argv: Sequence[str], environ: Mapping[str, str], nproc_default: str | None) -> Launch:
    """Return the request in `argv` and the PET_* variables.

    argv: Arguments without the program's name.
    environ: The environment; torch's parser itself reads os.environ for its defaults.
    nproc_default: --nproc-per-node, if neither the flag nor PET_NPROC_PER_NODE is given.

    Raises:
        InputError: A value is wrong.
        SystemExit: With code 2 from the parser (unknown flag, missing script), 0 for --help.
    """
    _check_boolean_variables(environ)
    typed = _typed_flags(argv)
    _check_typed_variables(environ, typed)
    args = _parser().parse_args(list(argv))
    for name, value in NEWER.items():
        if not hasattr(args, name):
            setattr(args, name, value)
    from_environment = {
        name: environ[f"PET_{name.upper()}"]
        for name in vars(args)
        if f"PET_{name.upper()}" in environ and name not in typed
    }
    given = typed | from_environment.keys()
    sources = {f"--{name.replace('_', '-')}": f"PET_{name.upper()}" for name in from_environment}
    if "nproc_per_node" not in given and nproc_default is not None:
        args.nproc_per_node = nproc_default
        sources[NPROC_FLAG] = keys.ENV_NPROC_PER_NODE
    try:
        launch = _launch(args, environ, frozenset(given))
    except InputError as error:
        raise error.under(sources.get(error.name, error.name)) from error.__cause__
    return dataclasses.replace(launch, from_environment=from_environment)


def _launch(args: argparse.Namespace, environ: Mapping[str, str], given: frozenset[str]) -> Launch:
    low, high = node_range("--nnodes", args.nnodes)
    _check_command(args)
    size = local_world_size(args.nproc_per_node)
    if args.numa_binding is not None and not _has_accelerator():
        expected = (
            "no such flag here: a rank is bound to the CPUs beside its accelerator, and "
            "torch finds none on this machine"
        )
        raise InputError("--numa-binding", args.numa_binding, expected)
    return Launch(
        script=args.training_script,
        args=tuple(args.training_script_args),
        module=args.module,
        no_python=args.no_python and not args.run_path,
        interpreter=_interpreter(environ, in_process=args.run_path),
        min_nodes=low,
        max_nodes=high,
        node_rank=args.node_rank,
        local_world_size=size,
        max_restarts=_max_restarts(args.max_restarts) if "max_restarts" in given else None,
        role=args.role,
        rdzv_id=args.rdzv_id if "rdzv_id" in given else None,
        signals=_signals(args.signals_to_handle),
        signal_names=args.signals_to_handle,
        shutdown_seconds=_shutdown_seconds(args.shutdown_timeout, environ),
        virtual_local_rank=args.virtual_local_rank,
        numa=args.numa_binding,
        worker_server=not args.no_worker_server,
        local_addr=args.local_addr,
        logs=parse_log_flags(args, environ, size),
        given=given,
    )


def notes(launch: Launch, known: Mapping[str, str], *, standalone: bool) -> tuple[str, ...]:
    """Return a line for each flag that has no effect here.

    launch: The parsed flags.
    known: Values by flag name that need no note, such as the operator's PET_* variables for an
        unmodified torchrun.
    standalone: True: there is no master.
    """
    lines = []
    for name, why in SENSELESS.items():
        if name not in launch.given or (standalone and name not in ALWAYS_SENSELESS):
            continue
        value = launch.from_environment.get(name)
        if value is not None and value == known.get(name):
            continue
        source = f"PET_{name.upper()}" if value is not None else f"--{name.replace('_', '-')}"
        lines.append(f"{source} has no effect: {why}")
    if "standalone" in launch.given and not standalone:
        lines.append("--standalone has no effect: HOLDFAST_MASTER names a job master")
    return tuple(lines)


def variable_notes(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a line for each variable that has no effect here."""
    dlrovers = {
        f"PET_{flag.removeprefix('--').replace('-', '_').upper()}": f"use {instead}"
        for flag, instead in DLROVER.items()
    }
    return tuple(
        f"{name}={environ[name]} has no effect: {why}"
        for name, why in (*SENSELESS_VARIABLES.items(), *dlrovers.items())
        if environ.get(name, "0") not in {"", "0"}
    )


def _parser() -> argparse.ArgumentParser:
    from torch.distributed.argparse_util import check_env
    from torch.distributed.run import get_args_parser

    parser: argparse.ArgumentParser = get_args_parser()
    _allow_any_script_flag(parser)
    parser.add_argument(
        "--no-worker-server",
        action=check_env,
        help="Do not serve torch's flight recorder from the ranks. Without it the job master does "
        "not see who is slow or hangs, unless the script uses the SDK.",
    )
    _name_replacements(parser)
    parser.prog = PROGRAM
    parser.description = "Starts this node's training processes under a Holdfast job master."
    parser.epilog = HELP_NOTE
    return parser


def _name_replacements(parser: argparse.ArgumentParser) -> None:
    """Have the parser refuse a flag of DLRover by saying what replaces it."""
    refuse = parser.error

    def error(message: str) -> NoReturn:
        for word in message.split():
            flag, _, value = word.partition("=")
            name = flag.replace("_", "-")
            if name in DLROVER:
                raise InputError(flag, value, f"no flag of DLRover; use {DLROVER[name]}")
        refuse(message)

    vars(parser)["error"] = error


def _allow_any_script_flag(parser: argparse.ArgumentParser) -> None:
    """Have the parser ignore the arguments behind the script.

    Python before 3.12.3 refuses `train.py --mo`, because that could be short for several flags of
    the launcher. Before the script such a word is refused anyway, as unknown.
    """
    find = parser._get_option_tuples  # noqa: SLF001 - no public way

    def unambiguous(text: str) -> list[Any]:
        found: list[Any] = find(text)
        return found if len(found) < 2 else []

    vars(parser)["_get_option_tuples"] = unambiguous


def _typed_flags(argv: Sequence[str]) -> frozenset[str]:
    """Return the names of the flags on the command line: the same parser without defaults."""
    parser = _parser()
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to list actions
        action.default = argparse.SUPPRESS
    return frozenset(vars(parser.parse_args(list(argv))))


def _check_boolean_variables(environ: Mapping[str, str]) -> None:
    names = (
        "STANDALONE",
        "MODULE",
        "NO_PYTHON",
        "RUN_PATH",
        "VIRTUAL_LOCAL_RANK",
        "NO_WORKER_SERVER",
    )
    for name in (f"PET_{name}" for name in names):
        value = environ.get(name, "0")
        if not value.strip().isdecimal():
            raise InputError(name, value, "0 or 1")


def _check_typed_variables(environ: Mapping[str, str], typed: frozenset[str]) -> None:
    """Refuse variables that torch's parser would refuse under the name of an untyped flag."""
    for action in _parser()._actions:  # noqa: SLF001 - argparse has no public way to list actions
        name = f"PET_{action.dest.upper()}"
        value = environ.get(name)
        if value is None or action.dest in typed:
            continue
        if action.type is int and not value.strip().removeprefix("-").isdecimal():
            raise InputError(name, value, "a whole number")
        if action.choices is not None and value not in action.choices:
            raise InputError(name, value, f"one of {', '.join(map(str, action.choices))}")


def _interpreter(environ: Mapping[str, str], *, in_process: bool) -> str | None:
    name = environ.get("PYTHON_EXEC")
    if name is None or in_process or name == sys.executable:
        return None
    if shutil.which(name) is None:
        raise InputError("PYTHON_EXEC", name, "a Python that is on PATH or a path to one")
    return name


def node_range(name: str, text: str) -> tuple[int, int]:
    """Return the bounds in a number or MIN:MAX; raises InputError."""
    parts = text.split(":")
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        raise InputError(name, text, "a number or MIN:MAX, for example 2 or 1:4")
    low, high = int(parts[0]), int(parts[-1])
    if not 1 <= low <= high:
        raise InputError(name, text, "MIN:MAX with 1 ≤ MIN ≤ MAX")
    return low, high


def local_world_size(text: str) -> int:
    """Return the number of --nproc-per-node on this machine; raises InputError.

    torch would count the machine's CPUs. Here only those count that this process may use: a
    container's limit, or an affinity, may leave no room for a process per CPU.
    """
    from torch.distributed.run import determine_local_world_size

    try:
        size = int(determine_local_world_size(text))
    except ValueError as error:
        remedy = f"a number, auto, cpu, gpu or xpu ({error})"
        raise InputError(NPROC_FLAG, text, remedy) from error
    if size < 1:
        raise InputError(NPROC_FLAG, text, "at least 1 process")
    counts_cpus = text == "cpu" or (text == "auto" and not _has_accelerator())
    return min(size, cgroups.usable_cpus()) if counts_cpus else size


def _has_accelerator() -> bool:
    """Return True if torch's `auto` counts devices here, as `determine_local_world_size` asks."""
    import torch

    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:  # before torch 2.6
        return bool(torch.cuda.is_available())
    return bool(accelerator.is_available())


def _max_restarts(value: int) -> int:
    if value < 0:
        raise InputError("--max-restarts", value, "0 or more")
    return value


def _signals(text: str) -> tuple[int, ...]:
    numbers = []
    for name in (part.strip() for part in text.split(",")):
        number = getattr(signal, name, None) if name.startswith("SIG") else None
        if not isinstance(number, signal.Signals) or number in (signal.SIGKILL, signal.SIGSTOP):
            remedy = "names of signals that can be caught, for example SIGTERM,SIGINT"
            raise InputError("--signals-to-handle", text, f"{remedy}; {name!r} is none")
        numbers.append(int(number))
    return tuple(numbers)


def _shutdown_seconds(flag: int | None, environ: Mapping[str, str]) -> float:
    name, value = "--shutdown-timeout", str(flag)
    if flag is None:
        name = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
        value = environ.get(name, "30")
    if not value.strip().isdecimal():
        raise InputError(name, value, "whole seconds, 0 or more")
    return float(value)


def _check_command(args: argparse.Namespace) -> None:
    """Refuse a command that cannot be started, while that costs nothing."""
    script = args.training_script
    if args.module and args.no_python:
        expected = "one of the two flags: the one starts a program, the other a module of Python"
        raise InputError("--no-python with --module", script, expected)
    if args.module:
        if not _module_exists(script):
            raise InputError("-m", script, "a module that Python finds from this directory")
    elif args.no_python and not args.run_path:
        if shutil.which(script) is None:
            raise InputError("--no-python", script, "a program that is on PATH or a path to one")
    elif not Path(script).exists():
        raise InputError("training_script", script, f"a file; there is none in {Path.cwd()}")


def _module_exists(name: str) -> bool:
    """Look for a module without importing its packages."""
    top, *below = name.split(".")
    # `python -m` looks in the working directory first, which may not be in sys.path here.
    finder = importlib.machinery.PathFinder
    found = finder.find_spec(top, [str(Path.cwd())])
    try:
        found = found or importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    for part in below:
        if found is None or found.submodule_search_locations is None:
            return False
        if _makes_its_path(found.origin):
            return True
        found = finder.find_spec(part, list(found.submodule_search_locations))
    return found is not None


def _makes_its_path(init: str | None) -> bool:
    """Return True if a package's modules can be found only by importing the package."""
    if init is None or not init.endswith(".py"):
        return False
    try:
        return "__path__" in Path(init).read_text(errors="replace")
    except OSError:
        return True


def parse_log_flags(args: argparse.Namespace, environ: Mapping[str, str], size: int) -> LogFlags:
    """Return the log flags for a node of `size` processes; raises InputError."""
    template = args.log_line_prefix_template or environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
    if args.log_dir and Path(args.log_dir).is_file():
        raise InputError("--log-dir", args.log_dir, "a directory, this is a file")
    return LogFlags(
        log_dir=args.log_dir,
        redirects=_std("--redirects", args.redirects, size),
        tee=_std("--tee", args.tee, size),
        ranks_filter=_ranks_filter(args.local_ranks_filter, size),
        prefix_template=template,
        stdout_filters=_words(args.duplicate_stdout_filters),
        stderr_filters=_words(args.duplicate_stderr_filters),
        specs=args.logs_specs,
    )


def _std(name: str, text: str, size: int) -> str:
    from torch.distributed.elastic.multiprocessing import Std

    try:
        chosen = Std.from_str(text)
    except ValueError as error:
        raise InputError(name, text, "0 to 3, or a list such as 0:1,1:3") from error
    if isinstance(chosen, dict):
        _check_local_ranks(name, text, chosen, size)
    return text


def _ranks_filter(text: str, size: int) -> frozenset[int] | None:
    if not text:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InputError("--local-ranks-filter", text, "local ranks, for example 0,2")
    chosen = frozenset(int(part) for part in parts)
    _check_local_ranks("--local-ranks-filter", text, chosen, size)
    return chosen


def _check_local_ranks(name: str, text: str, chosen: Iterable[int], size: int) -> None:
    beyond = sorted(rank for rank in chosen if not 0 <= rank < size)
    if beyond:
        span = f"0 to {size - 1}" if size > 1 else "0 only"
        remedy = f"local ranks of this node, which are {span}; {beyond[0]} is none"
        raise InputError(name, text, remedy)


def _words(value: Sequence[str] | str) -> tuple[str, ...]:
    # A PET_* default arrives as the plain text, a flag as torch's list.
    return tuple(value.split(",")) if isinstance(value, str) else tuple(value)
