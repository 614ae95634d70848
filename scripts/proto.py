"""Generates the wire's Python code from its .proto files, or checks that it is up to date.

`make proto` writes; `--check` generates into a temporary folder and compares. What protoc and
mypy-protobuf make lies in `v1/`, the frozen twins (`wire_twins`) in `messages/`, where nothing is
written by hand.
"""

from __future__ import annotations

import filecmp
import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

import wire_twins

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "proto"
PACKAGE = Path("holdfast_wire/v1")
TWINS = Path("holdfast_wire/messages")
GENERATED = {
    PACKAGE: ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi"),
    TWINS: ("*.py",),
}
"""Names of the files that are generated, by folder."""


def generate(target: Path) -> None:
    """Runs protoc with mypy-protobuf's plugins over every .proto file, and writes the twins."""
    protos = sorted(str(path.relative_to(INCLUDE)) for path in (INCLUDE / PACKAGE).glob("*.proto"))
    outputs = [f"--{kind}_out={target}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    plugins = [
        f"--plugin=protoc-gen-{name}={Path(sys.executable).parent / f'protoc-gen-{name}'}"
        for name in ("mypy", "mypy_grpc")
    ]
    described = target / "descriptors.pb"
    outputs += ["--include_source_info", f"--descriptor_set_out={described}"]
    protoc = [sys.executable, "-W", "ignore", "-m", "grpc_tools.protoc"]
    done = subprocess.run(
        [*protoc, f"-I{INCLUDE}", *plugins, *outputs, *protos],
        cwd=INCLUDE,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(f"proto: protoc failed\n{done.stderr}")
    try:
        twins = wire_twins.write(FileDescriptorSet.FromString(described.read_bytes()))
    except wire_twins.TwinError as error:
        sys.exit(f"proto: {error}")
    (target / TWINS).mkdir(parents=True)
    for name, source in twins.items():
        (target / TWINS / name).write_text(source, encoding="utf-8")


def generated_in(root: Path) -> dict[Path, Path]:
    """Maps each generated file under `root`, by its name relative to it, to its full path."""
    found = (
        path
        for folder, patterns in GENERATED.items()
        for pattern in patterns
        for path in (root / folder).glob(pattern)
    )
    return {path.relative_to(root): path for path in found}


def differences(fresh: dict[Path, Path], committed: dict[Path, Path]) -> list[str]:
    """Says, one line each, which files are missing, changed or left over."""
    lines = [f"{name} is missing" for name in fresh.keys() - committed.keys()]
    lines += [f"{name} comes from no .proto file" for name in committed.keys() - fresh.keys()]
    both = fresh.keys() & committed.keys()
    lines += [
        f"{name} is out of date"
        for name in both
        if not filecmp.cmp(fresh[name], committed[name], shallow=False)
    ]
    return sorted(lines)


def main() -> None:
    """Writes the generated code, or with `--check` exits with 1 where it would change."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh, committed = generated_in(Path(scratch)), generated_in(INCLUDE)
        changes = differences(fresh, committed)
        if sys.argv[1:] == ["--check"]:
            if changes:
                sys.exit("proto: run `make proto`\n" + "\n".join(changes))
            print(f"proto: {len(fresh)} generated files are up to date")
            return
        for name in committed.keys() - fresh.keys():
            committed[name].unlink()
        for name, path in fresh.items():
            (INCLUDE / name).write_bytes(path.read_bytes())
        print("\n".join(changes) or "proto: nothing changed")


if __name__ == "__main__":
    main()
