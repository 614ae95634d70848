"""The command of a foreign job's container, turned into a `holdfast-run` command. Pure.

Launchers of torch and of DLRover are replaced, also inside a shell's `-c` text, and the flags that
Holdfast decides itself are taken out. Flags of the script stay as they are.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast_cli.convert.rules import Finding, Outcome
from holdfast_operator.pods import command

_MODULES: Final = r"torch\.distributed\.(?:run|launch)|dlrover\.trainer\.torch\.elastic_run"
_PYTHON: Final = r"(?:\S*/)?python[0-9.]*(?:\s+-u)?"
_LAUNCHER: Final = re.compile(
    rf"(?<![\w./-])(?:(?:\S*/)?(?:torchrun|dlrover-run)|{_PYTHON}\s+-m\s+(?:{_MODULES}))(?=\s|$)"
)
_SCRIPT: Final = re.compile(rf"(?<![\w./-]){_PYTHON}(?=\s+(?:-m\s+)?[\w./$\{{])")
_TOKEN: Final = re.compile(r"""(?:"[^"]*"|'[^']*'|\\.|[^\s"'\\;|&()<>])+""")
_GAP: Final = re.compile(r"(?:\s|\\\n)*")
_SHELLS: Final = frozenset({"sh", "bash", "ash", "dash", "zsh"})
_TEXT_NEXT: Final = re.compile(r"-[A-Za-z]*c[A-Za-z]*")
"""Options of a shell after which a text comes, such as -lc."""
_LEGACY: Final = "torch.distributed.launch"
_LEFT: Final = re.compile(
    r"\$[({]?((?:NODE|WORKER)_(?:NUM|RANK)|WORLD_SIZE|RANK|MASTER_(?:ADDR|PORT))\b"
)
_OTHER: Final[Mapping[str, str]] = {
    "deepspeed": "DeepSpeed's own launcher; write `holdfast-run train.py --deepspeed ...` instead",
    "accelerate": "accelerate's own launcher; write `holdfast-run train.py` instead",
    "mpirun": "an MPI launcher; write `holdfast-run train.py` instead",
}
_ACT: Final = {"mode": "Act"}
_PREFLIGHT: Final = {"preflight": {**_ACT, "networkCheck": True}}

