"""Refusals of a real kubelet that a client or a pod of ours can meet: of requests, and of starts.

A kubelet's routes declare no media type, so its router (go-restful) answers 406 unless the client
takes any: `application/json` alone gets nothing, not even a websocket.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

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


def refused_user(container: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    """Return why a container's user is refused; empty where it is not.

    An image's own user is not known here: without `runAsUser` it counts as none that is refused.
    """
    own, name = container.get("securityContext") or {}, "runAsNonRoot"
    if own.get(name, pod.get(name)) and own.get("runAsUser", pod.get("runAsUser")) == 0:
        return "container's runAsUser breaks non-root policy"
    return ""


def refused_path(source: Mapping[str, Any]) -> str:
    """Return why a hostPath volume is refused, by its type; empty where it is not."""
    path, kind = Path(source["path"]), source.get("type") or ""
    if kind == "Directory" and not path.is_dir():
        return f"hostPath type check failed: {path} is not a directory"
    if kind == "File" and not path.is_file():
        return f"hostPath type check failed: {path} is not a file"
    return ""
