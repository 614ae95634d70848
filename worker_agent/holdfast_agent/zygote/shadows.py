"""Modules of a script's folder with the name of a module that is imported already.

python finds such a module in the folder first. A process that has imported another module of that
name before the script runs would hide it. Does not belong here: the choice of the folder
(`script`).
"""

from __future__ import annotations

import importlib.machinery
import os
import pkgutil
import sys
from typing import Any, Final

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
