"""The agent asks real HTTP servers that answer as the clouds' metadata services do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from holdfast_agent.config.notice_sources import parse
from holdfast_agent.notices.sources import Source, SourceError, ask, sources
from holdfast_agent.notices.watch import NoticeWatch
from holdfast_agent.policies.notices import Notice
from holdfast_wire.messages import NoticeKind, NoticeReceived

EVENTS = "/metadata/scheduledevents"


class Cloud:
    """One metadata service of each cloud, on one port."""

    def __init__(self) -> None:
        self.preempted = "FALSE"
        self.maintenance = "NONE"
        self.action: str | None = None
        self.rebalance: str | None = None
        self.events: list[dict[str, object]] = []
        self.token = "first"
        self.flavor = "Google"
        self.asked: list[str] = []
        self.refused: list[str] = []
        """Paths of requests for a token that were refused."""
        self.changed = threading.Condition()
        self.version = 0
        self.url = ""

    def change(self, **values: object) -> None:
        """Change answers; who waits for a change is answered."""
        with self.changed:
            for name, value in values.items():
                setattr(self, name, value)
            self.version += 1
            self.changed.notify_all()


class _Handler(BaseHTTPRequestHandler):
    cloud: Cloud
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        ttl = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
        found = self.path == "/latest/api/token" and ttl is not None
        if not found:
            self.cloud.refused.append(self.path)
        self._say(200 if found else 400, self.cloud.token)

    def do_GET(self) -> None:
        self.cloud.asked.append(self.path)
        parts = urlsplit(self.path)
        if parts.path.startswith("/computeMetadata/v1/instance/"):
            self._gce(parts.path.rpartition("/")[2], parse_qs(parts.query))
        elif parts.path.startswith("/latest/meta-data/"):
            self._aws(parts.path.removeprefix("/latest/meta-data/"))
        else:
            self._azure(parts.path, parse_qs(parts.query))

    def _gce(self, key: str, query: dict[str, list[str]]) -> None:
        if self.headers.get("Metadata-Flavor") != "Google":
            self._say(403, "")
            return
        name = {"preempted": "preempted", "maintenance-event": "maintenance"}[key]
        with self.cloud.changed:
            if query.get("wait_for_change") == ["true"]:
                tag = query["last_etag"][0]
                self.cloud.changed.wait_for(
                    lambda: getattr(self.cloud, name) != tag, float(query["timeout_sec"][0])
                )
            value = getattr(self.cloud, name)
        self._say(200, value, {"Metadata-Flavor": self.cloud.flavor, "ETag": value})

    def _aws(self, path: str) -> None:
        if self.headers.get("X-aws-ec2-metadata-token") != self.cloud.token:
            self._say(401, "")
            return
        found = {
            "spot/instance-action": self.cloud.action,
            "events/recommendations/rebalance": self.cloud.rebalance,
        }.get(path)
        self._say(404 if found is None else 200, found or "")

    def _azure(self, path: str, query: dict[str, list[str]]) -> None:
        if self.headers.get("Metadata") != "true" or "api-version" not in query:
            self._say(400, "")
        elif path == EVENTS:
            self._say(200, json.dumps({"DocumentIncarnation": 1, "Events": self.cloud.events}))
        else:
            self._say(200 if path == "/metadata/instance/compute/name" else 404, "vm-3")

    def _say(self, status: int, body: str, headers: dict[str, str] | None = None) -> None:
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    """A server that answers like the metadata services of all three clouds."""
    found = Cloud()
    handler = type("Handler", (_Handler,), {"cloud": found})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.change(preempted="end", maintenance="end")
    server.shutdown()
    thread.join()
    server.server_close()


def named(text: str) -> dict[str, Source]:
    """Return the sources of a HOLDFAST_NOTICES by their names."""
    return {source.name: source for source in sources(parse(text))}


def taken(notice: Notice | None) -> bool:
    """Return whether a notice makes its node leave because it is taken away."""
    return notice is not None and notice.kind is NoticeKind.PREEMPTION and not notice.stays


def test_gce_answers_when_the_value_changes(cloud: Cloud) -> None:
    """The second question waits at the service, as its documentation says."""
    key = named(f"gce@{cloud.url}")["gce preempted"]
    assert key.read() is None
    later = threading.Timer(0.2, cloud.change, kwargs={"preempted": "TRUE"})
    later.start()
    assert taken(key.read())
    later.join()
    assert cloud.asked[0].endswith("/instance/preempted")
    assert "wait_for_change=true" in cloud.asked[1]
    assert "last_etag=FALSE" in cloud.asked[1]


def test_gce_s_maintenance_has_a_key_of_its_own(cloud: Cloud) -> None:
    """A live migration leaves the node in place."""
    key = named(f"gce@{cloud.url}")["gce maintenance-event"]
    cloud.change(maintenance="MIGRATE_ON_HOST_MAINTENANCE")
    found = key.read()
    assert found is not None
    assert (found.kind, found.stays) == (NoticeKind.MAINTENANCE, True)


def test_a_server_that_is_not_gce_s_is_not_believed(cloud: Cloud) -> None:
    """It must name its flavour."""
    cloud.change(flavor="Vanilla", preempted="TRUE")
    with pytest.raises(SourceError, match="no metadata server of GCE"):
        named(f"gce@{cloud.url}")["gce preempted"].read()


def test_aws_is_asked_with_a_token(cloud: Cloud) -> None:
    """Another one follows when the service does not take it any more."""
    found = named(f"aws@{cloud.url}")
    action, rebalance = found["aws instance-action"], found["aws rebalance"]
    assert action.read() is None
    assert rebalance.read() is None
    cloud.change(
        token="second",
        action='{"action": "terminate", "time": "2017-09-18T08:22:00Z"}',
        rebalance='{"noticeTime": "2020-10-27T08:22:00Z"}',
    )
    assert taken(action.read())
    risk = rebalance.read()
    assert risk is not None
    assert risk.stays


def test_azure_is_asked_for_the_events_of_this_vm(cloud: Cloud) -> None:
    """The name is asked for once; events of others are none."""
    events = named(f"azure@{cloud.url}")["azure scheduled events"]
    assert events.read() is None
    preempt = {"EventType": "Preempt", "EventStatus": "Scheduled", "NotBefore": ""}
    cloud.events = [{**preempt, "Resources": ["vm-4"]}]
    assert events.read() is None
    cloud.events = [{**preempt, "Resources": ["vm-4", "vm-3"]}]
    assert taken(events.read())
    assert sum(path.startswith("/metadata/instance") for path in cloud.asked) == 1


def test_a_proxy_of_the_environment_is_not_asked(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The services are on the machine itself; a proxy would answer for its own."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    assert named(f"azure@{cloud.url}")["azure scheduled events"].read() is None


def test_a_service_that_does_not_answer_is_an_error_in_time() -> None:
    """A socket that listens and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        began = time.monotonic()
        with pytest.raises(SourceError, match=r"GET http://127\.0\.0\.1"):
            ask(url, {}, seconds=0.3)
        assert time.monotonic() - began < 5.0


