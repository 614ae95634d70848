"""Refusals of a node's server that a real one has: by the headers and the query of a request.

A kubelet's routes declare no media type, so its router (go-restful) answers 406 unless the client
takes any: `application/json` alone gets nothing, not even a websocket. Its websockets end a
handshake whose subprotocols it does not know with 403.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

_ANY: Final = "*/*"
_MOST: Final = 65535


@web.middleware
async def refuse(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Serve what a kubelet would serve."""
    if not takes_anything(request.headers.get("Accept", "")):
        text = "406: Not Acceptable\n\nAvailable representations: "
        raise web.HTTPNotAcceptable(text=text)
    return await handler(request)


def takes_anything(accept: str) -> bool:
    """Return whether a client's Accept has any media type in it; none is that too."""
    return not accept or _ANY in (one.partition(";")[0].strip() for one in accept.split(","))


def ports(words: list[str]) -> list[int]:
    """Return the ports that a websocket asks for; raises HTTPBadRequest as a kubelet does."""
    if not words:
        raise web.HTTPBadRequest(text='query parameter "port" is required')
    numbers = [word for one in words for word in one.split(",")]
    for number in numbers:
        if not (number.isdecimal() and 1 <= int(number) <= _MOST):
            raise web.HTTPBadRequest(text=f'unable to parse "{number}" as a port')
    return [int(number) for number in numbers]
