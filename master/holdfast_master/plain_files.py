"""Opening what should be a plain file, in a directory where hands and tools leave other things.

Belongs here: telling a file from what only has its name. Does not belong here: what the file holds.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_plain(path: Path) -> BinaryIO:
    """Open a file for reading, without waiting: opening a pipe of this name would wait for ever.

    Raises:
        FileNotFoundError: nothing has this name (any more).
        OSError: it cannot be read, is no file, or a link that leads to nothing.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        if path.is_symlink():
            raise OSError(errno.ELOOP, "it is a link that leads to nothing", str(path)) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        return os.fdopen(file, "rb")
    except BaseException:
        os.close(file)
        raise
