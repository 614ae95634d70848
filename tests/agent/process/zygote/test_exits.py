"""Ends of workers as the agent learns of them: exit status, signal, error file, output."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from agents.plain_python import plain_python
from agents.zygote_driver import Driver, Output
from holdfast_agent.zygote.protocol import RoundDead, ScriptMode, Spawn, WorkerExitedEvent


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("", 0),
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit(0)", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit(300)", 44),
        ("import sys; sys.exit(True)", 1),
        ("import sys; sys.exit('no data')", 1),
        ("raise SystemExit(7)", 7),
        ("import os; os._exit(9)", 9),
        ("raise ValueError('x')", 1),
        ("def f(:", 1),
    ],
)
def test_exit_status_is_pythons(shared: Driver, code: str, status: int) -> None:
    """A forked script ends with the status that python gives it, and writes the same to stderr."""
    forked = shared.run(code)
    plain = plain_python(str(shared.folder / "script.py"), check=False)
    assert forked.status == status == plain.returncode
    assert (forked.out, forked.err) == (plain.stdout, plain.stderr)


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT])
def test_a_signal_is_reported_as_such(shared: Driver, sig: signal.Signals) -> None:
    """Not as an exit status."""
    ended = shared.run(f"import os; os.kill(os.getpid(), {int(sig)})")
    assert ended.status == -sig


def test_an_interrupt_ends_by_signal(shared: Driver) -> None:
    """KeyboardInterrupt that nobody catches ends the process by SIGINT, as in python."""
    ended = shared.run("raise KeyboardInterrupt")
    assert ended.status == -signal.SIGINT
    assert "KeyboardInterrupt" in ended.err


@pytest.mark.parametrize(
    ("rank", "status", "text"),
    [
        pytest.param(
            {"argv": ("/nowhere/train.py",)},
            2,
            "can't open file '/nowhere/train.py': [Errno 2] No such file or directory",
            id="script-as-by-python",
        ),
        pytest.param(
            {"argv": ("no_such_module",), "mode": ScriptMode.MODULE},
            1,
            "No module named no_such_module",
            id="module-as-by-python-m",
        ),
        pytest.param(
            {"argv": ("no-such-program",), "mode": ScriptMode.BINARY},
            127,
            "No such file or directory: 'no-such-program'",
            id="program-as-by-a-shell",
        ),
        pytest.param(
            {"argv": ("/bin/true",), "mode": ScriptMode.BINARY, "cwd": "/nowhere"},
            127,
            "/nowhere",
            id="working-directory",
        ),
    ],
)
def test_what_is_missing_is_named(
    shared: Driver, rank: dict[str, Any], status: int, text: str
) -> None:
    """It fails the worker, not the zygote."""
    ended = shared.run_rank(**rank)
    assert ended.status == status
    assert text in ended.err
    assert shared.run("").status == 0


def test_any_program_can_be_a_worker(shared: Driver) -> None:
    """`--no-python`: found on PATH, with its environment and arguments."""
    ended = shared.run_rank(
        argv=("sh", "-c", "echo $X $HOLDFAST_ROUND $0; exit 5", "arg"),
        mode=ScriptMode.BINARY,
        env={"X": "from the agent"},
    )
    assert (ended.status, ended.out) == (5, f"from the agent {shared.round} arg\n")


def _with_error_file(driver: Driver, folder: Path, code: str) -> tuple[Output, Path]:
    file = folder / "error.json"
    return driver.run(code, env={"TORCHELASTIC_ERROR_FILE": str(file)}), file


def test_an_exception_writes_the_error_file(shared: Driver, tmp_path: Path) -> None:
    """In torchelastic's format, without `@record` in the script."""
    code = "def inner():\n    raise RuntimeError('lost 3 samples')\ninner()"
    ended, file = _with_error_file(shared, tmp_path, code)
    assert ended.status == 1
    message = json.loads(file.read_text())["message"]
    assert message["message"] == "RuntimeError: lost 3 samples"
    assert "in inner" in message["extraInfo"]["py_callstack"]
    assert "holdfast_agent" not in message["extraInfo"]["py_callstack"]
    assert message["extraInfo"]["timestamp"].isdecimal()


ODD_ERRORS = {
    "no text": ("raise ValueError", "ValueError: "),
    "a cause": ("raise KeyError('b') from OSError('a')", "KeyError: 'b'"),
    "a group": (
        "raise ExceptionGroup('two', [ExceptionGroup('one', [OSError('disk')]), KeyError(1)])",
        "ExceptionGroup: two (2 sub-exceptions); the first is OSError: disk",
    ),
    "no str": (
        "class E(Exception):\n def __str__(self):\n  raise KeyError\nraise E",
        "E: <its __str__ raised KeyError>",
    ),
    "str of another type": (
        "class E(Exception):\n def __str__(self):\n  return 3\nraise E",
        "E: <its __str__ raised TypeError>",
    ),
    "100 KB": ("raise ValueError('x' * 100_000)", "ValueError: " + "x" * 65_524),
    "no UTF-8": ("raise OSError('\\udce9.pt')", "OSError: \udce9.pt"),
}


