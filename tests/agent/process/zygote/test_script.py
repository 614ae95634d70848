"""A forked script finds what `python script.py` finds: `__main__`, paths, arguments, helpers."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from agents.plain_python import plain_python
from agents.zygote_driver import Driver, agent
from holdfast_agent.zygote.protocol import ScriptMode

LOOK = """
import __main__, json, os, signal, sys
print(json.dumps({
    "argv": sys.argv,
    "path": sys.path,
    "name": __name__,
    "file": __file__,
    "main": __main__.__dict__ is globals(),
    "doc": __doc__,
    "package": __package__,
    "cached": __main__.__dict__.get("__cached__", "none"),
    "spec": [__spec__ and (__spec__.name, __spec__.origin, __spec__.parent)],
    "loader": type(__loader__).__name__,
    "builtins": type(__builtins__).__name__,
    "annotations": sorted(__annotations__),
    "future": 1 / 2,
    "cwd": os.getcwd(),
    "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
    "handlers": {s.name: repr(signal.getsignal(s)) for s in signal.Signals},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "wakeup": signal.set_wakeup_fd(-1),
    "encoding": [sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors, sys.stdout.name],
    "unbuffered": [sys.stdout.write_through, sys.stderr.write_through],
    "locals": sorted(set(globals())),
}, default=repr))
"""

# Becomes python with the signals of a shell's foreground: where the tests run in the background of
# a script, SIGINT is ignored. By exec, since code between fork and exec (preexec_fn) can abort in a
# process whose gRPC has threads, as that of the tests has.
AS_FROM_A_SHELL = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def _look(driver: Driver, command: list[str], **fields: Any) -> tuple[Any, Any]:
    """Return what a forked worker and plain python see."""
    forked = driver.run_rank(cwd=str(driver.folder), **fields)
    assert forked.err == ""
    environment = {name: value for name, value in os.environ.items() if name != "HOLDFAST_PAGE"}
    words = ("-c", AS_FROM_A_SHELL, "-u", *command)
    plain = plain_python(*words, cwd=driver.folder, env=environment)
    return json.loads(forked.out), json.loads(plain.stdout)


def test_a_script_sees_what_python_shows_it(shared: Driver) -> None:
    """Module attributes, search path, signals and streams are the same, absolute path or not."""
    path = shared.script(LOOK, "look.py")
    for name in (path, "look.py"):
        forked, plain = _look(shared, [name, "a", "--b"], argv=(name, "a", "--b"))
        assert forked == plain


def test_a_script_behind_a_link_imports_from_its_real_folder(shared: Driver) -> None:
    """sys.path[0] is the resolved folder, __file__ the link."""
    real = shared.folder / "real"
    real.mkdir()
    (real / "linked.py").write_text(LOOK)
    (shared.folder / "link.py").symlink_to(real / "linked.py")
    forked, plain = _look(shared, ["link.py"], argv=("link.py",))
    assert forked == plain
    assert forked["path"][0] == str(real.resolve())


def test_a_module_sees_what_python_m_shows_it(shared: Driver) -> None:
    """`-m package.module`: spec, package and argv are set, the folder is the current one."""
    package = shared.folder / "looking"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "inner.py").write_text(LOOK)
    forked, plain = _look(
        shared, ["-m", "looking.inner", "x"], argv=("looking.inner", "x"), mode=ScriptMode.MODULE
    )
    assert forked == plain


SHADOWED = ("json", "logging", "dataclasses", "signal", "os", "encodings", "time", "traceback")
SAY_WHERE = f"""
import importlib
for name in {SHADOWED}:
    module = importlib.import_module(name)
    print(name, getattr(module, "MINE", "python's"))
import logging.handlers
print(logging.handlers.__name__)
"""


def _make_shadows(folder: Path) -> None:
    """Give a folder modules of its own whose names others have: files, packages, bare folders."""
    for name in SHADOWED:
        if name == "logging":
            (folder / name).mkdir(parents=True)
            (folder / name / "__init__.py").write_text("MINE = 'package'")
            (folder / name / "handlers.py").touch()
        elif name == "traceback":
            (folder / name).mkdir(parents=True)
        else:
            (folder / f"{name}.py").write_text("MINE = 'file'")


@pytest.mark.parametrize("fork", [True, False], ids=["forked", "fresh"])
@pytest.mark.parametrize("mode", [ScriptMode.SCRIPT, ScriptMode.MODULE])
def test_a_module_of_the_scripts_folder_hides_one_that_is_imported_already(
    tmp_path: Path, mode: ScriptMode, *, fork: bool
) -> None:
    """As under python, where the folder comes first, but for what python itself starts with."""
    folder = tmp_path / "own"
    folder.mkdir()
    _make_shadows(folder)
    (folder / "where.py").write_text(SAY_WHERE)
    name = "where" if mode is ScriptMode.MODULE else str(folder / "where.py")
    flag = ("-m",) if mode is ScriptMode.MODULE else ()
    with agent(tmp_path, fork=fork) as driver:
        ended = driver.run_rank(argv=(name,), mode=mode, cwd=str(folder))
    plain = plain_python(*flag, name, cwd=folder)
    assert (ended.out, ended.err) == (plain.stdout, "")
    assert "json file\nlogging package\n" in ended.out
    assert "os python's\n" in ended.out


def test_a_module_that_is_the_folders_own_stays_imported(tmp_path: Path) -> None:
    """A preloaded module of the script's own folder is not imported a second time."""
    (tmp_path / "heavy.py").write_text("import os; os.write(2, b'imported ')")
    code = "import heavy, sys; print(heavy.__name__)"
    path = {"PYTHONPATH": str(tmp_path)}
    with agent(tmp_path, environment=path, preload=("heavy",)) as driver:
        ended = driver.run(code)
    assert (ended.out, ended.err) == ("heavy\n", "")


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_a_folder_or_archive_is_run_by_its_main(shared: Driver, kind: str) -> None:
    """As python does with `__main__.py` in a folder or a zip file."""
    target = shared.folder / f"app_{kind}"
    if kind == "folder":
        target.mkdir()
        (target / "__main__.py").write_text(LOOK)
    else:
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr("__main__.py", LOOK)
    forked, plain = _look(shared, [str(target)], argv=(str(target),))
    assert forked == plain


