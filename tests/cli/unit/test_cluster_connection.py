"""API servers that the command line meets: tokens end, servers are away."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner

from cluster.kubelet.forward import forward
from cluster.kubelet.refusals import refuse
from holdfast_cli.cluster.connection import Connection
from holdfast_cli.cluster.find import connect
from holdfast_cli.cluster.kubeconfig import Where
from holdfast_cli.errors import JobNotFoundError, MasterUnreachableError
from holdfast_cli.main import main


class _Server(http.server.BaseHTTPRequestHandler):
    """Knows one token, and answers by the path."""

    token = "new"

    def do_GET(self) -> None:
        """Answer."""
        known = self.headers["Authorization"] == f"Bearer {self.token}"
        code = int(self.path.removeprefix("/")) if known else 401
        data = json.dumps({"message": "why", "path": self.path}).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    """A server of this machine; its address."""
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    made.server_close()
    thread.join(10)


def _environ(tmp_path: Path, server: str, token: str) -> dict[str, str]:
    (tmp_path / "token").write_text(token)
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"tokenFile": "token"}}],
    }
    (tmp_path / "config").write_text(json.dumps(config))
    return {"KUBECONFIG": str(tmp_path / "config"), "HOLDFAST_HOME": str(tmp_path)}


@pytest.fixture
def connection(tmp_path: Path, server: str) -> Iterator[Connection]:
    """A connection whose token the server does not know."""
    with contextlib.closing(connect(_environ(tmp_path, server, "old"), Where())) as made:
        yield made


def test_a_token_that_has_ended_is_read_again(tmp_path: Path, connection: Connection) -> None:
    """A watcher outlives the tokens of clouds, an hour each."""
    (tmp_path / "token").write_text("new")
    assert connection.get("/200")["path"] == "/200"


def test_a_token_that_is_not_known_is_tried_once_more_only(connection: Connection) -> None:
    """Then the person hears it."""
    with pytest.raises(MasterUnreachableError, match="log in to it again"):
        connection.get("/200")


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        (404, JobNotFoundError, "why"),
        (403, MasterUnreachableError, "the namespace's role `edit`"),
        (500, MasterUnreachableError, "why"),
    ],
)
def test_each_answer_has_its_error(
    tmp_path: Path, connection: Connection, code: int, error: type[Exception], said: str
) -> None:
    """The code of an answer decides the error. The error's text names the cluster."""
    (tmp_path / "token").write_text("new")
    with pytest.raises(error, match=said) as caught:
        connection.get(f"/{code}")
    assert "cluster c (http://127.0.0.1:" in str(caught.value)


def test_a_misspelt_job_is_not_found_where_the_cluster_is_away(tmp_path: Path) -> None:
    """Here it is not, and there nobody answers: one sentence says both."""
    environ = _environ(tmp_path, "http://127.0.0.1:1", "t")
    done = CliRunner().invoke(main, ["status", "gtp"], env=environ)
    assert done.exit_code == 3
    assert "no job called 'gtp'" in done.output
    assert "cluster c (http://127.0.0.1:1)" in done.output


def test_a_chosen_cluster_that_is_away_is_said(tmp_path: Path) -> None:
    """Whoever names a namespace means the cluster."""
    environ = _environ(tmp_path, "http://127.0.0.1:1", "t")
    for words in (["status", "gpt", "-n", "team"], ["status", "-n", "team"]):
        done = CliRunner().invoke(main, words, env=environ)
        assert done.exit_code == 4, done.output
        assert "cluster c (http://127.0.0.1:1)" in done.output


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


async def _close(server: asyncio.Server, _: web.Application) -> None:
    server.close()


async def _pass_on(request: web.Request) -> web.StreamResponse:
    # As the API server: it renames the parameter, and passes the client's headers on.
    renamed = request.clone(rel_url=request.rel_url.with_query(port=request.query["ports"]))
    return await forward(renamed, functools.partial(asyncio.open_connection, "127.0.0.1"))


@pytest.fixture
def node() -> Iterator[tuple[str, int]]:
    """The address of a node's server behind an API server, and a port of its pod that echoes."""
    application = web.Application(middlewares=[refuse])
    application.router.add_get("/api/v1/namespaces/team/pods/master/portforward", _pass_on)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)

    async def start() -> tuple[str, int]:
        echo = await asyncio.start_server(_echo, "127.0.0.1", 0)
        runner.app.on_cleanup.append(functools.partial(_close, echo))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port: int = echo.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{runner.addresses[0][1]}", port

    loop = asyncio.new_event_loop()
    address = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield address
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def test_a_kubelet_that_takes_no_media_type_forwards_a_port(
    tmp_path: Path, node: tuple[str, int]
) -> None:
    """Real kubelets answer 406 to a websocket that accepts JSON alone."""
    server, port = node
    with (
        contextlib.closing(connect(_environ(tmp_path, server, "any"), Where())) as made,
        socket.socket(socket.AF_UNIX) as there,
    ):
        made.forward("team", "master", port, tmp_path / "socket")
        there.settimeout(10)
        there.connect(str(tmp_path / "socket"))
        there.sendall(b"there and back")
        assert there.recv(100) == b"there and back", made.failure
