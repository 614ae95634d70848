"""The master as a process: its start, its refusals, its end, what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agents.scripted_agent import ScriptedAgent
from holdfast_master.journal.segments import read_segments
from holdfast_wire import messages as wire
from masters.master_process import SPEC, START_SECONDS, MasterProcess, master_process, refused
from masters.worlds import events, phase, world


def test_the_endpoint_file_is_private_and_true(tmp_path: Path) -> None:
    """It names host, port, pid and epoch, 0600, and nothing half-written is left beside it."""
    with master_process(tmp_path, epoch=3) as master:
        path = tmp_path / "endpoint-3"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        pid = master.process.pid
        expected = {"host": "127.0.0.1", "port": master.port, "pid": pid, "epoch": 3}
        assert json.loads(path.read_text()) == expected
        assert not list(tmp_path.glob(".endpoint*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_master_and_leaves_the_agents_training(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Exit code 0; nobody is told to leave; the journal is whole."""
    with world(tmp_path) as (master, agents):
        assert master.stop(number) == 0
        assert [agent.left for agent in agents] == [None, None]
    (segment,) = read_segments(tmp_path / "journal")
    assert segment.broken == ""
    assert len(segment.records) > 5


def test_a_port_in_use_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Two masters never share a port, also where both ask for that."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, text = refused(tmp_path, port=port)
    assert code == 2
    assert f"127.0.0.1:{port}" in text
    assert "name a free port, or 0 for any" in text


