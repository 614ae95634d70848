"""holdfast-run without a master: a run of one node with a real master of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from agents.agent_process import AgentProcess, StartAgent, is_alive, wait_gone
from cluster.rights import needs_pods
from house.extended import usual
from house.patience import patience

pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]
OTHERS = pytest.mark.extended(
    "other values of the same test",
    held_by=[
        "agent/process/test_standalone.py::test_a_script_that_always_fails_is_started_as_often_as_by_torchrun",
        "agent/process/test_standalone.py::test_a_signal_ends_the_run_and_everything",
        "agent/process/test_standalone.py::test_a_run_needs_neither_its_hosts_name_nor_ipv4",
        "agent/process/test_standalone.py::test_a_shell_that_keeps_the_containers_sigterm_is_told",
    ],
)

MAIN = [sys.executable, "-c", "from holdfast_agent.main import main; main()"]

TRAIN = """
import os, sys, time
import torch.distributed as dist
import holdfast
dist.init_process_group("gloo")
job = holdfast.init()
def say(*words):  # one write: lines of two ranks must not mix
    os.write(1, " ".join(map(str, (*words, ";\\n"))).encode())
say("start", os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"], os.getpid())
for n in range(1, int(sys.argv[1])):
    time.sleep(0.02)
    if len(sys.argv) > 2 and n == int(sys.argv[2]) and dist.get_rank() == 1:
        raise ValueError("bad luck")
    if job.step(n) is holdfast.SAVE_AND_STOP:
        break
say("end")
"""


@pytest.fixture
def start(start_alone: StartAgent, tmp_path: Path) -> StartAgent:
    """Start a standalone agent, beside the script."""
    (tmp_path / "train.py").write_text(TRAIN)
    return start_alone


@pytest.fixture
def running(start: StartAgent) -> StartAgent:
    """Start a run of so many steps; both of its ranks have started."""

    def begin(steps: str, **options: bool) -> AgentProcess:
        agent = start("--nproc-per-node=2", "train.py", steps, **options)
        agent.until(lambda: agent.output().count("start") == 2)
        return agent

    return begin


def _workers(agent: AgentProcess) -> list[psutil.Process]:
    """Return the processes of the newest start of both ranks."""
    lines = [line.split() for line in agent.output().splitlines() if line.startswith("start")]
    return [psutil.Process(int(words[3])) for words in lines[-2:]]


def _master(agent: AgentProcess) -> psutil.Process:
    return next(p for p in agent.family() if "holdfast_master.main" in " ".join(p.cmdline()))


def test_a_run_ends_with_0_and_leaves_nothing(start: StartAgent, tmp_path: Path) -> None:
    """Success is exit code 0, with no process, no temporary file and not a word."""
    agent = start("--nproc-per-node=2", "train.py", "10", forked=False)
    assert agent.wait(120) == 0
    assert agent.output().count("end") == 2
    assert agent.errors() == ""
    assert list((tmp_path / "tmp").glob("holdfast*")) == []


def test_an_agent_started_with_closed_streams_opens_none_of_its_own_there(tmp_path: Path) -> None:
    """The script's streams lead to /dev/null and not into a socket."""
    script, seen = tmp_path / "look.py", tmp_path / "seen"
    script.write_text(
        "import os, sys\nprint('lost', flush=True)\n"
        f"open({str(seen)!r}, 'w').write(' '.join(os.readlink(f'/proc/self/fd/{{n}}') "
        "for n in range(3)))\n"
    )
    closed = 'exec "$@" <&- >&- 2>&-'
    command = ["/bin/sh", "-c", closed, "sh", *MAIN, str(script)]
    subprocess.run(command, check=True, timeout=120 * patience())
    assert seen.read_text() == " ".join(["/dev/null"] * 3)


@pytest.mark.parametrize("restarts", usual([0, 1, 2], 1, more=OTHERS))
def test_a_script_that_always_fails_is_started_as_often_as_by_torchrun(
    restarts: int, start: StartAgent
) -> None:
    """--max-restarts=N means N restarts, then exit code 1 with the culprit's traceback."""
    agent = start("--nproc-per-node=2", f"--max-restarts={restarts}", "train.py", "10", "1")
    assert agent.wait(120) == 1
    assert agent.output().count("start 1") == restarts + 1
    errors = agent.errors()
    assert "Root Cause (first observed failure)" in errors
    assert "ValueError: bad luck" in errors
    assert "holdfast-run: the job failed:" in errors
    assert f"failures allows {restarts}" in errors


def test_a_failure_is_survived(running: StartAgent) -> None:
    """Without --max-restarts the run goes on after a failure, with equal restart counts."""
    agent = running("2000")
    _workers(agent)[0].kill()
    agent.until(lambda: agent.output().count("start") == 4)
    assert "start 0 1" in agent.output()
    assert "start 1 1" in agent.output()


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGHUP, 129, marks=OTHERS),
    ],
    ids=["int", "term", "hup"],
)
def test_a_signal_ends_the_run_and_everything(
    number: signal.Signals, code: int, running: StartAgent, tmp_path: Path
) -> None:
    """Ctrl-C: workers, zygote, store and master are gone, and so are the temporary files."""
    agent = running("5000")
    family = agent.family()
    agent.send(number)
    assert agent.wait(20) == code
    assert wait_gone(family, 2.0) == []
    assert list((tmp_path / "tmp").glob("holdfast_*")) == []


