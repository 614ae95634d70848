"""Every method of a running master, called by every role, and what reflection tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from grpc_reflection.v1alpha import reflection_pb2

from holdfast_master.inputs import PeerRefused
from holdfast_wire import channel, keys, roles
from holdfast_wire.authority import Credentials, JobAuthority
from holdfast_wire.identity import Identity
from masters.scripted_core import ScriptedCore
from masters.served import DEADLINE, JOB, OPERATOR, USER, Served, agent, refusal_of, serve
from messages import certificates
from messages.certificates import DAY

IDENTITIES = {
    keys.ROLE_AGENT: agent(0),
    keys.ROLE_USER: USER,
    keys.ROLE_OPERATOR: OPERATOR,
    keys.ROLE_MASTER: Identity(JOB, "master"),
}
STREAMED = {
    "/holdfast.v1.AgentService/Session",
    "/holdfast.v1.OperatorService/Sync",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
}
NOT_SERVED = {
    "/holdfast.v1.PeerService/GetRound",
    "/holdfast.v1.PeerService/DescribePart",
    "/holdfast.v1.PeerService/ReadPart",
    "/grpc.health.v1.Health/List",
}


async def outcome(served: Served, method: str, role: str, *, sends: bool = True) -> tuple[str, str]:
    """Call a method with wrong bytes; return the status code's name and ErrorInfo's reason."""
    # As a stream of one: every method is served as some kind of stream on the wire.
    made = served.channel(IDENTITIES[role])
    call: Any = made.stream_stream(method)(timeout=DEADLINE)
    try:
        if sends:
            await call.write(b"\xff\xff")
            await call.done_writing()
        await call.read()
    except grpc.RpcError as error:
        refusal = await refusal_of(raising(error))
        return refusal.code.name, refusal.reason
    return "OK", ""


async def raising(error: grpc.RpcError) -> None:
    """Raise what was caught."""
    raise error


@pytest.mark.parametrize("role", keys.ROLES)
async def test_the_table_of_roles_is_what_the_server_enforces(tmp_path: Path, role: str) -> None:
    """Refused with PERMISSION_DENIED where the table says so, and nowhere else."""
    async with serve(tmp_path, ScriptedCore()) as served:
        refused = set()
        for method, allowed in roles.ALLOWED.items():
            # A stream may be refused before its bytes are sent: gRPC then tells of that instead.
            refused_first = method in NOT_SERVED or (method in STREAMED and role not in allowed)
            code, reason = await outcome(served, method, role, sends=not refused_first)
            if method in NOT_SERVED:
                assert code == "UNIMPLEMENTED", method
            elif role in allowed:
                assert reason != "WRONG_ROLE", method
            else:
                assert (code, reason) == ("PERMISSION_DENIED", "WRONG_ROLE"), method
                refused.add(method)
        told = [item for item in served.core.inputs if isinstance(item, PeerRefused)]
        assert len(told) == len(refused)


async def test_a_peer_that_insists_is_counted_each_time_and_reported_once(tmp_path: Path) -> None:
    """A broken client does not fill the list of events."""
    async with serve(tmp_path, ScriptedCore()) as served:
        for _ in range(5):
            code, _ = await outcome(served, "/holdfast.v1.JobService/Scale", keys.ROLE_AGENT)
            assert code == "PERMISSION_DENIED"
        assert served.master.counters.refused["WRONG_ROLE"] == 5
        told = [item for item in served.core.inputs if isinstance(item, PeerRefused)]
        assert [item.text.partition(":")[0] for item in told] == ["agent 0"]


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_lists_the_services_and_their_files(tmp_path: Path, version: str) -> None:
    """Reflection answers grpcurl's first questions: the services, then the file of one."""
    method = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    async with serve(tmp_path, ScriptedCore()) as served:
        call: Any = served.channel(USER).stream_stream(
            method,
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )(timeout=DEADLINE)
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {service.name for service in (await call.read()).list_services_response.service}
        assert {
            "holdfast.v1.AgentService",
            "holdfast.v1.OperatorService",
            "holdfast.v1.JobService",
            "grpc.health.v1.Health",
        } <= names
        symbol = "holdfast.v1.JobService"
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol))
        files = (await call.read()).file_descriptor_response.file_descriptor_proto
        assert any(b"holdfast_wire/v1/job.proto" in file for file in files)
        await call.done_writing()


def forged(directory: Path, names: list[x509.GeneralName]) -> Path:
    """Write a certificate that the job's authority signed, with these names."""
    authority = JobAuthority(certificates.ROOT_KEY, JOB, certificates.now())
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        # From yesterday on: the TLS library's clock is coarse, and milliseconds behind this one.
        authority._builder(key.public_key(), certificates.now() - DAY, certificates.now() + DAY)
        .subject_name(x509.Name([]))
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .sign(authority._key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(
        encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    Credentials(authority.ca_pem, certificate.public_bytes(encoding), private).write(directory)
    return directory


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        (x509.DNSName("agent.j1.holdfast"), "UNAUTHENTICATED", "NO_IDENTITY"),
        (x509.UniformResourceIdentifier("https://j1/user"), "UNAUTHENTICATED", "NO_IDENTITY"),
        (x509.UniformResourceIdentifier("holdfast://j2/user"), "PERMISSION_DENIED", "OTHER_JOB"),
    ],
    ids=["no name", "a foreign name", "another job"],
)
async def test_a_certificate_without_our_names_opens_nothing(
    tmp_path: Path, name: x509.GeneralName, code: str, reason: str
) -> None:
    """Also where the authority itself signed it."""
    async with serve(tmp_path, ScriptedCore()) as served:
        tls = forged(tmp_path / "forged", [name])
        options = channel.master_channel_options(JOB)
        credentials = channel.channel_credentials(tls)
        target = f"127.0.0.1:{served.port}"
        async with grpc.aio.secure_channel(target, credentials, options=options) as made:
            check: Any = made.unary_unary("/grpc.health.v1.Health/Check")
            refusal = await refusal_of(check(b"", timeout=DEADLINE))
        assert (refusal.code.name, refusal.reason) == (code, reason)


async def test_a_method_that_does_not_exist_is_unimplemented(tmp_path: Path) -> None:
    """For every role the same."""
    async with serve(tmp_path, ScriptedCore()) as served:
        for role in keys.ROLES:
            code, _ = await outcome(served, "/holdfast.v1.JobService/Nothing", role, sends=False)
            assert code == "UNIMPLEMENTED"
