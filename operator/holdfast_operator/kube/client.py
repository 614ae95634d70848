"""Requests to the API server: raw JSON, each with a deadline, all under a rate limit.

The client library's models cost twice the CPU and memory, and its requests twice the CPU of these,
so only its configuration, its authentication and its TLS are used.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import json
import logging
import os
import random
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import prometheus_client as prometheus
import yaml
from kubernetes.aio import client as library
from kubernetes.aio import config as configuration
from pydantic_core import from_json

from holdfast_operator.kube.errors import ApiRefusedError, UnreachableError
from holdfast_operator.kube.rate_limit import TokenBucket

_log = logging.getLogger(__name__)
JSON: Final = "application/json"
MERGE: Final = "application/merge-patch+json"
YAML: Final = "application/yaml"
"""Content type for an object whose bytes the API server keeps and compares: it writes YAML anew, as
it does after a patch of the metadata. It keeps JSON as it came, and later finds a difference."""
APPLY: Final = "application/apply-patch+yaml"
MANAGER: Final = "holdfast-operator"
"""Field manager of everything that the operator writes."""
_DEADLINE_SECONDS: Final = 15.0
"""Deadline of one request; the API server itself gives up a write after 34 s."""
_RETRIES: Final = 4
_FIRST_RETRY_SECONDS: Final = 0.1
_RETRY_FACTOR: Final = 2.5
"""Pauses of 0.1, 0.25, 0.6 and 1.6 s: shorter than a Lease may wait for its renewal."""
_BUFFER_BYTES: Final = 2**21
"""Of what was received and not read yet: more than the largest object, so that a watch does not
read in pieces."""
_TOGETHER_SECONDS: Final = 0.05
"""A watch reads at most once in this time. Else each event of a storm would wake the process, and
cost several times as much as one of many that are read together. One that comes alone does not
wait."""
_ERROR: Final = 400
REQUESTS: Final = prometheus.Counter(
    "holdfast_operator_api_requests_total",
    "Requests to the API server, watches included, by method and code of the answer; 0: none came.",
    ["method", "code"],
)
_RULES_SINCE: Final = (1, 35)
_NO_DIGIT: Final = re.compile(r"\D")
"""Anything but a digit: some providers' version is 35+."""


