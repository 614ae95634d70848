"""A generator process: agents and watchers, told what to do by JSON lines on standard input.

Each line is answered by one line once it is done. Ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from bench.load.fleet import Fleet

NICER = 10
"""Steps of niceness below the master's."""


async def _connect(fleet: Fleet, say: dict[str, Any]) -> dict[str, Any]:
    await fleet.connect(range(say["first"], say["last"]), say.get("held"), say.get("slow"))
    return fleet.state()


async def _state(fleet: Fleet, _: dict[str, Any]) -> dict[str, Any]:
    return fleet.state()


async def _forget(fleet: Fleet, _: dict[str, Any]) -> dict[str, Any]:
    fleet.forget()
    return {}


async def _warm(fleet: Fleet, say: dict[str, Any]) -> dict[str, Any]:
    return {"at": await fleet.agent(say["rank"]).warm()}


async def _fail(fleet: Fleet, say: dict[str, Any]) -> dict[str, Any]:
    return {"at": await fleet.agent(say["rank"]).fail()}


async def _tell_loss(fleet: Fleet, say: dict[str, Any]) -> dict[str, Any]:
    return {"at": await fleet.agent(say["rank"]).tell_loss(say["loss"])}


async def _deafen(fleet: Fleet, say: dict[str, Any]) -> dict[str, Any]:
    fleet.agent(say["rank"]).deafen()
    return {}


async def _watch(fleet: Fleet, say: dict[str, Any]) -> dict[str, Any]:
    fleet.watch(say["count"], say["interval"], slow=say.get("slow", False))
    return {}


_COMMANDS: dict[str, Callable[[Fleet, dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]]] = {
    "connect": _connect,
    "state": _state,
    "forget": _forget,
    "warm": _warm,
    "fail": _fail,
    "tell_loss": _tell_loss,
    "deafen": _deafen,
    "watch": _watch,
}


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    setup = json.loads(await lines.readline())
    fleet = Fleet(setup["target"], setup["job_uid"], bytes.fromhex(setup["key"]), setup["ranks"])
    while line := await lines.readline():
        say = json.loads(line)
        answer = await _COMMANDS[say["do"]](fleet, say)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    await fleet.close()


def main() -> None:
    """Serve until standard input ends."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # Real agents are on machines of their own: where they share two cores, the master goes first.
    os.nice(NICER)
    asyncio.run(_serve())


if __name__ == "__main__":
    main()
