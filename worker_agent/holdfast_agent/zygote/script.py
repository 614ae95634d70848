"""Runs a user's script as `python script.py` or `python -m module` would, and ends like it.

It works in a forked child and in a fresh interpreter.
"""

from __future__ import annotations

import atexit
import builtins
import importlib.machinery
import json
import os
import pkgutil
import runpy
import signal
import sys
import threading
import time
import traceback
import types
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from holdfast.page_sample import Section
from holdfast.page_slot import SlotWriter
from holdfast_agent.zygote.files import flush_files
from holdfast_agent.zygote.protocol import ScriptMode
from holdfast_agent.zygote.teardown import has_unfinished_files, tear_down

_EXIT_NO_SCRIPT = 2  # python's own
_PACKAGE = str(Path(__file__).parent)


class ScriptExit:
    """End of the script, and its exit status.

    Its exit hook is registered before the script runs. So it comes after the script's own hooks and
    before those of the modules imported earlier.
    """

    def __init__(self, writer: SlotWriter, found: frozenset[str]) -> None:
        """Report to the rank's slot; `found`: names of the modules that were imported before."""
        self._writer, self._found = writer, found
        self.status = 1
        atexit.register(self._before_imported_hooks)

    def _before_imported_hooks(self) -> None:
        flush_files()
        if self.status == 0 and not has_unfinished_files():
            self._writer.complete_barrier()

    def finish(self) -> None:
        """Do the rest, once all exit hooks have run."""
        _quietly(lambda: tear_down(self._found, self.status))
        if self.status == 0:
            self._writer.complete_barrier()
            self._writer.clean()


def run(
    mode: ScriptMode, argv: Sequence[str], writer: SlotWriter, found: frozenset[str]
) -> NoReturn:
    """Run the script or module `argv[0]` as `__main__`, then end the process; never returns."""
    ending = ScriptExit(writer, found)
    ending.status = _status_of(lambda: _run_main(mode, argv))
    writer.enter(Section.FINISHING)
    # As the interpreter does at its end: join threads, run exit hooks, free the rest.
    _quietly(threading._shutdown)  # type: ignore[attr-defined]  # noqa: SLF001
    _quietly(atexit._run_exitfuncs)  # noqa: SLF001
    ending.finish()
    if ending.status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(ending.status & 0xFF)  # tearing down all imported modules would only cost time


def _quietly(step: Callable[[], None]) -> None:
    """Take a step of the end; an exception from a signal handler changes nothing any more."""
    try:
        step()
    except BaseException:  # noqa: BLE001 - python itself prints and goes on
        traceback.print_exc()


def _run_main(mode: ScriptMode, argv: Sequence[str]) -> None:
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:  # multiprocessing's second name for it, set at its import
        sys.modules["__mp_main__"] = main
    sys.argv = list(argv)
    target = Path(argv[0])
    if mode is ScriptMode.MODULE:
        _first_path(Path.cwd())
        runpy._run_module_as_main(argv[0])  # type: ignore[attr-defined]  # noqa: SLF001
    elif target.is_dir() or zipfile.is_zipfile(target):
        _first_path(target)
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]  # noqa: SLF001
    else:
        _first_path(target.resolve().parent)
        _run_file(main, str(target.absolute()))


def _run_file(main: types.ModuleType, path: str) -> None:
    machinery = importlib.machinery
    compiled = path.endswith(".pyc")
    loader = (machinery.SourcelessFileLoader if compiled else machinery.SourceFileLoader)(
        "__main__", path
    )
    main.__dict__.update(__file__=path, __cached__=None, __loader__=loader)
    try:
        source = loader.get_data(path)
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: can't open file {path!r}: {reason}", file=sys.stderr)  # noqa: T201
        raise SystemExit(_EXIT_NO_SCRIPT) from error
    # Never from a cache: python compiles its main script anew, too.
    code = (
        loader.get_code("__main__")
        if compiled
        else compile(source, path, "exec", dont_inherit=True)
    )
    if code is not None:
        exec(code, main.__dict__)  # noqa: S102 - running the user's script is what this is for


