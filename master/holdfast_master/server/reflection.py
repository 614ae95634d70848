"""gRPC server reflection, so that grpcurl works without the .proto files.

The package serves v1alpha only; v1 has the same messages under another name, and newer clients ask
for it first.
"""

from __future__ import annotations

from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from holdfast_wire.v1 import agent_pb2, job_pb2, operator_pb2

_SERVICES = (
    agent_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name,
    operator_pb2.DESCRIPTOR.services_by_name["OperatorService"].full_name,
    job_pb2.DESCRIPTOR.services_by_name["JobService"].full_name,
    "grpc.health.v1.Health",
)
NAMES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


def handlers() -> list[grpc.GenericRpcHandler]:
    """Return what a server registers."""
    servicer: Any = reflection.aio.ReflectionServicer((*_SERVICES, *NAMES))
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return [
        grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method})
        for name in NAMES
    ]
