"""Activity of one rank that makes no progress, from its evidence alone."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Sequence

from holdfast_wire.messages import ChildEvidence, RankEvidence


class RankActivity(enum.Enum):
    """An activity of a rank."""

    GONE = "has no process"
    UNINTERRUPTIBLE = "is in uninterruptible sleep (D)"
    STOPPED = "is stopped (SIGSTOP or a debugger)"
    NATIVE_GIL = "is in native code that holds the GIL"
    DATA_LOADER = "waits for its data loader"
    STORAGE = "waits for storage"
    PIPE = "waits for the other end of a pipe"
    COMPILATION = "compiles"
    LOOP = "runs Python code"
    LOCK = "waits for another thread or process"
    PEERS = "waits for its peers"
    INIT = "waits for its peers to initialize a process group"
    OVER = "has ended its script, and its process lives on"
    UNCLEAR = "does something else"
    UNKNOWN = "gave no evidence"


WAITS_FOR_PEERS = frozenset({RankActivity.PEERS, RankActivity.INIT})
"""Such a rank is a victim."""
SELF_EVIDENT = frozenset(
    {
        RankActivity.GONE,
        RankActivity.UNINTERRUPTIBLE,
        RankActivity.STOPPED,
        RankActivity.NATIVE_GIL,
        RankActivity.DATA_LOADER,
        RankActivity.STORAGE,
        RankActivity.PIPE,
        RankActivity.COMPILATION,
        RankActivity.OVER,
    }
)
"""Such a rank is stuck by itself, whatever the others do. A lock or a loop can also be a script's
own way to wait for a collective."""

_WORK = frozenset(
    {RankActivity.LOOP, RankActivity.UNCLEAR, RankActivity.STORAGE, RankActivity.DATA_LOADER}
)
"""Activities that may be work which takes its time, where a core is busy in a package."""
_TRANSFERS = frozenset({RankActivity.STORAGE, RankActivity.PIPE, RankActivity.UNINTERRUPTIBLE})
"""Activities in one call of the kernel, which wakes the thread for each part that it moves."""
_MOVERS = _TRANSFERS | {RankActivity.DATA_LOADER}
"""Activities that wait for bytes: in others, bytes may be those of a thread that logs."""
_OWN_MOVERS = frozenset({RankActivity.DATA_LOADER})
"""Of those, activities whose bytes the main thread moves, or a process below; a save may use other
threads."""
_BELOW = frozenset(
    {RankActivity.DATA_LOADER, RankActivity.PIPE, RankActivity.LOCK, RankActivity.STORAGE}
)
"""Activities in which a process below the rank may be the one that works, or hangs."""
_STILL = frozenset(
    {RankActivity.GONE, RankActivity.STOPPED, RankActivity.PEERS, RankActivity.INIT}
    | {RankActivity.UNKNOWN}
)
"""Activities that are no work, whatever else moves in the process."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One rank's activity, and its place."""

    activity: RankActivity
    text: str
    """To follow the rank's number in a sentence."""
    frames: tuple[str, ...] = ()
    """Innermost frames of its main thread without lines; equal where two ranks do the same."""
    may_wait: bool = False
    """True: it may be waiting for a collective in native code, which no frame shows."""
    computes: bool = False
    """True: it may be at work that ends. It compiles, or keeps a core busy inside a package, as an
    evaluation or a save does and a loop of the script does not (on a device a wait keeps a core
    busy, too); or bytes move, or a process below it works, which may spin."""
    moves: bool = False
    """True: it waits for bytes, and bytes move: for something slow, and for nothing that stands
    still."""
    busy: bool = False
    """True: it keeps a core busy, in whatever code."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Frame:
    file: str
    line: str
    function: str


_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
_KEPT_FRAMES = 100
"""faulthandler's own limit for a thread."""
_COMPARED_FRAMES = 8

_PLUMBING = re.compile(
    r"/torch/(distributed/c10d_logger|_ops|utils/_contextlib|nn/modules/module|amp/autocast_mode)"
    r"\.py$|/(contextlib|functools)\.py$"
)
"""Wrappers: the frame below them tells what is done."""
_STORED = re.compile(
    r"/torch/(serialization\.py|distributed/checkpoint/)|/holdfast/flash/"
    r"|/(shutil|ssl|http/client|tarfile|zipfile)\.py$"
    r"|-packages/(safetensors|fsspec|s3fs|gcsfs|boto3|botocore|s3transfer|google/cloud/storage"
    r"|urllib3|requests|smart_open|pyarrow|h5py|zarr|tensorstore|numpy/lib/_?npyio)"
)
_LOADS = re.compile(
    r"/torch/utils/data/|-packages/(webdataset|datasets|streaming|torchdata|grain|nvidia/dali)/"
)
_COMPILES = re.compile(
    r"/torch/_dynamo/(convert_frame|symbolic_convert|output_graph)\.py$"
    r"|/torch/_inductor/(compile_fx|async_compile|codecache|graph|scheduler)\.py$"
    r"|/torch/_inductor/(codegen|compile_worker|select_algorithm)|/triton/(compiler|backends)/"
    r"|/torch/utils/cpp_extension\.py$"
)
_ACTIVITIES = (
    (_LOADS, RankActivity.DATA_LOADER),
    (_COMPILES, RankActivity.COMPILATION),
    (_STORED, RankActivity.STORAGE),
)
"""A frame of such a file anywhere in the main thread tells the activity; the innermost counts."""
_PEERS = re.compile(
    r"/torch/(distributed/(distributed_c10d|_functional_collectives|nn/functional|rendezvous"
    r"|device_mesh)\.py$|distributed/(fsdp|_composable)/|nn/parallel/distributed\.py$)"
)
"""As the innermost frame: the rank is inside a collective, or on its way into one."""
_INIT = frozenset({"init_process_group", "new_group", "_store_based_barrier", "init_device_mesh"})
BACKWARD = "/torch/autograd/graph.py"
"""As the innermost frame: native backward code, which also waits for DDP's buckets."""
_WAITS = re.compile(
    r"/(threading|queue|selectors|subprocess|concurrent/futures/\w+|multiprocessing/\w+)\.py$"
)
_SHUTDOWN = re.compile(
    r"/threading\.py:_shutdown$|/concurrent/futures/thread\.py:_python_exit$"
    r"|/multiprocessing/util\.py:_exit_function$"
)
"""File and function by which an interpreter waits for what the ended script has left."""
_DISK = re.compile(
    r"^_*(nfs|rpc_wait|fuse|request_wait_answer|ceph|ll_|cl_|ptlrpc|io_schedule|folio_wait"
    r"|wait_on_page|blk_|jbd2|xfs|ext4|btrfs|cifs|smb|gpfs|beegfs|netfs)"
)
"""Kernel functions of file systems and block devices."""
_PIPE = re.compile(r"^(fifo_open|wait_for_partner|(anon_)?pipe_(read|write|wait\w*))$")
_FUTEX = re.compile(r"^futex_")
_FILE_LOCK = re.compile(r"^(__)?(flock|locks_|posix_lock|fcntl_setlk)")
_SLEEP = re.compile(r"nanosleep")
_HOST_BACKENDS = frozenset({"gloo", "mpi", "ucc"})
_HEADS = ("Thread ", "Current thread ")
_LIBRARY = re.compile(r"-packages/|/lib/python3|^<frozen |/holdfast_agent/|/holdfast/flash/")
"""Files that are not the user's."""
_PACKAGE = re.compile(r"-packages/|/torch/")
"""Files of installed packages: a script that only waits polls by the standard library."""
_KERNEL_NAMED = frozenset(
    {RankActivity.UNINTERRUPTIBLE, RankActivity.STORAGE, RankActivity.PIPE, RankActivity.UNCLEAR}
)
"""Activities in whose text the kernel function helps a person."""
_HOLDS_GIL = "holds the GIL"
"""In the head of a thread whose stack was read from the memory."""
_MOST_THREADS = 4
"""Threads that a sentence names."""
_MOST_PATH = 200
"""Characters of a path or a name in a text."""
_BUSY = 0.5
"""Share of a core from which a process computes; one that waits needs next to nothing."""
_STARVED = 0.02
"""Share of a core; a process that is runnable and gets less says nothing about the GIL."""


MOVED_BYTES = 16 * 1024
"""In a second: slow storage moves more, and a library that polls moves less."""
WAKES = 3
"""In a second: a call of the kernel that moves nothing sleeps once."""


def uses_device(operation: str) -> bool:
    """Whether a collective, such as nccl:all_reduce, works on a device beside the CPU."""
    return operation.partition(":")[0] not in _HOST_BACKENDS


def observe(evidence: RankEvidence, *, on_device: bool) -> Observation:
    """Return the rank's activity, from its own evidence.

    on_device: collectives of its world work on a device. Then a rank that waits for the device
    looks like a loop or a lock.
    """
    frames = _main_thread(evidence.stack)
    inner = _inner(frames)
    activity = (
        _by_process(evidence)
        or _by_gil(evidence)
        or _by_frames(frames, inner, evidence.kernel_function)
        or _by_kernel(evidence, inner, on_device)
    )
    return Observation(
        activity=activity,
        text=_text(activity, evidence, frames),
        frames=tuple([f"{frame.file}:{frame.function}" for frame in frames[:_COMPARED_FRAMES]]),
        may_wait=not on_device
        and activity in {RankActivity.LOCK, RankActivity.UNCLEAR}
        and _may_wait(evidence, inner),
        computes=activity is RankActivity.COMPILATION
        or (not on_device and _computes(activity, evidence))
        or (activity not in _STILL and _works_elsewhere(activity, evidence)),
        moves=activity not in _STILL and _moves(activity, evidence),
        busy=activity not in _STILL and not on_device and _is_busy(evidence),
    )


def _computes(activity: RankActivity, evidence: RankEvidence) -> bool:
    """Whether a core is busy by work: in a package, or in one call that holds the GIL."""
    if activity is RankActivity.NATIVE_GIL:
        return _is_busy(evidence)
    return activity in _WORK and _is_busy_in_package(evidence)


def _moves(activity: RankActivity, evidence: RankEvidence) -> bool:
    """Whether what the rank waits for makes progress."""
    seconds = evidence.observed_seconds
    if seconds <= 0:
        return False
    if activity in _TRANSFERS and evidence.wakes >= WAKES * seconds:
        return True
    beside = evidence.moved_beside_bytes if activity in _OWN_MOVERS else 0
    return activity in _MOVERS and evidence.moved_bytes - beside >= MOVED_BYTES * seconds


def _works_elsewhere(activity: RankActivity, evidence: RankEvidence) -> bool:
    """Whether something in its process or below works, perhaps not what it waits for."""
    seconds = evidence.observed_seconds
    if seconds <= 0:
        return False
    below = activity in _BELOW and evidence.children_cpu_seconds >= _BUSY * seconds
    return below or evidence.moved_bytes >= MOVED_BYTES * seconds


def _by_process(evidence: RankEvidence) -> RankActivity | None:
    """The activity that the state of the process alone tells."""
    state = evidence.process_state
    if state in {"", "Z", "X"}:
        return RankActivity.GONE
    if state in {"T", "t"}:
        return RankActivity.STOPPED
    return RankActivity.UNINTERRUPTIBLE if state == "D" else None


def _by_gil(evidence: RankEvidence) -> RankActivity | None:
    """The server answers without the GIL, the dump needs it: together they are the verdict."""
    if not evidence.server_answered or evidence.gil_free:
        return None
    starved = evidence.cpu_seconds < _STARVED * evidence.observed_seconds
    return None if evidence.process_state == "R" and starved else RankActivity.NATIVE_GIL


def _by_frames(
    frames: tuple[_Frame, ...], inner: _Frame | None, kernel: str
) -> RankActivity | None:
    """The activity that a library's frame or a file system's function tells."""
    if inner is not None and _PEERS.search(inner.file):
        initializes = any(frame.function in _INIT for frame in frames)
        return RankActivity.INIT if initializes else RankActivity.PEERS
    if any(_SHUTDOWN.search(f"{frame.file}:{frame.function}") for frame in frames):
        return RankActivity.OVER
    if _DISK.search(kernel):
        return RankActivity.STORAGE
    pipe = RankActivity.PIPE if _PIPE.search(kernel) else None
    for frame in frames:
        for pattern, activity in _ACTIVITIES:
            if pattern.search(frame.file):
                return (pipe or activity) if activity is RankActivity.STORAGE else activity
    if inner is not None and _WAITS.search(inner.file):
        return RankActivity.LOCK
    return pipe


def _by_kernel(evidence: RankEvidence, inner: _Frame | None, on_device: bool) -> RankActivity:  # noqa: FBT001 - private
    """The activity where no library's file tells it."""
    if inner is None:
        known = evidence.server_answered or evidence.stack
        return RankActivity.UNCLEAR if known else RankActivity.UNKNOWN
    if inner.file.endswith(BACKWARD) or on_device:
        return RankActivity.UNCLEAR
    if evidence.process_state == "R":
        return RankActivity.LOOP
    kernel = evidence.kernel_function
    is_lock = _FUTEX.search(kernel) or _FILE_LOCK.search(kernel)
    return RankActivity.LOCK if is_lock else RankActivity.UNCLEAR