def test_under_nohup_a_hangup_ends_neither_the_run_nor_its_ranks(running: StartAgent) -> None:
    """A signal ignored at the start stays ignored. SIGTERM ends the run all the same."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        agent = running("5000", forked=False)
    finally:
        signal.signal(signal.SIGHUP, before)
    workers = _workers(agent)
    for process in (psutil.Process(agent.pid), *workers):
        process.send_signal(signal.SIGHUP)
    time.sleep(1.0)
    assert [is_alive(process) for process in workers] == [True, True]
    assert "SIGHUP" not in agent.errors()
    agent.send(signal.SIGTERM)
    assert agent.wait(20) == 143


NETWORK = """
import os, socket
import torch, torch.distributed as dist
dist.init_process_group("gloo")
family = socket.AF_INET6 if ":" in os.environ["MASTER_ADDR"] else socket.AF_INET
for _ in range(20):  # ports that others may want come and go
    held = [socket.create_server(("", 0), family=family) for _ in range(20)]
    one = torch.ones(1)
    dist.all_reduce(one)
    for server in held:
        server.close()
os.write(1, f"sum {one.item()}\\n".encode())
dist.destroy_process_group()
"""


def _in_a_network(line: str, words: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start a command in a network namespace that has a loopback interface only."""
    (folder / "network.py").write_text(NETWORK)
    return subprocess.Popen(
        [
            *["unshare", "--net", "--uts", "sh", "-c"],
            f'ip link set lo up; {line}; exec "$@"',
            "sh",
            *words,
        ],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder), "HOLDFAST_PRELOAD": "-torch"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


STANDALONE = [*MAIN, "--nproc-per-node=2", "network.py"]


@needs_pods
@pytest.mark.parametrize(
    "line",
    [
        pytest.param("hostname nowhere.invalid", marks=OTHERS),
        # gloo itself falls back to 127.0.0.1 where nobody names an interface.
        "ip address del 127.0.0.1/8 dev lo; export GLOO_SOCKET_IFNAME=lo",
    ],
    ids=["name-that-resolves-nowhere", "ipv6-alone"],
)
def test_a_run_needs_neither_its_hosts_name_nor_ipv4(line: str, tmp_path: Path) -> None:
    """All that it needs is a loopback address."""
    with _in_a_network(line, STANDALONE, tmp_path) as run:
        said, _ = run.communicate(timeout=120 * patience())
    assert (run.returncode, said.count("sum 2.0")) == (0, 2), said


@needs_pods
def test_runs_side_by_side_do_not_take_each_others_ports(tmp_path: Path) -> None:
    """Three on one machine, whose scripts open and close ports; every port was free when taken."""
    three = '"$@" & "$@" & "$@" & wait'
    with _in_a_network(f"{three}; exit", STANDALONE, tmp_path) as run:
        said, _ = run.communicate(timeout=200)
    assert said.count("sum 2.0") == 6, said