def _first_path(entry: Path) -> None:
    """Put `entry` in sys.path at the place of the script's folder, instead of the launcher's."""
    if not sys.flags.safe_path:
        sys.path[:1] = [str(entry)]
        drop_shadowed(str(entry))


def _status_of(body: Callable[[], None]) -> int:
    """Return the exit status of python for this body; negative for a signal."""
    try:
        body()
    except SystemExit as end:
        return _exit_status(end.code)
    except BaseException as error:  # noqa: BLE001 - whatever the script raises ends here
        _show(error)
        if isinstance(error, KeyboardInterrupt):
            return -signal.SIGINT
        write_error_file(error)
        return 1
    return 0


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)  # noqa: T201 - as python does with sys.exit("text")
    return 1


def _show(error: BaseException) -> None:
    """Print the traceback through the script's own hook, without the frames of this package."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    try:
        sys.excepthook(type(error), error, trace)
    except BaseException:  # noqa: BLE001 - a broken hook must not hide the error
        sys.__excepthook__(type(error), error, trace)


ERROR_FILE_VARIABLE: Final = "TORCHELASTIC_ERROR_FILE"


_MOST: Final = 64 * 1024
"""Characters of a message, and of a call stack, in the file: readers refuse larger ones."""


def _message(error: BaseException) -> str:
    """Return type and text of an exception; for a group also of its first plain exception."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception as broken:  # noqa: BLE001 - a script's `__str__` can raise anything
        text = f"{type(error).__name__}: <its __str__ raised {type(broken).__name__}>"
    first = error
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return text if first is error else f"{text}; the first is {_message(first)}"


def write_error_file(error: BaseException) -> None:
    """Write the error file named by the environment, unless `@record` has done so already."""
    name = os.environ.get(ERROR_FILE_VARIABLE)
    if not name:
        return
    extra = {
        "py_callstack": "".join(traceback.format_exception(error))[-_MOST:],
        "timestamp": str(int(time.time())),
    }
    document = {"message": {"message": _message(error)[:_MOST], "extraInfo": extra}}
    path = Path(name)
    with suppress(OSError):  # the traceback is on stderr in any case
        if not (path.exists() and path.stat().st_size):
            path.write_text(json.dumps(document))


_AT_START: Final = frozenset({"__main__", "__mp_main__", "encodings"})
"""Imported before any script, so no folder shadows them. The other modules of python's own start
are built in or frozen."""


def drop_shadowed(folder: str) -> None:
    """Forget imported modules for which `folder`, first in sys.path, has modules of its own.

    folder: a folder or a zip archive. Code that imported them before keeps its references.
    """
    finder: Any = pkgutil.get_importer(folder)
    if finder is None:
        return
    # Names of the folder are looked up among the modules, not the other way round: a look at a
    # module costs a forked process a copy of its memory.
    candidates = {name for name in _names(folder) if name in sys.modules} - _AT_START
    shadowed = {name for name in candidates if _shadows(finder, name)}
    if shadowed:
        for name in list(sys.modules):
            if name.partition(".")[0] in shadowed:
                del sys.modules[name]


def _names(folder: str) -> set[str]:
    """Return the possible names of modules in a folder or archive."""
    try:
        return {entry.partition(".")[0] for entry in os.listdir(folder)}  # noqa: PTH208 - no objects
    except NotADirectoryError:
        return {module.name for module in pkgutil.iter_modules([folder])}
    except OSError:
        return set()


def _shadows(finder: Any, name: str) -> bool:
    """Return True if python would import the folder's module, and another of its name is loaded."""
    if name in sys.builtin_module_names:
        return False
    found = finder.find_spec(name)
    if found is None or found.loader is None:  # a folder without __init__ loses to a module
        return False
    if importlib.machinery.FrozenImporter.find_spec(name) is not None:
        return False
    return not _same(found.origin, _origin(sys.modules[name]))


def _origin(module: Any) -> str | None:
    spec = getattr(module, "__spec__", None)
    return getattr(spec, "origin", None) or getattr(module, "__file__", None)


def _same(one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return False
    return os.path.realpath(one) == os.path.realpath(other)
