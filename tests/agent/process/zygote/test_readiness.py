"""Readiness of a zygote to fork, and its behaviour where it must not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from agents.plain_python import plain_python
from agents.zygote_driver import Driver, agent
from holdfast_agent.zygote.protocol import (
    ForkDisabled,
    Ready,
    RoundDead,
    WorkerExitedEvent,
    WorkerStarted,
)
from holdfast_agent.zygote.settings import REPLICA_PRELOAD

PRELOADS = {
    "a thread": (
        "import _thread, time\n_thread.start_new_thread(time.sleep, (60,))",
        "2 threads are running after the preload",
    ),
    "a descriptor": ("import os\nfd = os.open('/dev/zero', os.O_RDONLY)", "descriptors open: "),
    "a socket": ("import socket\ns = socket.socket()", "socket:["),
}


def _module(folder: Path, code: str) -> dict[str, Any]:
    """Write the module `mine`; return what has an agent find it."""
    (folder / "mine.py").write_text(code)
    return {"environment": {"PYTHONPATH": str(folder)}}


@pytest.mark.parametrize("kind", PRELOADS)
def test_a_preload_that_is_not_forkable_ends_forking(tmp_path: Path, kind: str) -> None:
    """Threads and descriptors do not survive a fork: workers start fresh, with the reason."""
    code, reason = PRELOADS[kind]
    with agent(tmp_path, **_module(tmp_path, code), preload=("mine",)) as driver:
        event = driver.wait(Ready)
        assert event.reason
        assert reason in event.reason
        _works_fresh(driver)
    assert "workers start as fresh interpreters: " in (tmp_path / "agent.err").read_text()


def _works_fresh(driver: Driver) -> None:
    """A fresh interpreter runs a script as a fork does."""
    script = driver.script(
        """
        import os, sys, holdfast
        job = holdfast.init()
        job.step(3, loss=0.5)
        print(__name__, sys.argv[1:], job.round)
        sys.exit(6)
        """
    )
    rank = driver.rank(argv=(script, "a"))
    (started,) = driver.spawn(rank)
    assert not started.forked
    assert driver.wait(WorkerExitedEvent).exit_code == 6
    driver.wait(RoundDead)
    assert Path(rank.stdout or "").read_text() == f"__main__ ['a'] {driver.round}\n"
    assert driver.page.read(0).step == 3
    assert driver.page.read(0).pid == started.pid


def test_a_threaded_agent_gets_a_zygote_that_does_not_fork(tmp_path: Path) -> None:
    """A thread in the agent makes its forks unsafe: said as the reason."""
    with agent(tmp_path, thread=True) as driver:
        assert driver.wait(Ready).reason == "the agent had 2 threads when it forked the zygote"
        _works_fresh(driver)


def test_forking_can_be_switched_off(tmp_path: Path) -> None:
    """For a person who suspects it."""
    with agent(tmp_path, fork=False) as driver:
        assert driver.wait(Ready).reason == "switched off by the settings"
        _works_fresh(driver)


def test_a_preload_that_fails_is_skipped_and_named(tmp_path: Path) -> None:
    """A missing module is the script's problem, if it is one at all."""
    with agent(tmp_path, preload=("json", "no_such_module")) as driver:
        assert not driver.wait(Ready).reason
        assert driver.run("print(1)").out == "1\n"
    log = (tmp_path / "agent.err").read_text()
    assert "preload of no_such_module skipped: ModuleNotFoundError" in log


def test_a_deferred_module_is_imported_once_a_round_has_run_for_a_while(tmp_path: Path) -> None:
    """The first round does not wait for it; the next one's workers have it."""
    module = _module(tmp_path, "from pathlib import Path\nPath(__file__ + '.in').touch()\n")
    asks = f"""
        import sys, time
        from pathlib import Path
        print("mine" in sys.modules, "json.tool" in sys.modules)
        while not Path({str(tmp_path / "mine.py.in")!r}).exists():
            time.sleep(0.01)
        """
    names = ("json.tool", "mine")
    with agent(tmp_path, **module, deferred_preload=names, deferred_preload_s=1.0) as driver:
        assert not driver.wait(Ready).reason
        assert driver.run(asks).out == "False False\n"
        assert driver.run(asks).out == "True True\n"


def test_modules_of_replicas_are_imported_once_a_round_has_a_roster(tmp_path: Path) -> None:
    """A job of one world has no use for them; a replica that comes back does not import them."""
    module = _module(tmp_path, "from pathlib import Path\nPath(__file__ + '.in').touch()\n")
    asks = "import sys; print('mine' in sys.modules)"
    late = f"""
        import sys, time
        from pathlib import Path
        print("mine" in sys.modules)
        while len(sys.argv) > 1 and not Path({str(tmp_path / "mine.py.in")!r}).exists():
            time.sleep(0.01)
        """
    roster = {"env": {"HOLDFAST_OUTER_ROSTER": str(tmp_path / "roster")}}
    with agent(tmp_path, **module, replica_preload=("mine",), deferred_preload_s=0.2) as driver:
        assert not driver.wait(Ready).reason
        assert driver.run("import time; time.sleep(1)").exited.exit_code == 0
        assert driver.run(late, "wait", **roster).out == "False\n"
        assert driver.run(asks, **roster).out == "True\n"


