"""Checks of a job's commands on this machine, before anything is started.

Belongs here: programs, scripts and directories that have to exist, and the kernel's limits. Does
not belong here: the meaning of the words (`holdfast_operator.pods.command`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

from holdfast_cli.runner.pods import environment
from holdfast_operator.plan.pods import PodSlot
from holdfast_operator.pods.command import is_agent, is_open, read_command
from holdfast_operator.pods.environment import PodIdentity
from holdfast_operator.pods.process import PodProcess, build_process, templates
from holdfast_operator.pods.template import main_container, words_of
from holdfast_operator.spec import ElasticJob, Problem
from holdfast_operator.spec.problems import Path, ProblemKind, show_value

_LONGEST_WORD = 128 * 1024
"""Linux: bytes of one argument or one NAME=value, with its NUL (MAX_ARG_STRLEN)."""
_SLACK = 16 * 1024
"""Bytes that the launcher and the agent add, of the limit for all words together."""


def check_machine(job: ElasticJob) -> tuple[Problem, ...]:
    """Return every reason why this machine cannot start a job that `check_job` accepts."""
    slots = [PodSlot("worker", 0), *(PodSlot(role.name, 0) for role in job.spec.extra_roles)]
    problems: list[Problem] = []
    for slot, (path, template) in zip(slots, templates(job), strict=True):
        at = main_container(template["spec"])
        container = template["spec"]["containers"][at]
        where = (*path, "spec", "containers", at)
        problems += _check_container(container, where, build_process(job.spec, _who(job, slot)))
    return tuple(problems)


def _who(job: ElasticJob, slot: PodSlot) -> PodIdentity:
    """Return an identity whose values have the length of the real ones."""
    return PodIdentity(
        job=job.name,
        namespace=job.namespace,
        job_uid="0" * 36,
        slot=slot,
        pod_name=slot.pod_name(job.name, 0),
        pod_uid="0" * 36,
        master="127.0.0.1:65535",
        tls_dir="",
    )


def _check_container(
    container: Mapping[str, Any], path: Path, process: PodProcess
) -> Iterator[Problem]:
    directory = FilePath(process.working_dir or ".")
    if not directory.is_dir():
        value = container["workingDir"]
        yield _missing((*path, "workingDir"), value, f"is no directory; this is {FilePath.cwd()}")
        return
    env = environment(process.env)
    yield from _check_sizes(process, env, path)
    yield from _check_program(words_of(container), process, env, directory, path)


def _check_program(
    raw: list[str], process: PodProcess, env: Mapping[str, str], directory: FilePath, path: Path
) -> Iterator[Problem]:
    name = process.argv[0]
    if not is_open(raw[0]) and not _is_program(name, env, directory):
        fault = "is no program on this machine; name one on PATH, or a path to one"
        yield _missing((*path, "command", 0), name, fault)
    if not is_agent(raw):
        return
    target = read_command(raw)
    if is_open(target.name) or target.is_module:
        return
    if target.is_program:
        if not _is_program(target.name, env, directory):
            fault = "is no program on this machine, which --no-python asks for"
            yield _missing((*path, "command"), target.name, fault)
    elif not (directory / target.name).exists():
        fault = f"is the training script, and there is no such file in {directory.absolute()}"
        yield _missing((*path, "command"), target.name, fault)


def _is_program(name: str, env: Mapping[str, str], directory: FilePath) -> bool:
    if "/" in name:
        file = directory / name
        return file.is_file() and os.access(file, os.X_OK)
    return shutil.which(name, path=env.get("PATH")) is not None


def _check_sizes(process: PodProcess, env: Mapping[str, str], path: Path) -> Iterator[Problem]:
    whole = 0
    for at, word in enumerate(process.argv):
        size = len(os.fsencode(word)) + 1
        whole += size
        if size > _LONGEST_WORD:
            yield _missing((*path, "command"), word, f"(word {at}) has {size} bytes{_limit()}")
    for name, value in env.items():
        size = len(os.fsencode(f"{name}={value}")) + 1
        whole += size
        if size > _LONGEST_WORD and name in process.env:
            yield _missing((*path, "env"), name, f"has a value of {size} bytes{_limit()}")
    most = os.sysconf("SC_ARG_MAX") - _SLACK
    if whole > most:
        fault = f"has {whole} bytes with its variables, more than the {most} that a process can get"
        yield _missing((*path, "command"), process.argv[0], fault)


def _limit() -> str:
    return f", more than the {_LONGEST_WORD} that Linux takes; put it into a file"


def _missing(path: Path, value: Any, fault: str) -> Problem:
    return Problem(path=path, kind=ProblemKind.BOUND, value=show_value(value), fault=fault)
