"""Hosts a TCPStore until it is killed: ``store_host.py PORT``.

Run by path, by the Python of the system under test, so it needs torch and nothing of this package.
"""

import signal
import sys
from datetime import timedelta

from torch.distributed import TCPStore


def main() -> None:
    """Listen on the loopback and wait for a signal."""
    store = TCPStore(
        "127.0.0.1",
        int(sys.argv[1]),
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=60),
    )
    signal.pause()
    del store


if __name__ == "__main__":
    main()
