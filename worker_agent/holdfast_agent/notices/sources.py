"""Sources of notices: which address is asked, with which headers, and how often.

The services are link-local: no proxy of the environment is asked, and no redirect followed. Reads
block, never longer than their deadline.
"""

from __future__ import annotations

import dataclasses
import http
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

from holdfast_agent.config import notice_sources
from holdfast_agent.policies import notices
from holdfast_agent.policies.notices import Notice


class SourceError(Exception):
    """A source did not answer, or not in a form that is documented; the text has its address."""


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


def ask(
    url: str, headers: Mapping[str, str], *, method: str = "GET", seconds: float = CONNECT_SECONDS
) -> HttpAnswer:
    """Send a request without a body; raises SourceError if no answer of HTTP comes in time.

    seconds: Deadline of the whole answer, s.
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


Parse = Callable[[str], Notice | None]

_GCE: Final = {"Metadata-Flavor": "Google"}
_GCE_WAIT_SECONDS: Final = 30.0
"""How long a request waits at the service for a change."""
_GCE_PAUSE_SECONDS: Final = 0.5
"""Bounds the requests to a proxy that does not wait."""
_AWS_TOKEN_SECONDS: Final = 21_600
"""Lifetime of a token, the longest that there is; a new one is asked for after half of it."""
_AZURE: Final = {"Metadata": "true"}
_AZURE_EVENTS: Final = "/metadata/scheduledevents?api-version=2020-07-01"
_AZURE_NAME: Final = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_MOST_FILE_BYTES: Final = 4096
_FILE_CLOCK_SECONDS: Final = 0.1
"""The kernel stamps a new file with its last tick, up to 10 ms before the write; a virtual machine
that is not given its core ticks later still."""


class Source(Protocol):
    """One thing that is asked again and again, on one thread."""

    name: str
    """For people and for the wire; no other source has it."""
    pause_seconds: float
    """Between an answer and the next question."""

    def read(self) -> Notice | None:
        """Return the present notice; None: there is none. Blocks up to its deadline.

        Raises:
            SourceError: The source does not answer.
            ValueError: Its answer has no documented form.
        """


class GceKey:
    """One key of GCE's metadata server, which answers when the key's value changes."""

    def __init__(self, base: str, key: str, parse: Parse) -> None:
        """`key`: below `instance/`."""
        self.name = f"gce {key}"
        self.pause_seconds = _GCE_PAUSE_SECONDS
        self._url = f"{base}/computeMetadata/v1/instance/{key}"
        self._parse = parse
        self._tag = ""

    def read(self) -> Notice | None:
        """Return the notice: at once the first time, then when it has changed, or after a while."""
        url, seconds = self._url, CONNECT_SECONDS
        if self._tag:
            wait = f"wait_for_change=true&timeout_sec={_GCE_WAIT_SECONDS:.0f}"
            url, seconds = f"{url}?{wait}&last_etag={quote(self._tag)}", seconds + _GCE_WAIT_SECONDS
        tag, self._tag = self._tag, ""  # after a failure the value is asked for at once
        answer = _checked(ask(url, _GCE, seconds=seconds), url)
        # Whatever answers at a borrowed address, only the real server says so.
        if answer.headers.get("metadata-flavor") != "Google":
            raise SourceError(f"{self._url}: no metadata server of GCE answers there")
        self._tag = answer.headers.get("etag", tag)
        # Without a tag there is nothing that the service could wait for.
        self.pause_seconds = _GCE_PAUSE_SECONDS if self._tag else 1.0
        return self._parse(answer.body)


class AwsPath:
    """One path of AWS's metadata service, version 2: with a token. 404 means no notice."""

    pause_seconds = 2.0
    """The notice comes two minutes ahead; AWS asks to look every 5 s."""

    def __init__(self, base: str, path: str, name: str, parse: Parse) -> None:
        """`path`: below `/latest/meta-data/`."""
        self.name = f"aws {name}"
        self._base = base
        self._url = f"{base}/latest/meta-data/{path}"
        self._parse = parse
        self._token = ""
        self._renew_at = 0.0

    def read(self) -> Notice | None:
        """Return the notice."""
        answer = self._ask()
        if answer.status == http.HTTPStatus.UNAUTHORIZED:
            self._token = ""
            answer = self._ask()
        if answer.status == http.HTTPStatus.NOT_FOUND:
            return None
        return self._parse(_checked(answer, self._url).body)

    def _ask(self) -> HttpAnswer:
        if not self._token or time.monotonic() >= self._renew_at:
            url = f"{self._base}/latest/api/token"
            lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(_AWS_TOKEN_SECONDS)}
            self._token = _checked(ask(url, lifetime, method="PUT"), url).body.strip()
            self._renew_at = time.monotonic() + _AWS_TOKEN_SECONDS / 2
        return ask(self._url, {"X-aws-ec2-metadata-token": self._token})


class AzureEvents:
    """Azure's Scheduled Events of this VM."""

    pause_seconds = 1.0
    """As Azure asks: a preemption is announced 30 s ahead."""
    name = "azure scheduled events"

    def __init__(self, base: str) -> None:
        """`base`: address of the metadata service."""
        self._base = base
        self._vm = ""

    def read(self) -> Notice | None:
        """Return the gravest notice about this VM."""
        if not self._vm:
            self._vm = self._get(_AZURE_NAME).strip()
        return notices.azure_events(self._get(_AZURE_EVENTS), self._vm)

    def _get(self, path: str) -> str:
        url = f"{self._base}{path}"
        return _checked(ask(url, _AZURE), url).body


class NoticeFile:
    """A file that anybody may write."""

    pause_seconds = 0.5
    name = "file"

    def __init__(self, path: str) -> None:
        """A file that is older than this object is about an agent before this one."""
        self._path = Path(path)
        self._began = time.time() - _FILE_CLOCK_SECONDS

    def read(self) -> Notice | None:
        """Return the notice; a missing file has none."""
        try:
            with self._path.open("rb") as file:
                body = file.read(_MOST_FILE_BYTES).decode(errors="replace")
                written = self._path.stat().st_mtime
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SourceError(f"{self._path}: {error.strerror or error}") from error
        try:
            return notices.file_notice(body, written, self._began)
        except ValueError as error:
            raise ValueError(f"{self._path}: {error}") from error


def _checked(answer: HttpAnswer, url: str) -> HttpAnswer:
    if answer.status != http.HTTPStatus.OK:
        raise SourceError(f"{url}: status {answer.status}")
    return answer


_AWS_ACTION: Final = ("spot/instance-action", "instance-action", notices.aws_instance_action)
_AWS_REBALANCE: Final = ("events/recommendations/rebalance", "rebalance", notices.aws_rebalance)
_QUESTIONS: Final[dict[str, tuple[Callable[[str], Source], ...]]] = {
    notice_sources.GCE: (
        lambda base: GceKey(base, "preempted", notices.gce_preempted),
        lambda base: GceKey(base, "maintenance-event", notices.gce_maintenance),
    ),
    notice_sources.AWS: (
        lambda base: AwsPath(base, *_AWS_ACTION),
        lambda base: AwsPath(base, *_AWS_REBALANCE),
    ),
    notice_sources.AZURE: (AzureEvents,),
    notice_sources.FILE: (NoticeFile,),
}


def sources(named: Mapping[str, str]) -> tuple[Source, ...]:
    """Return the questions to the named sources: see `notice_sources.parse`."""
    return tuple(make(where) for kind, where in named.items() for make in _QUESTIONS[kind])