def test_a_file_is_a_notice_from_its_writing_to_its_removal(tmp_path: Path) -> None:
    """And says what is wrong with it."""
    path = tmp_path / "notice-0"
    path.write_text("preemption")
    os.utime(path, (1.0, 1.0))
    (source,) = named(f"file:{tmp_path}/notice-{{node_rank}}").values()
    assert source.read() is None, "it is older than the agent"
    path.write_text("preemption 30 by hand")
    assert taken(source.read())
    path.write_text("what")
    with pytest.raises(ValueError, match=f"{path}: it begins with 'what'"):
        source.read()
    path.unlink()
    assert source.read() is None
    path.mkdir()
    with pytest.raises(SourceError, match="directory"):
        source.read()


def test_a_file_that_is_stamped_with_the_tick_before_the_agent_is_a_notice(tmp_path: Path) -> None:
    """The kernel's stamp of a file that was written just now is some milliseconds old."""
    path = tmp_path / "notice"
    (source,) = named(f"file:{path}").values()
    began = time.time()
    path.write_text("preemption")
    os.utime(path, (began - 0.02, began - 0.02))
    assert taken(source.read())


class Heard:
    """What a watch told the event loop."""

    def __init__(self, text: str) -> None:
        self.notices: list[NoticeReceived] = []
        self.withdrawn: list[str] = []
        self.watch = NoticeWatch(sources(parse(text)), self.notices.append, self.withdrawn.append)

    async def until(self, what: Callable[[], bool]) -> None:
        """Wait for something to be heard."""
        async with asyncio.timeout(20.0):
            while not what():  # noqa: ASYNC110 - other threads change it
                await asyncio.sleep(0.01)


async def test_a_watch_tells_of_a_notice_once_and_of_its_withdrawal(tmp_path: Path) -> None:
    """However often the source is asked."""
    path = tmp_path / "notice"
    heard = Heard(f"file:{path}")
    heard.watch.start()
    path.write_text("preemption 60 by hand")
    await heard.until(lambda: bool(heard.notices))
    path.write_text("preemption 50 by hand")
    path.unlink()
    await heard.until(lambda: bool(heard.withdrawn))
    heard.watch.stop()
    (notice,) = heard.notices
    assert (notice.source, notice.text, notice.stays) == ("file", "by hand", False)
    assert 30.0 < notice.seconds_left <= 60.0
    assert heard.withdrawn == ["file"]


async def test_a_missing_service_is_said_once_and_the_others_are_heard(
    cloud: Cloud, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine outside the named cloud: one line, and no traffic to speak of."""
    with caplog.at_level(logging.WARNING, "holdfast_agent.notices"):
        heard = Heard(f"aws@{cloud.url}/elsewhere,azure@{cloud.url}")
        heard.watch.start()
        await heard.until(lambda: len(cloud.refused) == 4)  # each path of AWS for a second time
        cloud.events = [{"EventType": "Preempt", "EventStatus": "Started", "Resources": ["vm-3"]}]
        await heard.until(lambda: bool(heard.notices))
        heard.watch.stop()
    assert [notice.source for notice in heard.notices] == ["azure scheduled events"]
    said = [r.getMessage() for r in caplog.records if "no notices from" in r.getMessage()]
    assert sorted(line.partition(":")[0] for line in said) == [
        "no notices from aws instance-action",
        "no notices from aws rebalance",
    ]
