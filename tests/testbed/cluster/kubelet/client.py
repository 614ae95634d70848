"""The API server as a kubelet uses it: JSON requests, and a list that is kept up to date."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp

_log = logging.getLogger(__name__)
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
NOT_FOUND: Final = 404
CONFLICT: Final = 409
_ERROR: Final = 400
_TIMEOUT_SECONDS: Final = 10.0
_WATCH_SECONDS: Final = 240
_RETRY_SECONDS: Final = 0.3


class ApiError(RuntimeError):
    """The API server refused; `code` is its status code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Client:
    """The API server as one account sees it."""

    def __init__(self, url: str, token: str, ca: Path) -> None:
        self._session = aiohttp.ClientSession(
            url,
            headers={"Authorization": f"Bearer {token}"},
            connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=ca), limit=0),
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def call(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> Any:
        """Make one request; return its answer; raises ApiError and aiohttp.ClientError."""
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type}
        async with self._session.request(method, path, data=data, headers=headers) as response:
            text = await response.text()
            if response.status >= _ERROR:
                raise ApiError(response.status, text[:500])
            return json.loads(text)

    async def follow(self, path: str, heard: Callable[[str, Any], None], query: str = "") -> None:
        """Call `heard(type, object)` for all that is there and for every change, for ever."""
        known: dict[str, Any] = {}
        while True:
            try:
                await self._list_and_watch(path, query, known, heard)
            except (aiohttp.ClientError, ApiError, OSError, TimeoutError) as error:
                _log.info("watch of %s: %s; listing again", path, error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _list_and_watch(
        self, path: str, query: str, known: dict[str, Any], heard: Callable[[str, Any], None]
    ) -> None:
        listed = await self.call("GET", f"{path}?{query}")
        found = {one["metadata"]["uid"]: one for one in listed["items"]}
        for uid in known.keys() - found.keys():
            heard("DELETED", known.pop(uid))
        for uid, one in found.items():
            known[uid] = one
            heard("MODIFIED", one)
        version = listed["metadata"]["resourceVersion"]
        watch = f"{path}?{query}&watch=1&timeoutSeconds={_WATCH_SECONDS}&resourceVersion={version}"
        async for event in self.events(watch):
            one = event["object"]
            if event["type"] == "ERROR":
                raise ApiError(one.get("code", 0), str(one.get("message")))
            uid = one["metadata"]["uid"]
            if event["type"] == "DELETED":
                known.pop(uid, None)
            else:
                known[uid] = one
            heard(event["type"], one)

    async def events(self, path: str) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the events of a watch until it ends; raises as `call`."""
        rest = b""
        patience = aiohttp.ClientTimeout(total=None, sock_connect=_TIMEOUT_SECONDS)
        async with self._session.get(path, timeout=patience) as response:
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)
