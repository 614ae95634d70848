"""torchelastic's error file: how a worker's exception reaches the agent.

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


def error_document(error: BaseException, now_s: float) -> dict[str, object]:
    """Return what the file holds; `now_s` is seconds since the epoch."""
    return {
        "message": {
            "message": f"{type(error).__name__}: {error}",
            "extraInfo": {
                "py_callstack": "".join(traceback.format_exception(error)),
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
