"""The copy of the pods: complete after gaps, told of every change once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.errors import ApiRefusedError, UnreachableError
from holdfast_operator.kube.reflector import PodReflector, Reflector
from holdfast_operator.nodes.reflector import NodeReflector
from holdfast_operator.nodes.strikes import NodeStrike
from holdfast_operator.pods.record import PodRecord
from jobs.pod_objects import pod_object


def _pod(name: str, phase: str = "Running", version: int = 1, **edited: str) -> dict[str, Any]:
    pod = pod_object(index=int(name[-1]), job="gpt", phase=phase, name=name, uid=f"uid-{name}")
    pod["metadata"]["labels"] |= {f"holdfast.dev/{label}": text for label, text in edited.items()}
    pod["metadata"]["resourceVersion"] = str(version)
    return pod


class ScriptedServer(KubeClient):
    """An API server that answers lists and watches from a script, one after another."""

    def __init__(self, *script: Any) -> None:
        super().__init__(1000.0, 1000)
        self.script = list(script)
        self.paths: list[str] = []
        self.patience_s: list[float] = []
        """Of each watch."""
        self.exhausted = asyncio.Event()

    async def call(
        self, method: str, path: str, body: Any = None, content_type: str = "", **_: Any
    ) -> Any:
        """Answer a list: its pods, or an error."""
        self.paths.append(path)
        answer = await self._next()
        if isinstance(answer, Exception):
            raise answer
        more = {"continue": answer[1]} if isinstance(answer, tuple) else {}
        items = answer[0] if isinstance(answer, tuple) else answer
        return {"items": items, "metadata": {"resourceVersion": "7", **more}}

    async def watch(self, path: str, patience_s: float) -> AsyncIterator[dict[str, Any]]:
        """Answer a watch: its events, then an error or its end."""
        self.paths.append(path)
        self.patience_s.append(patience_s)
        for event in await self._next():
            if isinstance(event, Exception):
                raise event
            yield {"type": event[0], "object": event[1]}

    async def _next(self) -> Any:
        if not self.script:
            self.exhausted.set()
            await asyncio.Event().wait()
        return self.script.pop(0)


async def _until_used_up(reflector: Reflector, server: ScriptedServer) -> None:
    task = asyncio.create_task(reflector.run())
    await asyncio.wait_for(server.exhausted.wait(), 20.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _follow(*script: Any) -> tuple[PodReflector, list[tuple[str, bool]], ScriptedServer]:
    """Run a reflector until the script is used up."""
    server = ScriptedServer(*script)
    heard: list[tuple[str, bool]] = []

    def note(pod: PodRecord, gone: bool) -> None:  # noqa: FBT001 - the reflector's way
        heard.append((pod.name, gone))

    reflector = PodReflector(server, "", note)
    await _until_used_up(reflector, server)
    return reflector, heard, server


def _names(reflector: PodReflector) -> list[str]:
    return sorted(pod.name for pod in reflector.of(("team", "gpt")))


async def test_a_list_in_pages_and_a_watch_make_the_copy() -> None:
    """The next page is asked for by its token; events change the copy."""
    watch = [("MODIFIED", _pod("w-1", "Failed", 9)), ("DELETED", _pod("w-0", version=10))]
    reflector, heard, server = await _follow(([_pod("w-0")], "tok"), [_pod("w-1")], watch)
    assert _names(reflector) == ["w-1"]
    assert heard == [("w-0", False), ("w-1", False), ("w-1", False), ("w-0", True)]
    assert "continue=tok" in server.paths[1]
    assert "resourceVersion=7" in server.paths[2]


async def test_what_went_in_a_gap_is_told_as_gone() -> None:
    """After 410 there is no event for it: the new list is compared."""
    gap = ApiRefusedError("watch", 410, "Expired", "too old resource version")
    reflector, heard, _ = await _follow([_pod("w-0"), _pod("w-1")], [gap], [_pod("w-1")])
    assert _names(reflector) == ["w-1"]
    assert heard[-1] == ("w-0", True)
    assert heard.count(("w-1", False)) == 1


@pytest.mark.parametrize(
    ("edited", "left"),
    [({"job": "other"}, []), ({"index": "abc"}, []), ({"role": "eval"}, ["w-0"])],
)
@pytest.mark.parametrize("listed", [False, True])
async def test_a_pod_whose_labels_were_edited_is_gone_from_its_old_place(
    edited: dict[str, str], left: list[str], *, listed: bool
) -> None:
    """Its record must not stand still for ever, whether an event or a list tells of it."""
    changed = _pod("w-0", version=8, **edited)
    gap = ApiRefusedError("watch", 410, "Expired", "too old resource version")
    script: list[Any] = [[gap], [changed]] if listed else [[("MODIFIED", changed)]]
    reflector, heard, _ = await _follow([_pod("w-0")], *script)
    assert _names(reflector) == left
    assert heard[:2] == [("w-0", False), ("w-0", True)]
    readable = "index" not in edited
    assert heard[2:] == [("w-0", False)] * readable


async def test_a_watch_of_a_cluster_in_which_nothing_happens_is_no_dead_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """There are no bookmarks then: the API server ends it sooner than its silence counts."""
    server = ScriptedServer([_pod("w-0")], [], [], [])
    reflector = PodReflector(server, "", lambda *_: None)
    lives: list[float] = []
    reflector._alive = lambda: lives.append(1.0)  # type: ignore[method-assign]
    await _until_used_up(reflector, server)
    given = int(server.paths[-1].partition("timeoutSeconds=")[2].partition("&")[0])
    assert 20 <= given <= min(server.patience_s) - 20
    assert len(lives) == 1 + 3, "the list, and each end of a watch"
    assert caplog.records == []


async def test_a_pod_whose_labels_were_mended_is_back() -> None:
    """A pod that could not be read for a while is a pod like any other again."""
    broken, mended = _pod("w-0", version=8, index="abc"), _pod("w-0", version=9)
    events = [("MODIFIED", broken), ("MODIFIED", mended), ("DELETED", broken)]
    reflector, heard, _ = await _follow([_pod("w-0")], events)
    assert heard == [("w-0", False), ("w-0", True)] * 2
    assert _names(reflector) == []
    assert reflector.of(("team", "other")) == []


async def test_a_watch_that_ends_goes_on_where_it_was() -> None:
    """The API server ends watches by itself; nothing is listed again, bookmarks count."""
    bookmark = {"metadata": {"resourceVersion": "42"}}
    _, heard, server = await _follow([_pod("w-0")], [("BOOKMARK", bookmark)], [])
    assert "resourceVersion=42" in server.paths[-1]
    assert heard == [("w-0", False)]
    assert set(server.patience_s) == {90.0}, "longer than a watch"


@pytest.mark.parametrize(
    "error",
    [UnreachableError("refused"), ApiRefusedError("list", 500, "InternalError", "no leader")],
)
async def test_an_api_server_that_is_away_is_asked_again(error: Exception) -> None:
    """Nothing that is known is forgotten meanwhile."""
    reflector, heard, _ = await _follow([_pod("w-0")], [error], error, [_pod("w-0")])
    assert _names(reflector) == ["w-0"]
    assert heard == [("w-0", False)]


def _node(name: str, *taints: str, uid: str = "") -> dict[str, Any]:
    metadata = {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"taints": [{"key": key} for key in taints]}}


SPOT = "aws-node-termination-handler/spot-itn"


async def _nodes(*script: Any) -> tuple[NodeReflector, list[str], ScriptedServer]:
    """Run a reflector of nodes until the script is used up."""
    server = ScriptedServer(*script)
    heard: list[str] = []
    reflector = NodeReflector(server, heard.append)
    await _until_used_up(reflector, server)
    return reflector, heard, server


async def test_a_node_is_heard_of_when_its_notice_changes_and_not_else() -> None:
    """A kubelet writes its node every few minutes; nobody need know."""
    events = [
        ("MODIFIED", _node("a", "nvidia.com/gpu")),
        ("MODIFIED", _node("a", SPOT)),
        ("MODIFIED", _node("a", SPOT, "nvidia.com/gpu")),
        ("MODIFIED", _node("b")),
    ]
    reflector, heard, server = await _nodes([_node("a"), _node("b", SPOT)], events)
    assert heard == ["b", "a", "b"]
    assert reflector.names() == {"a", "b"}
    assert reflector.notice("a") is not None
    assert reflector.notice("b") is reflector.notice("unknown") is None
    assert server.paths[0].startswith("/api/v1/nodes?limit=")


async def test_a_node_that_is_gone_has_no_notice() -> None:
    """Deleted, gone in a gap of the watch, or made anew under its name."""
    gap = ApiRefusedError("watch", 410, "Expired", "too old resource version")
    first = [_node("a", SPOT), _node("b", SPOT), _node("c", SPOT)]
    again = [_node("c", SPOT, uid="new")]
    reflector, _, _ = await _nodes(first, [("DELETED", _node("a", SPOT)), gap], again)
    assert reflector.notice("a") is reflector.notice("b") is None
    assert reflector.notice("c") is not None


async def test_a_node_is_silent_while_the_cluster_does_not_hear_its_kubelet() -> None:
    """A kubelet that calls itself not ready is heard; a node that is gone is not silent."""
    events = [
        ("MODIFIED", _shown("a", Ready="False")),
        ("MODIFIED", _shown("a", Ready="Unknown")),
        ("MODIFIED", _shown("a", Ready="Unknown", GpuMemWatch="True")),
        ("MODIFIED", _shown("b", Ready="Unknown")),
        ("MODIFIED", _shown("b", Ready="True")),
        ("MODIFIED", _shown("c", Ready="Unknown")),
        ("DELETED", _shown("c", Ready="Unknown")),
    ]
    reflector, heard, _ = await _nodes([_shown("a", Ready="True"), _node("b"), _node("c")], events)
    assert reflector.silent() == {"a"}
    assert heard == ["a", "b", "b", "c", "c"]


async def test_a_missing_right_to_nodes_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Jobs do without their notices; the right may come later."""
    refused = ApiRefusedError("GET /api/v1/nodes", 403, "Forbidden", "may not list nodes")
    reflector, heard, _ = await _nodes(refused, refused, [_node("a", SPOT)])
    assert heard == ["a"]
    assert reflector.synced.is_set()
    said = [record.getMessage() for record in caplog.records if "no notices" in record.message]
    assert len(said) == 1
    assert "may not list nodes" in said[0]


