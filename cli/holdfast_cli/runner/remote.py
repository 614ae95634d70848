"""Becomes a worker on another host: `python remote.py FILE`, with the file that the runner wrote.

Standard library only, and a script of its own: a launcher starts it in 20 ms. The file is on the
file system that the hosts share; environments have no place on a command line, which all can read.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Take directory, environment and command from the file, and become the command."""
    file = Path(sys.argv[1])
    try:
        given = json.loads(file.read_text(encoding="utf-8"))
        os.chdir(given["cwd"])
        os.execvpe(given["argv"][0], given["argv"], {**os.environ, **given["env"]})
    except (OSError, ValueError, KeyError) as error:
        host = os.uname().nodename
        sys.stderr.write(f"holdfast: {host}: {file} cannot be started: {error}\n")
        sys.exit(127)


if __name__ == "__main__":
    main()
