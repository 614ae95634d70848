"""Entry of a fresh interpreter where a fork is not possible: `bootstrap.py ROLE DESCRIPTOR …`.

The role `worker` is started by the zygote; the descriptor holds the worker's description. The role
`zygote` is started by an agent whose zygote has died; the descriptor holds a `FreshZygote`.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from holdfast.page import Page
from holdfast_agent.zygote import loop, preload
from holdfast_agent.zygote.child import run_fresh
from holdfast_agent.zygote.process_tree import die_with_parent
from holdfast_agent.zygote.protocol import Channel
from holdfast_agent.zygote.settings import FreshZygote
from holdfast_wire.datagrams import decode


def _be_worker(body: bytes, arguments: Sequence[str]) -> NoReturn:
    run_fresh(body, agent_pid=int(arguments[0]))


def _be_zygote(body: bytes, _: Sequence[str]) -> NoReturn:
    fresh = decode(body, (FreshZygote,))
    die_with_parent(fresh.agent)
    sys.path[:] = fresh.path
    if fresh.torch:
        preload.import_torch()
    channel = Channel(socket.socket(fileno=fresh.channel))
    loop.live(channel, Page.attach(fresh.page), fresh.settings, fresh.agent, fresh.problem)


_ROLES: Final = {"worker": _be_worker, "zygote": _be_zygote}


def main(role: str, descriptor: int, arguments: Sequence[str]) -> NoReturn:
    """Read the description and become what it describes; never returns."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        body = file.read()
    _ROLES[role](body, arguments)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
