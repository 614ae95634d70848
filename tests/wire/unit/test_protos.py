"""The .proto files, the code generated from them and the table of roles belong together."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from holdfast_wire import codec, keys, roles
from holdfast_wire.messages import MESSAGES
from holdfast_wire.v1 import agent_pb2, job_pb2, operator_pb2, peer_pb2
from house.repository import ROOT

SERVICES = {
    service.full_name: service
    for module in (agent_pb2, job_pb2, operator_pb2, peer_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
}
METHODS = {
    f"/{service.full_name}/{method.name}"
    for service in SERVICES.values()
    for method in service.methods
}
LIBRARY = {
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.health.v1.Health/List",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
}


def test_the_generated_code_is_up_to_date() -> None:
    """Generating anew with the pinned tools changes nothing."""
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    done = subprocess.run(
        [sys.executable, "scripts/proto.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_method_has_its_roles_and_no_other_has() -> None:
    """A method that nobody thought about may be called by nobody, so none may be forgotten."""
    assert set(roles.ALLOWED) == METHODS | LIBRARY


@pytest.mark.parametrize("method", sorted(METHODS | LIBRARY))
@pytest.mark.parametrize("role", keys.ROLES)
def test_a_role_may_call_what_the_table_says(method: str, role: str) -> None:
    """The refusal names role, method and who may."""
    refusal = roles.refusal(method, role)
    if role in roles.ALLOWED[method]:
        assert refusal is None
    else:
        assert refusal is not None
        assert role in refusal
        assert method in refusal


def test_agents_reach_nothing_but_the_agents_services() -> None:
    """A stolen agent certificate cannot scale, stop or watch the job."""
    for method in METHODS:
        service = method.split("/")[1]
        may = keys.ROLE_AGENT in roles.ALLOWED[method]
        assert may == (service in {"holdfast.v1.AgentService", "holdfast.v1.PeerService"})


def test_a_method_that_is_not_listed_is_served_to_nobody() -> None:
    """Whatever the role is."""
    for role in keys.ROLES:
        assert roles.refusal("/holdfast.v1.JobService/New", role)


def test_every_enum_has_an_unspecified_zero() -> None:
    """A field that was never set says so."""
    for name in MESSAGES:
        descriptor: Any = codec.proto_of(name).DESCRIPTOR
        for field in descriptor.fields:
            if field.enum_type is not None:
                assert field.enum_type.values_by_number[0].name.endswith("_UNSPECIFIED")
