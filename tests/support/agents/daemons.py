"""Scripts for tests whose workers leave processes behind, the ways that programs do it."""

from __future__ import annotations

DAEMON = """
    import os, signal, sys, time

    def daemon(ignore):
        # As daemons detach: fork, new session, fork again, so that nobody waits for it.
        if os.fork():
            os.wait()
            return
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in ignore:
            signal.signal(number, signal.SIG_IGN)
        os.close(1), os.close(2)
        while True:
            time.sleep(60)

    def helper():
        # A plain child that is waited for by nobody.
        if not os.fork():
            while True:
                time.sleep(60)

    daemon([])
    daemon([signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
    helper()
    print("up", flush=True)
"""

DAEMONS = 3
"""Processes that `DAEMON` leaves, besides the worker."""

STAY = DAEMON + "\n    time.sleep(600)\n"
"""Leaves processes and stays."""
