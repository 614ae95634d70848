"""torchelastic's error file: it carries a worker's exception to the agent.

The format is torch's (`torch.distributed.elastic.multiprocessing.errors`), written here for
scripts that do not use its `@record`.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Final

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


def error_document(error: BaseException, now_s: float) -> dict[str, object]:
    """Return the content of the file; `now_s` is seconds since the epoch."""
    return {
        "message": {
            "message": _message(error)[:_MOST],
            "extraInfo": {
                "py_callstack": "".join(traceback.format_exception(error))[-_MOST:],
                "timestamp": str(int(now_s)),
            },
        }
    }


def write_error_file(error: BaseException) -> None:
    """Write the error file named by the environment, unless `@record` has done so already."""
    name = os.environ.get(ERROR_FILE_VARIABLE)
    if not name:
        return
    path = Path(name)
    with suppress(OSError):  # the traceback is on stderr in any case
        if not (path.exists() and path.stat().st_size):
            path.write_text(json.dumps(error_document(error, time.time())))
