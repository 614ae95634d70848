"""Start of torch's worker server in a rank, beside a script that knows nothing of it.

The server is torch's own, with a thread of its own in C++: it answers even while a call holds the
GIL. It ends with the process. `holdfast_agent.health.worker_server` asks it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from holdfast_wire.datagrams import short_path

MODULE: Final = "torch.distributed.distributed_c10d"
"""Once it is imported there is a server to start."""
ENV_ENTRIES: Final = "TORCH_FR_BUFFER_SIZE"
"""Collectives that torch's flight recorder keeps; 0: it is off."""
ENTRIES: Final = "128"
"""An answer costs 0.02 ms of CPU time an entry in the rank, and half of that in the agent; torch's
own default is 2,000."""
_started: Final[list[object]] = []
"""Keeps the server: its destructor would end it, and write to standard error."""


def start(path: str) -> None:
    """Serve at `path`: at once, or when the script imports torch.distributed.

    A rank that cannot serve says so on standard error, once, and goes on.
    """
    entries = os.environ.get(ENV_ENTRIES, ENTRIES)
    if not entries.strip().isdecimal() or int(entries) == 0:
        _say(f"{ENV_ENTRIES}={entries} switches torch's flight recorder off")
    elif MODULE in sys.modules:
        _serve(path)
    else:
        sys.meta_path.insert(0, _AfterImport(path))


def _serve(path: str) -> None:
    try:
        from torch._C import _distributed_c10d as c10d

        make_server = c10d._WorkerServer  # noqa: SLF001 - torch has no public name
    except (ImportError, AttributeError):
        _say("this torch has no worker server")
        return
    try:
        _size_recorder(c10d)
        with short_path(path) as place, _without_stderr():
            _started.append(make_server(place))
    except (OSError, RuntimeError) as error:
        _say(str(error).partition("\n")[0])


def _size_recorder(c10d: Any) -> None:
    """Have the flight recorder made now, with ENTRIES; the script's environment stays torchrun's.

    It reads the variable once, at its first use.
    """
    dump = getattr(c10d, "_dump_fr_trace_json", None)
    if ENV_ENTRIES in os.environ or dump is None:
        return
    os.environ[ENV_ENTRIES] = ENTRIES
    try:
        dump()
    finally:
        del os.environ[ENV_ENTRIES]


def _say(problem: str) -> None:
    text = f"holdfast: slow and hanging ranks are not seen from this one: {problem}\n"
    os.write(2, text.encode(errors="replace"))


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Have torch's line about its server go nowhere: a run is as silent as under torchrun."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Starts the server after the import of `MODULE`, and is gone then."""

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the module as without this finder; wrap its loader."""
        if fullname != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _serve(self._path)

            loader.exec_module = exec_module
        return spec