class KubeClient:
    """The API server, with this process's account."""

    def __init__(self, rate: float, burst: int) -> None:
        """Make a client for `rate` requests a second, `burst` at once; `open` finds the server."""
        self._bucket = TokenBucket(rate, burst, float(burst), time.monotonic())
        self._api: Any = None
        self._session: aiohttp.ClientSession | None = None
        self._starts_again: bool | None = None

    async def open(self) -> None:
        """Read the configuration: the pod's, else the user's kubeconfig."""
        settings = library.Configuration()
        load: Any = configuration
        if os.environ.get("KUBERNETES_SERVICE_HOST"):
            load.load_incluster_config(client_configuration=settings)
        else:
            # By name: the library itself reads the variable when it is imported.
            file = os.environ.get("KUBECONFIG")
            await load.load_kube_config(config_file=file, client_configuration=settings)
        make: Any = library.ApiClient
        self._api = make(configuration=settings)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=settings.connection_pool_maxsize, ssl=self._api.rest_client.ssl_context
            ),
            read_bufsize=_BUFFER_BYTES,
            # Else aiohttp asks for a proxy in a thread before each request.
            trust_env=_needs_proxy(settings.host),
        )

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
        if self._api is not None:
            await self._api.close()

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = JSON,
        *,
        may_repeat: bool = True,
    ) -> Any:
        """Make one request; return the parsed answer.

        It is repeated a few times if the API server is in trouble. A look at a job takes a dozen
        requests, and would seldom complete in a storm of refusals. So every request must be one
        that may be done twice, or say that it may not.

        Raises:
            ApiRefusedError: The API server answered with an error.
            UnreachableError: The API server did not answer in time.
        """
        wait = _FIRST_RETRY_SECONDS
        for _ in range(_RETRIES if may_repeat else 0):
            try:
                return await self._once(method, path, body, content_type)
            except ApiRefusedError as error:
                if not error.is_trouble:
                    raise
                _log.info("%s; again in %.1f s", error, wait)
            await asyncio.sleep(wait * random.uniform(0.75, 1.25))  # noqa: S311 - jitter
            wait *= _RETRY_FACTOR
        return await self._once(method, path, body, content_type)

    async def find(self, path: str) -> dict[str, Any] | None:
        """Return an object; None: it does not exist. Raises KubeError."""
        try:
            found: dict[str, Any] = await self.call("GET", path)
        except ApiRefusedError as error:
            if error.code != http.HTTPStatus.NOT_FOUND:
                raise
            return None
        return found

    async def make(self, path: str, body: dict[str, Any], content_type: str = JSON) -> bool:
        """Make an object; False: there is one of its name, which stays. Raises KubeError."""
        try:
            await self.call("POST", path, body, content_type)
        except ApiRefusedError as error:
            if not error.exists:
                raise
            return False
        return True

    async def _once(self, method: str, path: str, body: Any, content_type: str) -> Any:
        await asyncio.sleep(self._bucket.take(time.monotonic()))
        what = f"{method} {path}"
        try:
            async with asyncio.timeout(_DEADLINE_SECONDS):
                response = await self._send(method, path, body, content_type, _DEADLINE_SECONDS)
                return _parsed(what, response.status, await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise UnreachableError(f"{what}: {str(error) or type(error).__name__}") from error

    async def starts_again(self) -> bool:
        """Return True if a container can have a restart rule: since Kubernetes 1.35.

        Before 1.34 the API server refuses the fields, in 1.34 it usually drops them.

        Raises:
            KubeError: The API server did not answer.
        """
        if self._starts_again is None:
            said = await self.call("GET", "/version")
            digits = [_NO_DIGIT.sub("", str(said.get(part, ""))) for part in ("major", "minor")]
            major, minor = (int(text or 0) for text in digits)
            self._starts_again = (major, minor) >= _RULES_SINCE
        return self._starts_again

    async def watch(self, path: str, patience_s: float) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of a watch until it ends.

        Args:
            path: Path with its query.
            patience_s: Time without data after which the connection counts as dead.

        Raises:
            ApiRefusedError: The watch was refused, or ended with an ERROR event (410 among them).
            UnreachableError: the connection broke or fell silent.
        """
        what = f"watch {path}"
        try:
            # A watch that falls silent has an open connection.
            with contextlib.closing(await self._send("GET", path, None, JSON, None)) as response:
                if response.status >= _ERROR:
                    _parsed(what, response.status, await response.read())
                rest = b""
                while chunk := await _within(patience_s, response.content.readany()):
                    # Not by lines: a line longer than the reader's buffer would break the watch.
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield _event(what, _read(line))
                    await _leave_unread(response)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise UnreachableError(f"{what}: {str(error) or type(error).__name__}") from error

    async def _send(
        self, method: str, path: str, body: Any, content_type: str, deadline_s: float | None
    ) -> aiohttp.ClientResponse:
        settings = self._api.configuration
        headers = {"Content-Type": content_type, "Accept": JSON, **self._api.default_headers}
        token = (await settings.auth_settings()).get("BearerToken")
        if token is not None and token["value"]:
            headers["Authorization"] = token["value"]
        code = 0
        try:
            response = await self._opened.request(
                method,
                f"{settings.host}{path}",
                headers=headers,
                data=_written(body, content_type),
                timeout=aiohttp.ClientTimeout(total=deadline_s, sock_connect=_DEADLINE_SECONDS),
                proxy=settings.proxy,
                proxy_headers=settings.proxy_headers,
                server_hostname=settings.tls_server_name or None,
            )
            code = response.status
        finally:
            REQUESTS.labels(method, str(code)).inc()
        return response

    @property
    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is not open")
        return self._session


def only(uid: str) -> dict[str, Any]:
    """Return the options for deleting this very object, and no later one of its name."""
    return {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}


def without_managers(body: dict[str, Any]) -> dict[str, Any]:
    """Return an object without its `managedFields`: half of its size, and nobody reads them."""
    metadata = body.get("metadata")
    if not isinstance(metadata, dict) or "managedFields" not in metadata:
        return body
    kept = {name: value for name, value in metadata.items() if name != "managedFields"}
    return {**body, "metadata": kept}


def _written(body: Any, content_type: str) -> str | None:
    if body is None:
        return None
    return yaml.safe_dump(body) if content_type == YAML else json.dumps(body)


def _needs_proxy(host: str) -> bool:
    """Return True if the environment names a proxy for the API server."""
    url = urlsplit(host)
    named = url.scheme in urllib.request.getproxies()
    return named and not urllib.request.proxy_bypass(url.hostname or "")


async def _within(seconds: float, reading: Awaitable[bytes]) -> bytes:
    # Not `wait_for`: it loses a cancellation that comes together with data.
    async with asyncio.timeout(seconds):
        return await reading


async def _leave_unread(response: aiohttp.ClientResponse) -> None:
    """Let the kernel keep what comes next for a moment."""
    transport = response.connection.transport if response.connection is not None else None
    if transport is None:  # the answer has come to its end
        return
    transport.pause_reading()
    await asyncio.sleep(_TOGETHER_SECONDS)
    transport.resume_reading()


def _event(what: str, event: dict[str, Any]) -> dict[str, Any]:
    if event["type"] == "ERROR":
        status = event["object"]
        raise ApiRefusedError(
            what, status.get("code", 0), status.get("reason", ""), status.get("message", "")
        )
    return event


def _read(data: bytes) -> Any:
    """Return what JSON says, with one object for equal short texts: pods are full of them.

    In half the time of the standard library's; raises ValueError.
    """
    return from_json(data, cache_strings="all")


def _parsed(what: str, code: int, data: bytes) -> Any:
    try:
        answer = _read(data)
    except ValueError:
        answer = {"message": data[:500].decode(errors="replace")}
    if code >= _ERROR:
        raise ApiRefusedError(what, code, answer.get("reason", ""), answer.get("message", ""))
    return without_managers(answer)