@pytest.mark.parametrize("odd", ODD_ERRORS)
def test_an_error_with_an_odd_text_is_told_like_any_other(
    shared: Driver, tmp_path: Path, odd: str
) -> None:
    """Exit code 1, a traceback, and an error file that names type and text."""
    script, text = ODD_ERRORS[odd]
    ended, file = _with_error_file(shared, tmp_path, script)
    assert ended.status == 1
    assert "Traceback" in ended.err
    assert json.loads(file.read_text())["message"]["message"] == text


def test_an_error_file_of_the_script_itself_is_kept(shared: Driver, tmp_path: Path) -> None:
    """`@record` writes first and raises again; its file has more in it."""
    code = (
        "import os\nopen(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('mine')\nraise OSError"
    )
    _, file = _with_error_file(shared, tmp_path, code)
    assert file.read_text() == "mine"


def test_an_exit_status_writes_no_error_file(shared: Driver, tmp_path: Path) -> None:
    """As with torchrun: sys.exit is no exception."""
    _, file = _with_error_file(shared, tmp_path, "import sys; sys.exit(4)")
    assert not file.exists()


def test_files_left_open_are_flushed(shared: Driver, tmp_path: Path) -> None:
    """A file that a script left open is on disk, as after the interpreter's own end."""
    file = tmp_path / "left_open.txt"
    shared.run(f"f = open({str(file)!r}, 'w'); f.write('kept'); g = open('/dev/null', 'wb')")
    assert file.read_text() == "kept"


def test_dead_weak_references_do_not_disturb_the_end(shared: Driver) -> None:
    """Looking for open files must not touch what is gone."""
    ended = shared.run(
        """
        import weakref
        class Thing: pass
        proxies = [weakref.proxy(Thing()) for _ in range(3)]
        file = open("/dev/null", "wb"); pipe = __import__("os").pipe()
        """
    )
    assert (ended.status, ended.err) == (0, "")


def test_threads_and_exit_hooks_run_to_their_end(shared: Driver) -> None:
    """Non-daemon threads are joined, then exit hooks run, the last one first."""
    ended = shared.run(
        """
        import atexit, threading, time
        atexit.register(print, "first registered")
        atexit.register(print, "last registered")
        threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
        print("main")
        """
    )
    assert ended.out.splitlines() == ["main", "thread", "last registered", "first registered"]


def test_output_is_not_held_back(shared: Driver) -> None:
    """Stdout is unbuffered, as under torchrun: what was printed before a kill is there."""
    ended = shared.run("import os; print('a line', end=''); os.kill(os.getpid(), 9)")
    assert ended.out == "a line"


def test_a_clean_end_is_marked_in_the_page(shared: Driver) -> None:
    """The agent can tell an orderly end from a process that exited with status 0 by itself."""
    shared.run("print('fine')")
    assert shared.page.read(0).clean_exit
    shared.run("import os; os._exit(0)")
    assert not shared.page.read(0).clean_exit
    shared.run("raise SystemExit(1)")
    assert not shared.page.read(0).clean_exit


BARRIER = """
    import atexit, os, sys, time, holdfast
    job = holdfast.init()
    file = open(sys.argv[1], "w")
    atexit.register(file.write, "hook,")
    while not os.path.exists(sys.argv[1] + ".armed"):
        time.sleep(0.001)
    for n in range(1, 100):
        if job.step(n) is holdfast.SAVE_AND_STOP:
            file.write(f"saved {n},")
            sys.exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize(("status", "complete"), [("0", True), ("1", False)])
def test_a_barrier_is_complete_after_exit_status_0(
    shared: Driver, tmp_path: Path, status: str, *, complete: bool
) -> None:
    """After SAVE_AND_STOP the flag says that the process may be killed: files, hooks are done."""
    saved = tmp_path / "saved"
    shared.spawn(shared.rank(argv=(shared.script(BARRIER), str(saved), status)))
    shared.page.set_barrier(0, 1, 50)
    (tmp_path / "saved.armed").touch()
    shared.wait(RoundDead, round=shared.round)
    sample = shared.page.read(0)
    assert (sample.answered_step, sample.barrier_complete) == (50, complete)
    assert saved.read_text() == "saved 50,hook,"


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import atexit, sys\natexit.register(sys.exit, 9)", id="exit-hook-exits"),
        pytest.param(
            "import os, signal, sys, threading, time\n"
            "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
            "def later():\n"
            "    time.sleep(0.1); os.kill(os.getpid(), signal.SIGTERM); time.sleep(0.2)\n"
            "threading.Thread(target=later).start()",
            id="handler-exits-while-threads-are-joined",
        ),
    ],
)
def test_an_exit_while_ending_stays_in_the_worker(shared: Driver, code: str) -> None:
    """Whatever is raised after the script's end, the worker ends with the script's own status."""
    assert shared.run(code).status == 0
    assert shared.run("print('next')").out == "next\n"


def test_a_slot_that_was_not_reset_is_named(shared: Driver) -> None:
    """The agent must reset the slot for the round; if not, the worker says so and fails."""
    rank = shared.rank(argv=(shared.script(""),))
    number = shared.round = shared.round + 1
    shared.page.reset(0, number + 5)
    shared.send(Spawn(round=number, ranks=(rank,)))
    assert shared.wait(WorkerExitedEvent).exit_code == 1
    assert (
        f"slot 0: of round {number + 5}, this process of {number}"
        in Path(rank.stderr or "").read_text()
    )
