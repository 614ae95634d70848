"""Sentences about processes and nodes for events and incidents.

Belongs here: turning reports into words. Does not belong here: what is made of them.
"""

from __future__ import annotations

from holdfast_master.decide.pod_ends import exit_code
from holdfast_wire.messages import PodObservation, PodPhase, WorkerExited

_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    13: "SIGPIPE",
    15: "SIGTERM",
}
_LONGEST = 300
_READ = 4_000
"""Characters that are looked at: what people and scripts send may be of any length."""


def ending(code: int) -> str:
    """How a process ended."""
    number = -code if code < 0 else code - 128
    if code < 0 or number in _SIGNALS:
        name = f" ({_SIGNALS[number]})" if number in _SIGNALS else ""
        return f"was ended by signal {number}{name}"
    return f"ended with exit code {code}"


def short(text: str) -> str:
    """The first line without control characters, cut to a length that fits a terminal."""
    lines = text[:_READ].strip().splitlines()
    line = "".join(c if c.isprintable() else " " for c in lines[0]).strip() if lines else ""
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def worker_end(exited: WorkerExited, node: int, rank: int) -> str:
    """What happened to a training process."""
    who = f"rank {rank} on node {node}"
    if exited.error_type and exited.exit_code >= 0:
        kind = f"{exited.error_type}: "  # the message may begin with it, as a traceback's end does
        return f"{who} raised {kind}{short(exited.error_message).removeprefix(kind)}"
    tail = short(exited.stderr_tail.strip().rpartition("\n")[2])
    said = f": {tail}" if tail and exited.exit_code > 0 else ""
    return f"{who} {ending(exited.exit_code)}{said}"


def pod_end(pod: PodObservation, when: str = "") -> str:
    """What happened to a pod, and (`when`) how far it was."""
    who = f"{pod.name or f'pod {pod.pod_uid}'} of node {pod.node_rank}"
    why = f" ({pod.reason})" if pod.reason else ""
    when = f" {when}" if when else ""
    said = f"; its last words: {short(pod.text)}" if pod.text else ""
    return f"{who} {_pod_ending(pod)}{why}{when}{said}"


def _pod_ending(pod: PodObservation) -> str:
    if pod.phase is PodPhase.SUCCEEDED:
        return "ended with exit code 0"
    if code := exit_code(pod):
        return ending(code)
    return "is gone" if pod.phase is PodPhase.GONE else "failed"


def listing(numbers: list[int]) -> str:
    """Node ranks in ascending order, runs of three and more as a range."""
    parts: list[str] = []
    for run in _runs(sorted(numbers)):
        if len(run) > 2:
            parts.append(f"{run[0]}-{run[-1]}")
        else:
            parts += [str(number) for number in run]
    return ", ".join(parts)


def _runs(numbers: list[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs
