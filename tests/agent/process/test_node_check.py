"""Node check: real measurements in real child processes, with their faults."""

from __future__ import annotations

import itertools
import os
import resource as process_resources
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from holdfast_agent.health.node_check import link, storage
from holdfast_agent.health.node_check.measured import REPORTS, FigureReporter, Task
from holdfast_agent.health.node_check.process import Interrupt, KeptProcess
from holdfast_agent.health.node_check.runner import (
    CheckResult,
    alone_tasks,
    join_task,
    run,
    serve_task,
)
from holdfast_agent.policies.node_check import Reading
from holdfast_wire import datagrams, loopback
from holdfast_wire.identity import Identity
from holdfast_wire.resources import Resource
from house import forks
from house.patience import patience
from house.repository import ROOT
from messages.certificates import issue

pytestmark = pytest.mark.slow  # measurements and their limits take seconds

MEMORY = Task(name="memory", resources=(Resource.MEMORY_BANDWIDTH,), seconds=60)
SHM = Task(name="shm", resources=(Resource.SHM_ROOM, Resource.SHM_WRITE), seconds=60)
_NTP = struct.Struct("!BBBb11I")
_TO_UNIX = 2_208_988_800


def disk(folder: Path) -> Task:
    """The task of a folder."""
    resources = (Resource.DISK_ROOM, Resource.DISK_WRITE, Resource.DISK_READ)
    return Task(name="disk", resources=resources, seconds=60, arguments={"folder": str(folder)})


def clock(server: str, seconds: float = 60.0) -> Task:
    """The task of a reference clock."""
    arguments = {"server": server}
    resources = (Resource.CLOCK_OFFSET,)
    return Task(name="clock", resources=resources, seconds=seconds, arguments=arguments)


def by_resource(result: CheckResult) -> dict[Resource, Reading]:
    """Figures by resource; each has one."""
    found = {one.resource: one for one in result.figures}
    assert len(found) == len(result.figures)
    return found


@contextmanager
def ntp_server(answer: Callable[[bytes], Sequence[bytes]]) -> Iterator[str]:
    """A server of NTP's port in this process; `answer` returns the answers to a request."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((loopback.IPV4, 0))
        server.settimeout(0.05)
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                try:
                    request, sender = server.recvfrom(1024)
                except TimeoutError:
                    continue
                for each in answer(request):
                    server.sendto(each, sender)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"{loopback.IPV4}:{server.getsockname()[1]}"
        finally:
            over.set()
            thread.join()


def _stamped(request: bytes, late: float, *, of: bytes | None = None) -> bytes:
    """An answer of a clock that is `late` seconds before ours."""
    sent = _NTP.unpack(of or request)[13:15]
    now = time.time() - late
    stamp = (int(now) + _TO_UNIX, int(now % 1 * (1 << 32)))
    return _NTP.pack(0x24, 1, 0, 0, *([0] * 5), *sent, *stamp, *stamp)


# -------------------------------------------------------------------------------- measurements


def test_memory_disk_and_shared_memory_are_measured_without_torch(tmp_path: Path) -> None:
    """Each figure is there, nothing is left in the folders, and the memory is bounded."""
    result = run([MEMORY, SHM, disk(tmp_path)])
    found = by_resource(result)
    assert {one.error + one.skipped for one in found.values()} == {""}
    assert all(one.value is not None and one.value > 0 for one in found.values())
    assert set(found) == {*MEMORY.resources, *SHM.resources, *disk(tmp_path).resources}
    assert list(tmp_path.iterdir()) == []
    assert list(storage.SHM.glob(".holdfast-check-*")) == []
    assert result.peak_bytes < 512 << 20
    assert " x " in result.kind


def test_a_write_of_shared_memory_that_is_disturbed_once_is_no_slow_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever else runs on the node for a moment takes a CPU from one of three writes."""
    write, count = os.pwrite, itertools.count()

    def slow_at_first(descriptor: int, data: bytes, at: int) -> int:
        if next(count) == 0:
            time.sleep(0.5)
        return write(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", slow_at_first)
    ours, theirs = datagrams.pair()
    with ours, theirs:
        storage.measure_shm(FigureReporter(ours))
        reports = [datagrams.decode(datagrams.receive(theirs)[0], REPORTS) for _ in range(4)]
    (rate,) = (
        one.value
        for one in reports
        if isinstance(one, Reading) and one.resource is Resource.SHM_WRITE
    )
    assert rate is not None
    assert rate > 2 * (4 << 20) / 0.5 / 1e9, reports


def test_a_folder_without_room_is_a_fault_with_its_reason(tmp_path: Path) -> None:
    """The kernel's own refusal (a limit on file sizes) names the write; room is measured."""
    before = process_resources.getrlimit(process_resources.RLIMIT_FSIZE)
    process_resources.setrlimit(process_resources.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        found = by_resource(run([disk(tmp_path)]))
    finally:
        process_resources.setrlimit(process_resources.RLIMIT_FSIZE, before)
    assert found[Resource.DISK_ROOM].value
    assert "ended after 65536" in found[Resource.DISK_WRITE].error


def test_a_folder_that_is_gone_is_a_fault(tmp_path: Path) -> None:
    """As when a volume is not mounted."""
    found = by_resource(run([disk(tmp_path / "gone")]))
    assert "No such file" in found[Resource.DISK_ROOM].error
    assert "No such file" in found[Resource.DISK_WRITE].error


@pytest.mark.parametrize("late", [0.0, 5.0, -5.0])
def test_the_offset_of_the_clock_is_measured(late: float) -> None:
    """Without its sign."""
    with ntp_server(lambda request: [_stamped(request, late)]) as server:
        found = by_resource(run([clock(server)]))[Resource.CLOCK_OFFSET]
    assert found.value == pytest.approx(abs(late), abs=0.3)
    assert found.subject == server


def test_an_answer_to_another_request_is_no_time() -> None:
    """A late or forged answer does not repeat the time of the request."""
    forged = [b"short", _stamped(b"", 100.0, of=bytes(_NTP.size))]
    with ntp_server(lambda _: forged) as server:
        found = by_resource(run([clock(server)]))[Resource.CLOCK_OFFSET]
    assert found.value is None
    assert "no answer in 4 s" in found.error


# ---------------------------------------------------------------------------- hangs and crashes


def _children() -> list[psutil.Process]:
    """Return the children of this process but those that stay for the whole run."""
    return [one for one in psutil.Process().children() if one.pid not in forks.kept()]


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (signal.SIGSTOP, "no result in 2 s: it hangs"),
        (signal.SIGKILL, "its process ended by signal 9"),
    ],
)
def test_a_measurement_that_hangs_or_dies_is_named_and_the_next_ones_are_made(
    sent: signal.Signals, error: str
) -> None:
    """The resource that was being measured is the result; another child goes on."""
    struck = threading.Event()

    def answer(_: bytes) -> Sequence[bytes]:
        if not struck.is_set():
            struck.set()
            for child in _children():
                os.kill(child.pid, sent)
        return ()

    with ntp_server(answer) as server:
        result = run([SHM, clock(server, seconds=2.0), MEMORY])
    found = by_resource(result)
    assert found[Resource.CLOCK_OFFSET].error == error
    assert found[Resource.SHM_WRITE].value
    assert found[Resource.MEMORY_BANDWIDTH].value
    assert not _children()


def test_a_kept_process_measures_again_and_its_death_is_no_figure() -> None:
    """Two runs have one process; a third one has another, and blames nobody for the first's end."""
    with closing(Interrupt()) as stop:
        kept, pids = KeptProcess(), list[set[int]]()
        for _ in range(3):
            found = by_resource(run([SHM], interrupt=stop, kept=kept))
            assert not found[Resource.SHM_WRITE].error
            pids.append(set(stop.pids))
            if len(pids) == 2:
                (pid,) = stop.pids
                os.kill(pid, signal.SIGKILL)
                psutil.Process(pid).wait(10)
        kept.drop()
        assert not stop.pids
    assert pids[0] == pids[1] != pids[2]
    assert not any(map(psutil.pid_exists, pids[0] | pids[2]))


@pytest.mark.parametrize("interrupted", [False, True])
def test_what_does_not_fit_into_the_time_is_left_out(interrupted: bool) -> None:  # noqa: FBT001 - a case
    """At the end of the whole time, or at once when somebody says so: it is nobody's fault."""
    stop = Interrupt()

    def answer(_: bytes) -> Sequence[bytes]:
        for child in _children():
            child.suspend()
        if interrupted:
            stop.set()
        return ()

    with ntp_server(answer) as server:
        tasks = [SHM, clock(server, seconds=600.0), MEMORY]
        seconds = 600.0 if interrupted else 8.0
        result = run(tasks, seconds=seconds, interrupt=stop)
    assert {one.resource for one in result.figures} <= {*SHM.resources}
    assert not any(one.error for one in result.figures)
    assert not stop.pids
    assert not _children()
    stop.close()


def test_a_child_ends_with_the_process_that_started_it() -> None:
    """A killed agent leaves no measurement behind."""
    held = threading.Event()

    def answer(_: bytes) -> Sequence[bytes]:
        held.set()
        return ()

    with ntp_server(answer) as server:
        script = (
            "from holdfast_agent.health.node_check.runner import alone_tasks, run\n"
            f"run([task for task in alone_tasks(ntp={server!r}) if task.name == 'clock'])"
        )
        owner = subprocess.Popen([sys.executable, "-c", script])
        try:
            assert held.wait(60)
            (child,) = psutil.Process(owner.pid).children()
        finally:
            owner.kill()
            owner.wait(30)
        psutil.wait_procs([child], timeout=30)
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_without_torch_the_rest_is_measured_and_the_check_says_so(tmp_path: Path) -> None:
    """A real interpreter that has no torch; a figure that takes 10 s counts as a hang."""
    venv.create(tmp_path / "bare", with_pip=False)
    path = os.pathsep.join(str(ROOT / part) for part in ("worker_agent", "proto"))
    command = [str(tmp_path / "bare/bin/python"), "-m", "holdfast_agent.health.node_check.main"]

    def check() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env={"PYTHONPATH": path},
            check=False,
            capture_output=True,
            text=True,
            timeout=110 * patience(),
        )

    done = check()
    for _ in range(2):
        if done.returncode:
            done = check()
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.count("torch is not installed in this Python") == 3
    assert '"healthy": true' in done.stdout
    assert done.stdout.count('"verdict": "no reference"') >= 4


# --------------------------------------------------------------------------------------- links


def agent(directory: Path, rank: int, job: str = "6f1e") -> str:
    """The directory of an agent's certificates."""
    return str(issue(directory, Identity(job, "agent", rank)))


def settings(tls_dir: str = "", **changes: float) -> link.LinkSettings:
    """Short directions, and a deadline that a busy machine keeps."""
    uid = "6f1e" if tls_dir else ""
    return link.LinkSettings(
        tls_dir=tls_dir, job_uid=uid, **({"seconds": 0.2, "deadline_seconds": 30.0} | changes)
    )


@contextmanager
def serving(own: link.LinkSettings) -> Iterator[tuple[int, list[object]]]:
    """A node that serves one partner; its figures, or its error."""
    results = list[object]()
    with link.listen(loopback.IPV4) as listener:

        def serve() -> None:
            try:
                with link.serve(listener, own) as (_, measure):
                    results.append(measure())
            except OSError as error:
                results.append(error)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1], results
        finally:
            thread.join()


def test_both_nodes_of_a_pair_know_the_link_after_mutual_tls(tmp_path: Path) -> None:
    """Latency and both directions, with the job's certificates."""
    with serving(settings(agent(tmp_path, 0))) as (port, results):
        own = settings(agent(tmp_path, 1))
        with link.join(loopback.IPV4, port, own) as (_, measure):
            joined = measure()
    (served,) = results
    assert isinstance(served, link.LinkFigures)
    assert min(served.up_bytes, served.down_bytes, served.latency_us) > 0
    assert served == joined


def test_a_partner_of_another_job_is_refused(tmp_path: Path) -> None:
    """Its certificate is of another authority: neither end measures with it."""
    with serving(settings(agent(tmp_path, 0), deadline_seconds=3.0)) as (port, results):
        stranger = settings(agent(tmp_path, 1, job="beef"))
        with (
            pytest.raises(link.LinkCheckError, match="TLS handshake failed"),
            link.join(loopback.IPV4, port, stranger),
        ):
            pass
    assert "did not connect in 3 s; cut off 1" in str(results[0])


def _is_cut_off(connection: socket.socket) -> bool:
    """Read to the end that the other side makes, with or without an alert of TLS before it."""
    connection.settimeout(30)
    with suppress(ConnectionResetError):
        while connection.recv(1024):
            pass
    return True


def test_a_connection_without_certificate_is_cut_off(tmp_path: Path) -> None:
    """The partner is waited for and measured all the same."""
    with serving(settings(agent(tmp_path, 0))) as (port, results):
        with socket.create_connection((loopback.IPV4, port), 10) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert _is_cut_off(stranger)
        own = settings(agent(tmp_path, 1))
        with link.join(loopback.IPV4, port, own) as (_, measure):
            measure()
    assert isinstance(results[0], link.LinkFigures)


def test_a_stream_without_the_token_is_cut_off() -> None:
    """The streams are plain: only the partner knows what they begin with."""
    with (
        serving(settings(deadline_seconds=10.0)) as (port, results),
        socket.create_connection((loopback.IPV4, port), 10) as control,
    ):
        talk = link.Conversation(control, 10.0)
        assert len(str(talk.receive()["token"])) == 64
        with socket.create_connection((loopback.IPV4, port), 10) as stranger:
            stranger.sendall(bytes(33))
            assert _is_cut_off(stranger)
    assert "streams did not come in time" in str(results[0])


def test_a_partner_that_does_not_come_is_named_after_the_deadline() -> None:
    """Both roles have a deadline."""
    with serving(settings(deadline_seconds=0.5)) as (_, results):
        pass
    assert "the partner did not connect in 0.5 s" in str(results[0])
    with link.listen(loopback.IPV4) as listener:
        port = listener.getsockname()[1]
    with (
        pytest.raises(link.LinkCheckError, match=f"no connection to 127.0.0.1:{port}"),
        link.join(loopback.IPV4, port, settings()),
    ):
        pass


def test_missing_certificates_name_their_directory(tmp_path: Path) -> None:
    """The error says what the directory must have."""
    own = settings(str(tmp_path / "none"), deadline_seconds=5.0)
    with serving(own) as (port, results), socket.create_connection((loopback.IPV4, port), 10):
        pass
    assert f"{str(tmp_path / 'none')!r} cannot be used" in str(results[0])
    assert "must have ca.pem, cert.pem and key.pem" in str(results[0])


# --------------------------------------------------------------------------------------- torch


@pytest.mark.train
def test_a_whole_check_measures_every_resource_of_a_node(tmp_path: Path) -> None:
    """Torch's part too; a node without CUDA lacks no device."""
    alone = alone_tasks(storage=str(tmp_path))
    tasks = [replace(task, seconds=100.0) for task in alone if task.name != "cuda"]
    result = run(tasks)
    found = by_resource(result)
    assert {one.error + one.skipped for one in found.values()} == {""}
    assert set(found) == {one for task in tasks for one in task.resources}
    assert result.peak_bytes < 2 << 30


@pytest.mark.extended(
    "two whole agents measure the same link, with the same figures",
    held_by=["agent/process/test_check_orders.py::test_two_nodes_measure_what_lies_between_them"],
)
@pytest.mark.train
def test_two_nodes_reduce_over_gloo_after_the_link(tmp_path: Path) -> None:
    """Two children of two agents: TCP, then gloo, each reported by both."""
    first, second = (settings(agent(tmp_path, at), deadline_seconds=90.0) for at in (0, 1))
    with link.listen(loopback.IPV4) as listener, ThreadPoolExecutor(2) as threads:
        port = listener.getsockname()[1]
        served = threads.submit(run, [serve_task(first)], [listener.fileno()])
        joined = threads.submit(run, [join_task(loopback.IPV4, port, second)])
        for result in (served.result(), joined.result()):
            found = by_resource(result)
            assert {one.error + one.skipped for one in found.values()} == {""}
            wanted = {Resource.LINK_BANDWIDTH, Resource.LINK_LATENCY, Resource.ALLREDUCE}
            assert set(found) == wanted


@pytest.mark.train
def test_each_cuda_device_is_measured() -> None:
    """Products, memory, copies both ways and free memory, in the order of what is possible."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device on this machine")
    (task,) = [task for task in alone_tasks() if task.name == "cuda"]
    result = run([task])
    print(*result.figures, result.kind, f"{result.seconds:.1f} s", sep="\n")
    devices = {f"cuda:{at}" for at in range(torch.cuda.device_count())}
    assert {one.subject for one in result.figures} == devices
    assert {one.error + one.skipped for one in result.figures} == {""}
    assert torch.cuda.get_device_name(0) in result.kind
    for one in result.figures:
        assert one.value is not None
        assert one.value > 0
    assert len(result.figures) == 5 * len(devices)