def test_a_run_bears_any_character_in_its_paths(start: StartAgent, tmp_path: Path) -> None:
    """Nothing of a name is a pattern, a template, a format or a shell's word."""
    odd = "a [b] {c} %s $HOME ${local_rank} 'd' \"e\" #1"
    (tmp_path / f"{odd}.py").write_text("import sys; print(sys.argv[1:], flush=True)")
    agent = start(f"--log-dir={odd}", "--tee=3", f"{odd}.py", "%d {} [x]")
    assert agent.wait(120) == 0, agent.errors()
    assert "['%d {} [x]']" in agent.output()
    assert list((tmp_path / odd).rglob("stdout.log"))


@needs_pods
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('"$@"; exit $?', True),
        ('exec "$@"', False),
        pytest.param("trap 'kill $!' TERM; \"$@\"; exit $?", False, marks=OTHERS),
    ],
    ids=["swallows", "exec", "passes-on"],
)
def test_a_shell_that_keeps_the_containers_sigterm_is_told(
    line: str, tmp_path: Path, *, told: bool
) -> None:
    """As the first process it hears no SIGTERM, and neither does what it has started."""
    agent = [*MAIN, "--no-python", "true"]
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", line, "sh", *agent],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120 * patience(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ("passes no SIGTERM on" in done.stderr) == told, done.stderr


def test_a_killed_agent_takes_its_master_along(start: StartAgent, tmp_path: Path) -> None:
    """After kill -9 the master does not serve on, and the next agent removes what is left."""
    agent = start("--nproc-per-node=1", "train.py", "5000", forked=False)
    agent.until(lambda: "start" in agent.output())
    family = agent.family()
    assert _master(agent) in family
    agent.send(signal.SIGKILL)
    assert wait_gone(family, 3.0) == []
    left = list((tmp_path / "tmp").glob("holdfast_*"))
    known = [path.name.split("_")[1] in ("run", "arena") for path in left]
    assert sorted(known) == [False, True, True]
    assert start("--nproc-per-node=1", "--no-python", "true", forked=False).wait(120) == 0
    assert list((tmp_path / "tmp").glob("holdfast_*")) == []


def test_a_killed_master_has_a_successor_and_training_goes_on(running: StartAgent) -> None:
    """The workers do not notice; the run still ends with 0."""
    agent = running("1200")
    workers = _workers(agent)
    _master(agent).kill()
    agent.until(lambda: "the master of epoch 2" in agent.errors())
    assert [is_alive(worker) for worker in workers] == [True, True]
    assert agent.wait(120) == 0
    assert agent.output().count("start") == 2


def test_workers_may_end_at_different_times(start: StartAgent, tmp_path: Path) -> None:
    """A rank that ends seconds before another does not end the run."""
    (tmp_path / "uneven.py").write_text(
        "import os, time; time.sleep(3 * int(os.environ['RANK'])); print('end', flush=True)"
    )
    agent = start("--nproc-per-node=2", "uneven.py")
    assert agent.wait(120) == 0
    assert agent.output().count("end") == 2


@pytest.mark.extended(
    "the same under a job's master",
    held_by=[
        "agent/process/test_rounds_with_a_master.py::test_standing_still_costs_the_workers_their_lives",
        "agent/process/test_rounds_with_a_master.py::test_a_whole_node_that_stood_still_does_not_train_on",
    ],
)
def test_a_run_that_stood_still_goes_on_afterwards(running: StartAgent) -> None:
    """Frozen for longer than the lease: the workers die, and a new round follows when it wakes."""
    agent = running("300")
    workers = _workers(agent)
    agent.send(signal.SIGSTOP)
    assert wait_gone(workers, 6.0) == []
    time.sleep(2.0)  # the master gives up on the node meanwhile
    agent.send(signal.SIGCONT)
    agent.until(lambda: agent.output().count("start") == 4)
    assert agent.wait(120) == 0
