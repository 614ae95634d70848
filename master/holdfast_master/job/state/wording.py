"""Sentences about processes and nodes for events and incidents."""

from __future__ import annotations

import itertools

from holdfast_master.policies import failure
from holdfast_master.policies.failure import EvidenceKind
from holdfast_master.policies.pod_ends import exit_code
from holdfast_wire.messages import MemoryUse, PodObservation, PodPhase, WorkerExited

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
_SAYS_NOTHING = frozenset({"", "Killed"})
"""Reasons of a pod's end that its signal tells already."""
_TRACEBACK = "Traceback (most recent call last)"
_LONGEST = 300
_READ = 4_000
"""Characters that are looked at: what people and scripts send may be of any length."""


def ending(code: int) -> str:
    """Describe the end of a process."""
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
    """Describe the end of a training process."""
    who, lack = f"rank {rank} on node {node}", _lack(exited.memory)
    if exited.error_type and exited.exit_code >= 0:
        kind = f"{exited.error_type}: "  # the message may begin with it, as a traceback's end does
        said = short(exited.error_message.removeprefix(kind))
        # Of an error without a text the call stack is all there is.
        text = f"{who} raised {kind}{'' if said.startswith(_TRACEBACK) else said}"
        return f"{text}; {lack}" if lack else text
    tail = exited.stderr_tail.strip().rpartition("\n")[2]
    said = short(tail if exited.exit_code > 0 else exited.error_message)
    oom_kills = exited.memory.oom_kills if exited.memory is not None else 0
    kind_of_end = failure.worker_kind(exited.exit_code, exited.error_type, oom_kills)
    if kind_of_end is EvidenceKind.OUT_OF_MEMORY:
        why = "; ".join(filter(None, (f"out of memory: {lack}", said)))
    else:
        why = "; ".join(filter(None, (said, lack)))
    return f"{who} {ending(exited.exit_code)}{f': {why}' if why else ''}"


def _lack(use: MemoryUse | None) -> str:
    """Describe a container for whose lack of memory the kernel has ended processes; else empty."""
    if use is None or not use.oom_kills:
        return ""
    limit = (
        f"its container's limit is {_gib(use.limit_bytes)}"
        if use.limit_bytes
        else "its container has no limit, so the machine's memory was short"
    )
    peak = f", its peak {_gib(use.peak_bytes)}" if use.peak_bytes else ""
    ended = f"{use.oom_kills} processes" if use.oom_kills > 1 else "1 process"
    return f"{limit}{peak}; the kernel ended {ended} of it for lack of memory in this round"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def left_others(rank: int, node: int, survivor: str) -> str:
    """Describe a process that ended well while others still communicated with it."""
    return f"rank {rank} on node {node} ended with exit code 0 before the others: {survivor}"


def pod_end(pod: PodObservation, when: str = "") -> str:
    """Describe the end of a pod, and (`when`) its progress."""
    who = f"{pod.name or f'pod {pod.pod_uid}'} of node {pod.node_rank}"
    why = f" ({pod.reason})" if pod.reason not in _SAYS_NOTHING else ""
    when = f" {when}" if when else ""
    last = pod.text.strip().rpartition("\n")[2]  # the text may be the end of its log
    said = f"; its last words: {short(last)}" if last else ""
    return f"{who} {_pod_ending(pod)}{why}{when}{said}"


def _pod_ending(pod: PodObservation) -> str:
    if pod.phase is PodPhase.SUCCEEDED:
        return "ended with exit code 0"
    if code := exit_code(pod):
        return ending(code)
    return "is gone" if pod.phase is PodPhase.GONE else "failed"


def nodes_named(ranks: list[int]) -> str:
    """`node 1`, `nodes 1, 2`."""
    return f"node{'s' if len(ranks) > 1 else ''} {listing(ranks)}"


def listing(numbers: list[int]) -> str:
    """Node ranks in ascending order, runs of three and more as a range."""
    parts: list[str] = []
    # The numbers of a run have one distance from their places.
    for _, run in itertools.groupby(enumerate(sorted(numbers)), lambda one: one[1] - one[0]):
        own = [str(number) for _, number in run]
        parts += [f"{own[0]}-{own[-1]}"] if len(own) > 2 else own
    return ", ".join(parts)