DROPPED_FLAGS: Final[Mapping[str, str]] = {
    "--rdzv-backend": "the job master is the rendezvous",
    "--rdzv-endpoint": "the job master is the rendezvous",
    "--rdzv-id": "the job master is the rendezvous",
    "--rdzv-conf": "the job master is the rendezvous",
    "--standalone": "the job master is the rendezvous",
    "--master-addr": "each round has its own store",
    "--master-port": "each round has its own store",
    "--node-rank": "the operator sets it",
    "--monitor-interval": "an exit is seen at once",
    "--start-method": "workers are forked from a process that has imported torch",
    "--event-log-handler": "`holdfast events` shows the job's events",
    "--use-env": "the only way of holdfast-run, as of torchrun",
    "--auto-config": "nprocPerNode: auto counts the devices; sizes are the ElasticJob's",
    "--auto-tunning": "nothing tunes the script's data loader",
    "--save-at-breakpoint": "what ranks saved in memory outlives them; no flag is needed",
    "--training-port": "each round has its own store",
    "--membind-policy": "torch's --numa-binding binds CPUs; memory follows by first touch",
    "--ucp-device-type": "checkpoints are resharded without the device",
    "--accelerator": "torch finds the devices",
}
"""Flags that are taken out, with the reason. `holdfast-run` refuses the ones of DLRover by name."""
HEALTH_FLAGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "--network-check": _PREFLIGHT,
    "--comm-perf-test": _PREFLIGHT,
    "--precheck": _PREFLIGHT,
    "--exclude-straggler": {"straggler": _ACT},
}
"""Flags of DLRover, with the part of spec.health that does the same."""
SWITCHES: Final = frozenset(
    {
        "--auto-config",
        "--auto-tunning",
        "--exclude-straggler",
        "--save-at-breakpoint",
        "--numa-affinity",
        "--network-check",
        "--comm-perf-test",
        "--use-env",
        *(name for names in command.SWITCHES for name in names),
    }
)
"""Flags without a value."""
_SHORT: Final[Mapping[str, str]] = {"-m": "--module", "-r": "--redirects", "-t": "--tee"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The words of a job's container, and what their flags ask of the job."""

    words: tuple[str, ...]
    """The new command with its arguments; empty: it could not be made, `findings` says why."""
    nodes: tuple[str, str] | None = None
    """Bounds of --nnodes as they are written; None: not given."""
    nproc: str | None = None
    """--nproc-per-node; None: not given."""
    plain: bool = False
    """No launcher starts the script: `nproc` is 1 by that, and by no flag."""
    unit: str | None = None
    """--node-unit; None: not given."""
    health: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Part of spec.health."""
    findings: tuple[Finding, ...] = ()


def convert_command(words: Sequence[str], field: str) -> Launch:
    """Return the launch of a container's command with its arguments; `field`: its path."""
    given = tuple(words)
    if command.is_agent(given):
        return Launch(words=given)
    in_shell = bool(given) and given[0].rpartition("/")[2] in _SHELLS
    if in_shell and len(given) > 2 and _TEXT_NEXT.fullmatch(given[1]):
        return _shell(given, field)
    count = _launcher_words(given)
    if not count:
        return _script(given, field)
    return _local_rank(given[count - 1], _flags(given[count:], field), field)


def _local_rank(launcher: str, launch: Launch, field: str) -> Launch:
    """Refuse the old launcher where its script is given its local rank as an argument."""
    if not launcher.endswith(_LEGACY) or any(
        one.field.endswith("--use-env") for one in launch.findings
    ):
        return launch
    why = "gives the script --local-rank, holdfast-run does not; read LOCAL_RANK, add --use-env"
    legacy = Finding(f"{field} {_LEGACY}", Outcome.REFUSED, why)
    return dataclasses.replace(launch, findings=(*launch.findings, legacy))


def _launcher_words(words: Sequence[str]) -> int:
    """Return how many words at the front are a launcher; 0: none is."""
    program = words[0].rpartition("/")[2] if words else ""
    if program in {"torchrun", "dlrover-run"}:
        return 1
    at = 2 if words[1:2] == ("-u",) else 1
    if re.fullmatch(r"python[0-9.]*", program) and words[at : at + 1] == ("-m",):
        return at + 2 if re.fullmatch(_MODULES, "".join(words[at + 1 : at + 2])) else 0
    return 0


def _script(words: tuple[str, ...], field: str) -> Launch:
    """Return the launch of a script that no launcher starts: one process in each pod."""
    program = words[0].rpartition("/")[2] if words else ""
    if re.fullmatch(r"python[0-9.]*", program):
        rest = words[2:] if words[1:2] == ("-u",) else words[1:]
        if rest and rest[0] == "-c":
            return Launch(words=(command.AGENT, "--no-python", *words), nproc="1", plain=True)
        if rest and (rest[0] == "-m" or not rest[0].startswith("-")):
            return Launch(words=(command.AGENT, *rest), nproc="1", plain=True)
    return _refusal(field, _OTHER.get(program) or _unknown(program))


def _unknown(program: str) -> str:
    if not program or program.startswith("-"):
        return "the image's own command trains; write it here, with holdfast-run before the script"
    return f"{program!r} starts the training; write holdfast-run before the script in its stead"


def _refusal(field: str, reason: str) -> Launch:
    return Launch(words=(), findings=(Finding(field, Outcome.REFUSED, reason),))


def _shell(words: tuple[str, ...], field: str) -> Launch:
    """Return the launch inside a shell's text; the text around the launcher stays as it is."""
    text = words[2]
    found = list(_LAUNCHER.finditer(text))
    plain = not found
    if plain:
        found = list(_SCRIPT.finditer(text))
    if len(found) != 1:
        many = "several commands" if found else "no command"
        return _refusal(field, f"{many} of this text may train; write holdfast-run before the one")
    end, tokens = _tokens(text, found[0].end())
    if plain:
        launch = Launch(words=(command.AGENT, *tokens), nproc="1", plain=True)
    else:
        launch = _local_rank(found[0][0], _flags(tuple(tokens), field), field)
    new = text[: found[0].start()] + " ".join(launch.words) + text[end:]
    left = _LEFT.search(new)
    if left is not None:
        why = f"${left[1]} is not set for the shell here; the ranks have it, and PET_NODE_RANK"
        return _refusal(field, f"{why} and PET_NNODES are set for the shell")
    return dataclasses.replace(launch, words=(*words[:2], new, *words[3:]))


def _tokens(text: str, at: int) -> tuple[int, list[str]]:
    """Return the end of the command that begins before `at`, and its words as they are written."""
    tokens: list[str] = []
    end = at
    while True:
        gap = _GAP.match(text, end)
        start = gap.end() if gap is not None else end
        found = _TOKEN.match(text, start)
        if found is None or "\n" in text[end:start].replace("\\\n", ""):
            return end, tokens
        tokens.append(found[0])
        end = found.end()


def _flags(words: Sequence[str], field: str) -> Launch:
    """Return the launch of a launcher's words, without the launcher itself."""
    kept: list[str] = []
    asked: dict[str, str] = {}
    health: dict[str, Any] = {}
    findings: list[Finding] = []
    at = 0
    while at < len(words) and words[at].strip("\"'").startswith("-"):
        name, value, used = _flag(words, at)
        if name in DROPPED_FLAGS:
            flag = f"{field} {name}"
            findings.append(Finding(flag, Outcome.DROPPED, DROPPED_FLAGS[name], value))
        elif name in HEALTH_FLAGS:
            health |= HEALTH_FLAGS[name] if value != "0" else {}
        elif name == "--numa-affinity":
            kept.append("--numa-binding=node")
        elif name in {"--nnodes", "--nproc-per-node", "--node-unit"}:
            asked[name] = value
        else:
            kept += words[at : at + used]
        at += used
    return Launch(
        words=(command.AGENT, *kept, *words[at:]),
        nodes=_bounds(asked.get("--nnodes")),
        nproc=asked.get("--nproc-per-node"),
        unit=asked.get("--node-unit"),
        health=health,
        findings=tuple(findings),
    )


def _flag(words: Sequence[str], at: int) -> tuple[str, str, int]:
    """Return a flag's name with dashes, its value, and the number of words that it takes."""
    word = words[at].strip("\"'")
    name, equals, value = word.partition("=")
    name = _SHORT.get(name, name).replace("_", "-")
    if equals or name in SWITCHES:
        return name, value, 1
    if at + 1 < len(words):
        return name, words[at + 1].strip("\"'"), 2
    return name, "", 1


def _bounds(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    low, colon, high = text.partition(":")
    return (low, high) if colon else (low, low)