def test_the_package_of_replicas_leaves_the_zygote_forkable(tmp_path: Path) -> None:
    """The default list exists, and starts no thread."""
    asks = f"import sys; print({set(REPLICA_PRELOAD)!r} <= set(sys.modules))"
    roster = {"env": {"HOLDFAST_OUTER_ROSTER": str(tmp_path / "roster")}}
    with agent(tmp_path, deferred_preload_s=0.0) as driver:
        assert not driver.wait(Ready).reason
        driver.run("import time; time.sleep(3)", **roster)
        again = driver.run(asks, **roster)
        assert (again.out, again.err) == ("True\n", "")
    assert "skipped" not in (tmp_path / "agent.err").read_text()


def test_the_agents_end_does_not_wait_for_a_deferred_import(tmp_path: Path) -> None:
    """Torch's parts take seconds, and a busy machine's half a minute; ranks would train on."""
    lasts = (
        "import time\nfrom pathlib import Path\nPath(__file__ + '.in').touch()\n"
        "until = time.monotonic() + 300\nwhile time.monotonic() < until:\n    pass\n"
    )
    module = _module(tmp_path, lasts)
    with agent(tmp_path, **module, deferred_preload=("mine",), deferred_preload_s=0.1) as driver:
        driver.start("import time; print('up', flush=True); time.sleep(600)")
        driver.until((tmp_path / "mine.py.in").exists, "the import")
        driver.process.kill()
        driver.until(lambda: not driver.alive(), "an empty house", 20.0)


def test_a_deferred_module_that_starts_a_thread_ends_forking(tmp_path: Path) -> None:
    """The round that runs is left alone; the next one's workers start fresh, with the reason."""
    module = _module(tmp_path, PRELOADS["a thread"][0])
    with agent(tmp_path, **module, deferred_preload=("mine",), deferred_preload_s=0.1) as driver:
        assert not driver.wait(Ready).reason
        started = driver.start("import time; print('up', flush=True); time.sleep(600)")
        assert started.forked
        assert driver.wait(ForkDisabled).reason == PRELOADS["a thread"][1]
        assert started.pid in driver.alive()
        driver.settle()
        _works_fresh(driver)


def test_grpc_before_the_zygote_is_refused(tmp_path: Path) -> None:
    """The error says what to do."""
    with agent(tmp_path, grpc=True) as driver:
        assert driver.process.wait(20) == 1
    log = (tmp_path / "agent.err").read_text()
    assert "grpc is imported already: start the zygote before importing it" in log


def test_a_missing_torch_is_named(tmp_path: Path) -> None:
    """With what to install, and where."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    with agent(tmp_path, torch=True, environment={"PYTHONPATH": str(tmp_path)}) as driver:
        assert driver.process.wait(60) == 1
    log = (tmp_path / "agent.err").read_text()
    assert (
        f"torch cannot be imported: No module named 'torch'; install it for {sys.executable}" in log
    )


def test_a_zygote_is_started_once_and_from_the_main_thread() -> None:
    """Both mistakes are named; a child of another thread would die with that thread."""
    code = """
import threading
from holdfast.page import Page
from holdfast_agent.zygote.handle import Zygote
from holdfast_agent.zygote.preload import ZygoteError
from holdfast_agent.zygote.settings import ZygoteSettings
page, errors = Page.create(1), []
def start(zygote):
    try:
        zygote.start(ZygoteSettings(local_world_size=1, preload=()), page)
    except ZygoteError as error:
        print(error)