def test_classes_of_the_script_can_be_pickled(shared: Driver) -> None:
    """Pickle finds them in `__main__`, in this process and in helpers started any way."""
    ended = shared.run(
        """
        import multiprocessing as mp, pickle

        class Point:
            def __init__(self, x): self.x = x

        def double(point): return Point(2 * point.x)

        if __name__ == "__main__":
            print(pickle.loads(pickle.dumps(Point(3))).x)
            for method in ("fork", "spawn", "forkserver"):
                with mp.get_context(method).Pool(1) as pool:
                    print(method, pool.map(double, [Point(4)])[0].x)
        """
    )
    assert (ended.out, ended.err) == ("3\nfork 8\nspawn 8\nforkserver 8\n", "")


def test_programs_that_a_script_starts_inherit_nothing_odd(shared: Driver) -> None:
    """A subprocess has its three streams and the shared page at most."""
    ended = shared.run(
        """
        import os, subprocess, sys
        look = "import os; print([os.readlink(f'/proc/self/fd/{f}') for f in range(3, 99) " \\
               "if os.path.islink(f'/proc/self/fd/{f}')])"
        print([os.readlink(f"/proc/self/fd/{f}") for f in range(3, 99)
               if os.path.islink(f"/proc/self/fd/{f}")])
        subprocess.run([sys.executable, "-c", look], close_fds=False)
        """
    )
    own, inherited = (eval(line) for line in ended.out.splitlines())  # noqa: S307 - our own output
    assert {target.split()[0] for target in own} == {"/memfd:holdfast-page"}
    assert {target.split()[0] for target in inherited} <= {"/memfd:holdfast-page"}


def test_a_program_that_a_rank_starts_is_no_rank_and_hears_nothing(shared: Driver) -> None:
    """`holdfast.init()` in it does nothing, without a warning about a descriptor."""
    ended = shared.run(
        """
        import subprocess, sys
        code = "import holdfast; print(holdfast.init().step(3).name)"
        subprocess.run([sys.executable, "-c", code], check=True)
        """
    )
    assert (ended.status, ended.out, ended.err) == (0, "CONTINUE\n", "")
    assert shared.page.read(0).step == 0


def test_a_script_that_executes_itself_anew_keeps_its_slot(shared: Driver) -> None:
    """`os.execv` of python, as some launchers do, leaves the rank attached."""
    ended = shared.run(
        """
        import os, sys, holdfast
        if len(sys.argv) == 1:
            os.execv(sys.executable, [sys.executable, __file__, "again"])
        holdfast.init().step(17)
        """
    )
    assert (ended.status, ended.err) == (0, "")
    assert shared.page.read(0).step == 17


def test_logging_is_the_scripts_to_configure(shared: Driver) -> None:
    """No handler of the agent is left on the root logger: basicConfig works."""
    ended = shared.run("import logging; logging.basicConfig(level=10); logging.debug('mine')")
    assert ended.err == "DEBUG:root:mine\n"


def test_the_environment_is_the_agents_plus_the_ranks(shared: Driver) -> None:
    """Variables of the rank win; page and round are added; nothing else appears."""
    ended = shared.run(
        "import json, os; print(json.dumps(dict(os.environ)))", env={"RANK": "5", "HOME": "/x"}
    )
    seen = json.loads(ended.out)
    assert (seen["RANK"], seen["HOME"], seen["HOLDFAST_ROUND"]) == ("5", "/x", str(shared.round))
    expected = {*os.environ, "RANK", "HOLDFAST_ROUND", "HOLDFAST_PAGE", "HOLDFAST_TEST_MARK"}
    assert set(seen) | {"PYTEST_CURRENT_TEST"} == expected | {"PYTEST_CURRENT_TEST"}


def test_standard_random_differs_between_forks(shared: Driver) -> None:
    """Each worker draws its own numbers."""
    draws = {shared.run("import random; print(random.random())").out for _ in range(3)}
    assert len(draws) == 3


def test_every_rank_has_its_own_session(shared: Driver) -> None:
    """A signal to one rank's group does not reach the agent or another rank."""
    ended = shared.run("import os; print(os.getsid(0) == os.getpgid(0) == os.getpid())")
    assert ended.out == "True\n"


def test_output_files_start_empty(shared: Driver, tmp_path: Path) -> None:
    """A round's output does not follow the last round's in the same file."""
    file = tmp_path / "out"
    for word in ("first", "second"):
        shared.run(f"print({word!r})", stdout=str(file))
    assert file.read_text() == "second\n"