def _may_wait(evidence: RankEvidence, inner: _Frame | None) -> bool:
    """Whether it may wait for a collective by a call that leaves no frame (`Work.wait`)."""
    if inner is None or _WAITS.search(inner.file):
        return False
    return inner.file.endswith(BACKWARD) or bool(_FUTEX.search(evidence.kernel_function))


def _is_busy(evidence: RankEvidence) -> bool:
    return evidence.cpu_seconds >= _BUSY * evidence.observed_seconds > 0


def _is_busy_in_package(evidence: RankEvidence) -> bool:
    """Whether it keeps a core busy, in a package's code at any of the dumps."""
    if not _is_busy(evidence):
        return False
    found = (_inner(_main_thread(text)) for text in (evidence.stack, *evidence.later_stacks))
    return any(frame is not None and _PACKAGE.search(frame.file) for frame in found)


def _inner(frames: tuple[_Frame, ...]) -> _Frame | None:
    """The innermost frame that tells what is done."""
    return next((frame for frame in frames if not _PLUMBING.search(frame.file)), None)


def _main_thread(stack: str) -> tuple[_Frame, ...]:
    """The frames of the main thread, innermost first; none where the dump lacks them.

    faulthandler writes the newest thread first and the main thread last, and "..." for the rest
    of more than a hundred threads.
    """
    if stack.rstrip().endswith("\n..."):
        return ()
    *_, main = _threads(stack) or [("", ())]
    return main[1]


def _threads(stack: str) -> list[tuple[str, tuple[_Frame, ...]]]:
    """Return head and frames of each thread, as they stand in the dump."""
    found: list[tuple[str, list[_Frame]]] = []
    for line in stack.splitlines():
        frame = _FRAME.match(line)
        if line.startswith(_HEADS) or (frame and not found):
            found.append((line, []))
        if frame:
            found[-1][1].append(_Frame(*frame.group("file", "line", "function")))
    return [(head, tuple(frames[:_KEPT_FRAMES])) for head, frames in found]


def _text(activity: RankActivity, evidence: RankEvidence, frames: tuple[_Frame, ...]) -> str:
    words = activity.value
    if activity is RankActivity.UNCLEAR:
        words = _unclear(evidence, frames)
    kernel = evidence.kernel_function
    named = f" (kernel: {kernel})" if kernel and activity in _KERNEL_NAMED else ""
    if activity is RankActivity.OVER:
        others = [frames for _, frames in _threads(evidence.stack)[:-1] if frames]
        left = [_at(frames) for frames in others if _is_scripts(frames)] or [*map(_at, others)]
        return words + "".join(f", with a thread{one.lstrip(',')}" for one in left[:_MOST_THREADS])
    if activity is RankActivity.NATIVE_GIL:
        holders = [frames for head, frames in _threads(evidence.stack) if _HOLDS_GIL in head]
        frames = next(iter(holders), frames)
    below = _below(evidence.children) if activity in _BELOW else ""
    return words + named + _at(frames) + below


def _at(frames: tuple[_Frame, ...]) -> str:
    """The place in the script, or else the innermost one, for a sentence."""
    script = next((frame for frame in frames if not _LIBRARY.search(frame.file)), None)
    frame = script or next(iter(frames), None)
    if frame is None:
        return ""
    return f", at {frame.file[-_MOST_PATH:]}:{frame.line} in {frame.function[:_MOST_PATH]}"


def _is_scripts(frames: tuple[_Frame, ...]) -> bool:
    """Whether a thread runs code of the script."""
    return any(not _LIBRARY.search(frame.file) for frame in frames)


def _below(children: Sequence[ChildEvidence]) -> str:
    """Return the activity of the process below the rank that did least."""
    for child in children[:1]:
        kernel = f", kernel: {child.kernel_function}" if child.kernel_function else ""
        at = _at(_main_thread(child.stack))
        state = f"is in state {child.state}{kernel}{at}"
        return f"; below it process {child.pid} ({child.command}) {state}"
    return ""


def _unclear(evidence: RankEvidence, frames: tuple[_Frame, ...]) -> str:
    if frames and frames[0].file.endswith(BACKWARD):
        return "runs backward"
    if _SLEEP.search(evidence.kernel_function):
        return "sleeps"
    return "runs" if evidence.process_state == "R" else RankActivity.UNCLEAR.value