def _shown(name: str, *, cordoned: bool = False, **conditions: str) -> dict[str, Any]:
    body = _node(name)
    body["spec"]["unschedulable"] = cordoned
    body["status"] = {
        "conditions": [
            {"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}
            for kind, status in conditions.items()
        ]
    }
    return body


async def test_what_speaks_against_a_node_is_reported_when_it_comes() -> None:
    """A condition also where it was there before; a cordon only when it is seen to come."""
    struck: list[tuple[str, str]] = []

    def note(strikes: Sequence[NodeStrike]) -> None:
        struck.extend((one.host, one.cause) for one in strikes)

    events = [
        ("MODIFIED", _shown("a", GpuMemWatch="True", Ready="True")),
        ("MODIFIED", _shown("a", cordoned=True, GpuMemWatch="True")),
        ("MODIFIED", _shown("a", cordoned=True, GpuMemWatch="True", GpuXidError="True")),
        ("MODIFIED", _shown("b")),
        ("MODIFIED", _shown("b", cordoned=True)),
        ("DELETED", _shown("b", cordoned=True)),
    ]
    listed = [_shown("a", GpuMemWatch="True"), _shown("b", cordoned=True)]
    server = ScriptedServer(listed, events)
    reflector = NodeReflector(server, lambda _: None, note)
    await _until_used_up(reflector, server)
    assert struck == [("a", "Condition"), ("a", "Cordon"), ("a", "Condition"), ("b", "Cordon")]
    assert reflector.names() == {"a"}
