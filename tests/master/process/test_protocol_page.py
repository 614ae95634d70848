"""docs/reference/protocol.md says something about every message and every method."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast_wire import codec, roles
from holdfast_wire.identity import Identity, master_host
from holdfast_wire.messages import MESSAGES, GetJobRequest
from house.repository import ROOT
from masters.master_process import SPEC, master_process
from messages import certificates

NO_GO = 3
BUILD_SECONDS = 600

PAGE = (ROOT / "docs" / "reference" / "protocol.md").read_text()
ENUMS = sorted(
    {
        field.enum_type.name
        for kind in map(codec.proto_of, MESSAGES)
        for field in kind.DESCRIPTOR.fields
        if field.enum_type is not None
    }
)


def mentions(name: str) -> bool:
    """Return whether the page has the word, as code or in a heading."""
    return re.search(rf"(?<![A-Za-z]){re.escape(name)}(?![a-z])", PAGE) is not None


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_every_message_is_mentioned(name: str) -> None:
    """A reader finds each name that is on the wire."""
    assert mentions(name)


@pytest.mark.parametrize("name", [name for name in ENUMS if name != "BudgetKind"])
def test_every_enum_is_mentioned(name: str) -> None:
    """Also what a field can be."""
    assert mentions(name)


@pytest.mark.parametrize("method", sorted(roles.ALLOWED))
def test_every_method_is_mentioned_with_its_service(method: str) -> None:
    """Ours and the libraries'."""
    _, service, name = method.split("/")
    assert mentions(name)
    assert mentions(service.removeprefix("holdfast.v1."))


def test_every_refusal_of_the_shell_is_mentioned() -> None:
    """Each ErrorInfo reason that the agent's and operator's streams can end with."""
    source = ROOT / "master" / "holdfast_master" / "server"
    names = ("agent_service.py", "operator_service.py", "sessions.py", "authz.py", "rpc.py")
    text = "".join((source / name).read_text() for name in names)
    reasons = set(re.findall(r'"([A-Z]{2,}(?:_[A-Z]+)+)"', text)) - {"NO_SPEC"}
    assert len(reasons) > 5
    assert not [reason for reason in reasons if f"`{reason}`" not in PAGE]


def built_grpcurl() -> str:
    """Return the path of the grpcurl that the tests build; skips where there is no Go."""
    tool = [str(ROOT / "scripts" / "go_tool.sh"), "grpcurl"]
    built = subprocess.run(tool, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    if built.returncode == NO_GO:
        pytest.skip(built.stderr.strip())
    assert built.returncode == 0, built.stderr
    return built.stdout.strip()


@pytest.mark.extended(
    "builds grpcurl, a minute of two cores, to try four lines of a page",
    held_by=[
        "master/unit/server/test_roles.py::test_reflection_lists_the_services_and_their_files",
        "master/process/test_protocol_page.py::test_every_method_is_mentioned_with_its_service",
    ],
)
@pytest.mark.slow
def test_grpcurl_works_as_the_page_says(tmp_path: Path) -> None:
    """With the flags of the page: list, describe, a call, a refusal with its reason."""
    grpcurl = shutil.which("grpcurl") or built_grpcurl()
    with master_process(tmp_path, initial_spec=SPEC) as master:
        tls = certificates.issue(tmp_path, Identity("j1", "user"))
        files = ["-cacert", tls / "ca.pem", "-cert", tls / "cert.pem", "-key", tls / "key.pem"]
        base = [grpcurl, *map(str, files), "-authority", master_host("j1")]

        def call(*arguments: str) -> str:
            done = subprocess.run(
                [*base, *arguments], capture_output=True, text=True, timeout=30, check=False
            )
            return done.stdout + done.stderr

        address = f"127.0.0.1:{master.port}"
        assert "holdfast.v1.JobService" in call(address, "list").splitlines()
        assert "rpc WatchJob" in call(address, "describe", "holdfast.v1.JobService")
        assert '"phase": "JOB_PHASE_WAITING"' in call(address, "holdfast.v1.JobService/GetJob")
        assert "SERVING" in call(address, "grpc.health.v1.Health/Check")
        assert "NO_OPERATOR" in call(
            "-d", '{"replicas": 3}', address, "holdfast.v1.JobService/Scale"
        )
        assert master.ask("GetJob", GetJobRequest()).status.name == "job"
