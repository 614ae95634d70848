"""One HTTP request to a metadata service. Blocks, never longer than its deadline.

The services are link-local: no proxy of the environment is asked, and no redirect followed.
"""

from __future__ import annotations

import dataclasses
import http
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Final

from holdfast_agent.notices.errors import SourceError

CONNECT_SECONDS: Final = 2.0
"""Deadline of an answer that need not wait for a change: the services are on the same machine."""
_MOST_BYTES: Final = 256 * 1024
_CHUNK: Final = 16 * 1024


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)


@dataclasses.dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer of any status."""

    status: int
    body: str
    headers: Mapping[str, str]
    """Names in small letters."""

    @property
    def ok(self) -> bool:
        """True: the status is 200."""
        return self.status == http.HTTPStatus.OK


def ask(
    url: str,
    headers: Mapping[str, str],
    *,
    method: str = "GET",
    seconds: float = CONNECT_SECONDS,
) -> HttpAnswer:
    """Send a request.

    Args:
        url: Address, http or https.
        headers: Headers of the request.
        method: HTTP method; no request has a body.
        seconds: Deadline of the whole answer, s.

    Raises:
        SourceError: There was no answer in time, or none of HTTP.
    """
    request = urllib.request.Request(url, headers=dict(headers), method=method)  # noqa: S310 - checked
    until = time.monotonic() + seconds
    try:
        try:
            response = _OPENER.open(request, timeout=seconds)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            body = _read(response, url, until)
            told = {name.lower(): value for name, value in response.headers.items()}
            return HttpAnswer(response.status or 0, body, told)
    except (OSError, http.client.HTTPException) as error:
        raise SourceError(f"{method} {url}: {_reason(error)}") from error


def _read(
    response: http.client.HTTPResponse | urllib.error.HTTPError, url: str, until: float
) -> str:
    parts: list[bytes] = []
    while chunk := response.read1(_CHUNK):
        parts.append(chunk)
        if time.monotonic() > until:
            raise SourceError(f"{url}: the answer took too long")
        if len(parts) * _CHUNK > _MOST_BYTES:
            raise SourceError(f"{url}: the answer is longer than {_MOST_BYTES} bytes")
    return b"".join(parts).decode(errors="replace")


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", "") or error) or type(error).__name__