def test_a_second_master_cannot_share_the_firsts_port(tmp_path: Path) -> None:
    """A zombie that holds the port keeps its successor from serving there, visibly."""
    with master_process(tmp_path, epoch=1) as first:
        code, text = refused(tmp_path, epoch=2, port=first.port)
    assert code == 2
    assert "cannot be listened on" in text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epoch": 0}, "epoch is 0; it must be at least 1"),
        ({"jurnal_dir": "/x"}, "did you mean journal_dir?"),
        ({"tls_dir": "/nowhere"}, "certificate file /nowhere/ca.pem cannot be read"),
        ({"log_file": "/nowhere/log"}, "log_file is /nowhere/log, which cannot be opened"),
        ({"journal_dir": "/dev/null"}, "journal /dev/null cannot be read"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_used_is_said_before_anything_starts(
    tmp_path: Path, settings: dict[str, object], words: str
) -> None:
    """Exit code 2 and one sentence."""
    code, text = refused(tmp_path, **settings)
    assert code == 2
    assert words in text
    assert "Traceback" not in text


def test_a_zombie_that_hears_of_a_newer_epoch_stops_acting(tmp_path: Path) -> None:
    """An agent that has accepted a newer master makes the old one exit with 3."""
    with (
        master_process(tmp_path, initial_spec=SPEC) as master,
        contextlib.closing(ScriptedAgent(tmp_path, master.port, 0)) as agent,
    ):
        agent.wait_for(lambda: agent.connections)
        agent.fence = wire.Fence(epoch=2, incarnation="newer")
        agent.send(wire.Heartbeat())
        assert master.process.wait(timeout=START_SECONDS) == 3
        assert agent.left is None
        assert master.lines("stepping down: a master of epoch 2 exists")


def test_the_master_dies_with_its_parent_where_it_was_told_to(tmp_path: Path) -> None:
    """SIGKILL of the runner leaves no master behind; the port is free again."""
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from masters.master_process import MasterProcess\n"
        "master = MasterProcess(Path(sys.argv[2]))\n"
        "master.wait_serving(); print(master.process.pid, flush=True); time.sleep(60)\n"
    )
    support = str(Path(__file__).parents[2] / "support")
    runner = subprocess.Popen(
        [sys.executable, "-c", script, support, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert runner.stdout is not None
    with runner.stdout:
        pid = int(runner.stdout.readline())
    # The descriptor outlives the number, which another process may get.
    watch = os.pidfd_open(pid)
    try:
        runner.kill()
        runner.wait(timeout=10)
        assert select.select([watch], [], [], 10)[0], "the master outlived its parent"
    finally:
        os.close(watch)


def test_a_master_whose_parent_has_gone_already_does_not_begin(tmp_path: Path) -> None:
    """The runner was killed while Python was starting: its number is not the parent's any more."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    master = MasterProcess(tmp_path, parent_pid=gone.pid)
    try:
        assert master.process.wait(timeout=START_SECONDS) == 0
        assert not (tmp_path / "endpoint-1").exists()
    finally:
        master.end()


def test_no_torch_in_a_master(tmp_path: Path) -> None:
    """Neither its modules nor its memory know torch."""
    with master_process(tmp_path, initial_spec=SPEC) as master:
        maps = Path(f"/proc/{master.process.pid}/maps").read_text()
        assert "torch" not in maps
        assert "numpy" not in maps
    code = (
        "import sys, holdfast_master.process.serving, holdfast_master.main\n"
        "sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-I", "-c", code], check=True, timeout=60)


def test_too_few_open_files_are_raised_or_said(tmp_path: Path) -> None:
    """The soft limit becomes the hard one; where that is too low for the job, the log says so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
    try:
        with master_process(tmp_path, initial_spec=SPEC | {"max_replicas": hard}) as master:
            limits = resource.prlimit(master.process.pid, resource.RLIMIT_NOFILE)
            assert limits == (hard, hard)
            (line,) = master.wait_for(lambda: master.lines("limit of open files is lower"))
            assert line["needed"] > line["limit"] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_log_goes_to_a_private_file_where_one_is_named(tmp_path: Path) -> None:
    """Nothing is left on standard error, and debug lines are there when asked for."""
    log = tmp_path / "master.jsonl"
    with master_process(tmp_path, log_file=str(log), log_level="debug") as master:
        assert master.stop() == 0
        assert master.text() == ""
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert "serving" in [line["message"] for line in lines]
    assert {"debug"} <= {line["level"] for line in lines}


def test_a_peer_in_the_wrong_role_is_named_in_an_event(tmp_path: Path) -> None:
    """People see who tried what."""
    with master_process(tmp_path, initial_spec=SPEC) as master:
        with pytest.raises(Exception, match="role 'agent' may not call"):
            master.ask("Scale", wire.ScaleRequest(replicas=1), role="agent")
        (event,) = [event for event in events(master) if event.reason == "PeerRefused"]
        assert event.text.startswith("agent: role 'agent' may not call")


def test_the_master_exits_when_the_job_has_ended_and_was_shown(tmp_path: Path) -> None:
    """Success reaches the agents, then the linger, then exit code 0."""
    with world(tmp_path, exit_when_finished=1.0) as (master, agents):
        for agent in agents:
            agent.send(wire.WorkerExited(rank=agent.rank, exit_code=0))
        for agent in agents:
            agent.wait_for(lambda agent=agent: agent.left)
        # Its agents have been told; their goodbyes may be on the way.
        master.wait_for(lambda: phase(master) is wire.JobPhase.SUCCEEDED)
        assert master.process.wait(timeout=START_SECONDS) == 0


def test_standard_error_is_given_back_at_the_end(tmp_path: Path) -> None:
    """A fatal error of the interpreter still reaches it: nothing is swallowed."""
    with master_process(tmp_path) as master:
        assert master.stop(signal.SIGABRT) == -signal.SIGABRT
        assert "Fatal Python error: Aborted" in master.text()


_HELD_UP = """
import sys, time
from holdfast_master import main
from holdfast_master.process import os_process

def held_up():
    print("starts", flush=True)
    time.sleep(60)

os_process.spread_large_blocks = held_up  # before its event loop, which takes signals over
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_master_that_only_starts_hears_signals_too(
    tmp_path: Path, number: signal.Signals
) -> None:
    """As the first process of a pod it would not hear them without a handler of its own."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"job_name": "job", "job_uid": "j1", "epoch": 1, "tls_dir": "/t"}))
    words = [sys.executable, "-c", _HELD_UP, "--config", str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "starts\n"
            process.send_signal(number)
            assert process.wait(timeout=START_SECONDS) == 0
        finally:
            process.kill()
