"""The smallest agent: starts a zygote, renews the lease, passes commands on and events back.

Run as a process by `zygote_driver`; commands are JSON lines on stdin, events on the descriptor
given. Lines that are no message: `begin-lease`, `stop-renewing`.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time

from holdfast.page import Page
from holdfast_agent.zygote import protocol
from holdfast_agent.zygote.handle import Zygote
from holdfast_agent.zygote.preload import import_torch
from holdfast_agent.zygote.protocol import ZygoteExited
from holdfast_agent.zygote.settings import ZygoteSettings
from holdfast_wire.datagrams import encode

RENEW_SECONDS = 0.1


class Agent:
    """Moves lines between the test and the zygote."""

    def __init__(self, page: Page, zygote: Zygote, events: int) -> None:
        self.page, self.zygote, self.events = page, zygote, events
        self.renewing = True
        self.buffer = b""

    def run(self) -> None:
        """Serve until the test closes stdin, or the zygote is gone."""
        self.page.begin_lease(time.monotonic_ns())
        while True:
            ready, _, _ = select.select([0, self.zygote.fileno()], [], [], RENEW_SECONDS)
            if self.renewing:
                self.page.renew_lease(time.monotonic_ns())
            if self.zygote.fileno() in ready and not self.pass_events():
                return
            if 0 in ready and not self.pass_commands():
                return

    def pass_events(self) -> bool:
        """Write the zygote's events as lines; False after the last."""
        found = self.zygote.receive()
        for event in found:
            os.write(self.events, encode(event) + b"\n")
        return not any(isinstance(event, ZygoteExited) for event in found)

    def pass_commands(self) -> bool:
        """Hand whole lines to the zygote; False at the end of input."""
        part = os.read(0, 65536)
        *lines, self.buffer = (self.buffer + part).split(b"\n")
        for line in lines:
            if line == b"begin-lease":
                self.page.begin_lease(time.monotonic_ns())
            elif line == b"stop-renewing":
                self.renewing = False
            else:
                self.zygote.send(protocol.decode(line))  # type: ignore[arg-type]
        return bool(part)


def main() -> None:
    """Set up as the options on the command line say."""
    options = json.loads(sys.argv[1])
    page = Page.attach(options["page"])
    user = import_torch() if options["torch"] else {}
    if options["thread"]:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    if options["grpc"]:
        import grpc  # noqa: F401
    zygote = Zygote()
    zygote.start(ZygoteSettings(user_variables=user, **options["settings"]), page)
    Agent(page, zygote, options["events"]).run()
    os._exit(0)  # torch's teardown would only keep the test waiting


if __name__ == "__main__":
    main()