first, second = Zygote(), Zygote()
thread = threading.Thread(target=start, args=(second,))
thread.start(); thread.join()
start(first); start(first)
first.shutdown()
"""
    done = plain_python("-c", code, check=False)
    assert done.stdout.splitlines() == [
        "start the zygote from the main thread: it dies with its thread",
        "the zygote has been started already",
    ]


# --- variables that count at import ----------------------------------------------------------


def test_a_script_that_sets_an_import_variable_is_warned_and_spawned_next_time(
    driver: Driver,
) -> None:
    """It has no effect in a fork; the next round is a fresh interpreter, where it has one."""
    code = """
        import os
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
        os.environ["OMP_SCHEDULE"] = "static"
    """
    first = driver.run(code)
    assert first.err.count("TORCH_DISTRIBUTED_DEBUG=DETAIL set by the script has no effect") == 1
    assert "TORCH_DISTRIBUTED_DEBUG" in driver.wait(ForkDisabled).reason
    rank = driver.rank(argv=(driver.script(code),))
    (started,) = driver.spawn(rank)
    driver.wait(RoundDead, round=driver.round)
    assert not started.forked
    assert Path(rank.stderr or "").read_text() == ""


@pytest.mark.parametrize(
    "statement",
    [
        "os.environ['OMP_NUM_THREADS'] = '7'",
        "os.putenv('OMP_NUM_THREADS', '7')",
        "del os.environ['MKL_DYNAMIC']",
        "os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'backend:cudaMallocAsync'",
    ],
)
def test_every_way_to_set_an_import_variable_is_seen(tmp_path: Path, statement: str) -> None:
    """Through os.environ or past it, set or removed."""
    with agent(tmp_path, environment={"MKL_DYNAMIC": "FALSE"}) as driver:
        assert not driver.wait(Ready).reason
        assert "has no effect" in driver.run(f"import os\n{statement}").err
        driver.wait(ForkDisabled)


@pytest.mark.parametrize(
    ("change", "warnings"),
    [
        pytest.param("os.environ.clear()", 0, id="all-removed"),
        pytest.param("del os.environ['OMP_NUM_THREADS']", 0, id="one-removed"),
        pytest.param("os.environ['OMP_NUM_THREADS'] = '7'", 1, id="one-changed"),
    ],
)
def test_a_script_that_puts_variables_back_stays_forked(
    tmp_path: Path, change: str, warnings: int
) -> None:
    """Values are compared, not writes: nothing differs at the end, so the next round is warm."""
    code = f"import os\nold = os.environ.copy()\n{change}\nos.environ.update(old)"
    with agent(tmp_path, local_world_size=2) as driver:
        assert not driver.wait(Ready).reason
        assert driver.run(code).err.count("has no effect") == warnings
        assert driver.page.read(0).import_variable == ""
        (started,) = driver.spawn(driver.rank(argv=(driver.script(""),)))
        assert started.forked


def test_a_variable_that_differs_at_a_violent_end_counts(driver: Driver) -> None:
    """The page holds what differs at each moment: SIGKILL leaves no time for a last look."""
    driver.run("import os\nos.environ['OMP_SCHEDULE'] = 'static'\nos.kill(os.getpid(), 9)")
    assert "OMP_SCHEDULE" in driver.wait(ForkDisabled).reason


def test_a_compilers_variable_has_its_effect_until_the_compiler_is_loaded(driver: Driver) -> None:
    """So nothing is said; the next round starts fresh, because its zygote may have loaded it."""
    ended = driver.run("import os\nos.environ['TORCHINDUCTOR_MAX_AUTOTUNE'] = '1'")
    assert ended.err == ""
    assert "TORCHINDUCTOR_MAX_AUTOTUNE" in driver.wait(ForkDisabled).reason


def test_a_script_that_sets_other_variables_is_left_alone(driver: Driver) -> None:
    """Variables that are read later are no news."""
    ended = driver.run(
        """
        import os
        os.environ["NCCL_DEBUG"] = "INFO"
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/tmp"
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        """,
        env={"MASTER_PORT": "1"},
    )
    assert ended.err == ""
    assert driver.page.read(0).import_variable == ""


@pytest.mark.parametrize(
    ("env", "forked"),
    [
        ({"RANK": "0", "MASTER_ADDR": "10.0.0.1", "OMP_NUM_THREADS": "4"}, True),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCHELASTIC_RUN_ID": "x"}, True),
        ({"TORCH_DISTRIBUTED_DEBUG": "INFO"}, False),
        ({"KMP_AFFINITY": "compact"}, False),
    ],
)
def test_a_rank_whose_variables_a_fork_cannot_honour_starts_fresh(
    driver: Driver, env: dict[str, str], *, forked: bool
) -> None:
    """Decided rank by rank, from what the agent gives it."""
    (started,) = driver.spawn(driver.rank(argv=(driver.script(""),), env=env))
    driver.wait(RoundDead)
    assert started.forked is forked


def test_import_variables_of_the_users_environment_reach_the_zygote(tmp_path: Path) -> None:
    """Set from the start they are honoured by the zygote's own import: forking stays on."""
    with agent(tmp_path, environment={"OMP_SCHEDULE": "static"}) as driver:
        assert not driver.wait(Ready).reason
        same = driver.script("import os; os.environ['OMP_SCHEDULE'] = 'static'")
        rank = driver.rank(argv=(same,), env={"OMP_SCHEDULE": "static"})
        (started,) = driver.spawn(rank)
        driver.wait(RoundDead)
        assert started.forked
        assert Path(rank.stderr or "").read_text() == ""


def test_stray_events_do_not_pile_up(driver: Driver) -> None:
    """One start and one end per worker, one death per round."""
    driver.run("")
    assert not driver.read(0.2)
    assert [event for event in driver.unread if not isinstance(event, WorkerStarted)] == []
