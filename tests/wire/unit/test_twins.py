"""The frozen twins are written from the .proto files, and load no sooner than they are needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

import wire_twins
from holdfast_wire import messages
from holdfast_wire.messages import CheckpointVersion, NodeMarked, SyncRequest
from house.repository import ROOT

F = FieldDescriptorProto


def described(
    shape: Callable[[FileDescriptorProto], object], comment: str = "Thing is one."
) -> FileDescriptorSet:
    """Return a file with one message, Thing, and its comments, after `shape` has added to it."""
    file = FileDescriptorProto(name="holdfast_wire/v1/thing.proto", package="holdfast.v1")
    file.message_type.append(DescriptorProto(name="Thing"))
    for path, text in (((2,), "Things."), ((4, 0), comment)):
        file.source_code_info.location.add(path=path, leading_comments=f" {text}\n")
    shape(file)
    return FileDescriptorSet(file=[file])


def field(name: str, kind: F.Type.ValueType) -> Callable[[FileDescriptorProto], object]:
    """Return what adds a field to Thing."""
    return lambda file: file.message_type[0].field.add(name=name, number=1, type=kind)


def with_enum(file: FileDescriptorProto) -> None:
    """Add an enum whose member lacks the prefix."""
    file.source_code_info.location.add(path=(5, 0), leading_comments=" Colour is one.\n")
    file.enum_type.add(name="Colour").value.add(name="RED", number=0)


def with_method(file: FileDescriptorProto) -> None:
    """Add a method whose request is not named after it."""
    own = ".holdfast.v1.Thing"
    service = file.service.add(name="Things")
    service.method.add(name="GetThing", input_type=own, output_type=own)


def with_equal_members(file: FileDescriptorProto) -> None:
    """Add a oneof in which two members are a Thing."""
    thing = file.message_type[0]
    thing.oneof_decl.add(name="content")
    for number in (1, 2):
        one = thing.field.add(name=f"m{number}", number=number, type=F.TYPE_MESSAGE)
        one.type_name, one.oneof_index = ".holdfast.v1.Thing", 0


@pytest.mark.parametrize(
    ("shape", "comment", "words"),
    [
        (field("from", F.TYPE_BOOL), "Thing is one.", "Thing.from is a keyword of Python"),
        (field("size", F.TYPE_FIXED64), "Thing is one.", "type of field size has no twin"),
        (with_enum, "Thing is one.", "Colour.RED must begin with COLOUR_"),
        (with_equal_members, "Thing is one.", "two members of Thing.content have one type"),
        (with_method, "Thing is one.", "Things.GetThing has to take GetThingRequest"),
        (lambda _: None, "Thing", "Thing needs a comment of whole sentences"),
        (lambda _: None, "Thing " * 30 + "ends.", "first sentence about Thing .* is too long"),
        (lambda _: None, "Thing has a \\.", "may not have a backslash"),
    ],
    ids=[
        "keyword",
        "fixed64",
        "prefix",
        "oneof",
        "method",
        "no comment",
        "long comment",
        "backslash",
    ],
)
def test_what_has_no_twin_is_refused_with_the_remedy(
    shape: Callable[[FileDescriptorProto], object], comment: str, words: str
) -> None:
    """The generator names the place in the .proto file instead of writing something else."""
    with pytest.raises(wire_twins.TwinError, match=words):
        wire_twins.write(described(shape, comment))


def test_a_comment_of_the_proto_stands_at_its_twin() -> None:
    """The .proto file is the only place where a comment is written: behind, or below if longer."""
    source = (ROOT / "proto/holdfast_wire/messages/journal.py").read_text()
    assert (NodeMarked.__doc__ or "").startswith("NodeMarked: draining, finished, released;")
    assert '    mark: str = ""  # draining, finished, released, replaced or promised.\n' in source
    assert '    more: bool = False\n    """The next record is of the same decision' in source


def test_a_oneof_has_the_comments_of_its_members() -> None:
    """They have no field of their own in the twin."""
    source = (ROOT / "proto/holdfast_wire/messages/operator.py").read_text()
    assert "message" in SyncRequest.__annotations__
    assert "StopRequest: The operator wants the job to end." in " ".join(source.split())


def test_versions_are_ordered_by_lineage_then_step() -> None:
    """The one message whose twins have an order."""
    versions = [CheckpointVersion(lineage=2, step=1), CheckpointVersion(lineage=1, step=9)]
    assert sorted(versions) == versions[::-1]


def loaded_after(code: str) -> set[str]:
    """Return which modules of twins a new interpreter has after `code`."""
    show = (
        "; import sys; print(*(n for n in sys.modules if n.startswith('holdfast_wire.messages.')))"
    )
    command = [sys.executable, "-c", code + show]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return {name.removeprefix("holdfast_wire.messages.") for name in done.stdout.split()}


def test_a_process_loads_the_twins_that_it_uses() -> None:
    """To make all of them takes longer than to import gRPC."""
    assert loaded_after("import holdfast_wire.messages, holdfast_wire.codec") == set()
    assert loaded_after("from holdfast_wire.messages import Fence, JobStatus") == {
        "checkpoint",
        "evidence",
        "fence",
        "job",
        "spec",
    }


def test_a_name_that_is_no_twin_is_refused() -> None:
    """As in a module that is not lazy, and `dir` knows all names."""
    with pytest.raises(AttributeError, match="has no attribute 'Fense'"):
        getattr(messages, "Fense")  # noqa: B009 - mypy knows that it is not there
    known = {*messages.MESSAGES, *messages.ENUMS, *messages.UNIONS}
    assert known <= set(dir(messages))
    assert all(getattr(messages, name) for name in known)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("fence.py", "holdfast_wire/messages/fence.py is out of date"),
        ("extra.py", "holdfast_wire/messages/extra.py comes from no .proto file"),
    ],
    ids=["edited", "added"],
)
def test_a_twin_that_was_written_by_hand_is_found(tmp_path: Path, name: str, line: str) -> None:
    """`make check` says what would be written otherwise."""
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    for folder in ("scripts", "proto"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    with (tmp_path / "proto/holdfast_wire/messages" / name).open("a") as file:
        file.write("X = 1\n")
    command = [sys.executable, "scripts/proto.py", "--check"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1
    assert line in done.stderr
