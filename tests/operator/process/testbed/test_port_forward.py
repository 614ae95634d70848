"""`kubectl port-forward` through the API server to pods: data both ways, and what ends it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.control_plane import ControlPlane
from cluster.forwarded import Forward
from cluster.kubectl import Kubectl
from cluster.nodes import Nodes
from cluster.rights import needs_pods

pytestmark = [pytest.mark.kube, needs_pods]
_ACK = """
import socket, threading
def serve(connection):
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
server = socket.create_server(("127.0.0.1", 7000))
while True:
    threading.Thread(target=serve, args=server.accept()[:1]).start()
"""
_TIMEOUT_SECONDS = 20.0


@pytest.fixture(scope="module")
def nodes(plane: ControlPlane) -> Iterator[Nodes]:
    """One node."""
    with Nodes(plane, count=1) as started:
        yield started


@pytest.fixture
def ack(plane: ControlPlane, nodes: Nodes, kubectl: Kubectl) -> str:
    """A pod that listens on its own loopback, behind a Service with another port."""
    account = ("get", "serviceaccount", "default")
    plane.until("the account", lambda: kubectl.try_run(*account).returncode == 0)
    ready = {"tcpSocket": {"port": 7000}, "periodSeconds": 1}
    container: dict[str, Any] = {"name": "c", "image": "local", "readinessProbe": ready}
    container["command"] = ["python", "-c", _ACK]
    head: dict[str, Any] = {"apiVersion": "v1", "metadata": {"name": "echo"}}
    head["metadata"]["labels"] = {"app": "echo"}
    pod = {**head, "kind": "Pod", "spec": {"containers": [container]}}
    pod["spec"]["terminationGracePeriodSeconds"] = 0
    ports = [{"port": 70, "targetPort": 7000}]
    service = {**head, "kind": "Service", "spec": {"selector": {"app": "echo"}, "ports": ports}}
    for one in (pod, service):
        kubectl.run("create", "-f", "-", stdin=one)
    kubectl.run("wait", "pod/echo", "--for=condition=Ready", "--timeout=30s")
    return "echo"


def _acked(port: int, data: bytes) -> bytes:
    """Send data, end the sending side and return all that comes back."""
    with socket.create_connection(("127.0.0.1", port), _TIMEOUT_SECONDS) as connection:

        def send() -> None:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)

        sending = threading.Thread(target=send)
        sending.start()
        found = bytearray()
        while received := connection.recv(65536):
            found += received
        sending.join(_TIMEOUT_SECONDS)
    return bytes(found)


@pytest.mark.parametrize("websockets", ["true", "false"])
def test_data_passes_in_both_directions(
    ack: str, kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch, websockets: str
) -> None:
    """A mebibyte, several at once, to a pod and by a Service; inside a websocket and bare."""
    monkeypatch.setenv("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets)
    data = bytes(range(256)) * 4096
    with Forward(kubectl, f"pod/{ack}", 7000) as forward:
        assert _acked(forward.port, data) == data
        assert _acked(forward.port, b"") == b""
        answers: dict[int, bytes] = {}

        def ask(number: int) -> None:
            answers[number] = _acked(forward.port, data[number:])

        asking = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for one in asking:
            one.start()
        for one in asking:
            one.join(_TIMEOUT_SECONDS)
        assert answers == {number: data[number:] for number in range(4)}
        assert forward.running
    with Forward(kubectl, f"svc/{ack}", 70) as forward:
        assert _acked(forward.port, b"by name") == b"by name"


def test_a_port_on_which_nobody_listens_is_named(ack: str, kubectl: Kubectl) -> None:
    """The person is told which, and why; kubectl gives up then."""
    with Forward(kubectl, f"pod/{ack}", 7001) as forward:
        assert _acked(forward.port, b"") == b""
        said = forward.last_words()
    assert "error forwarding port 7001" in said
    assert "Connect call failed" in said
    assert "lost connection to pod" in said


def test_a_forward_outlives_its_pod_until_it_is_used(ack: str, kubectl: Kubectl) -> None:
    """An open connection ends with the pod; the next one is told that nothing is there any more."""
    with Forward(kubectl, f"pod/{ack}", 7000) as forward:
        with socket.create_connection(("127.0.0.1", forward.port), _TIMEOUT_SECONDS) as connection:
            connection.sendall(b"here")
            assert connection.recv(4) == b"here"
            kubectl.run("delete", "pod", ack, "--timeout=30s")
            assert connection.recv(1) == b""
        if forward.running:  # a reset of the pod's socket would have ended it as well
            assert _acked(forward.port, b"") == b""
        said = forward.last_words()
    assert "error forwarding port 7000" in said
    assert "lost connection to pod" in said
    said = kubectl.try_run("port-forward", f"pod/{ack}", ":7000").stderr
    assert 'pods "echo" not found' in said
