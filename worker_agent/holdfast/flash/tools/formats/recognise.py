"""Decides which format a path has, by names alone, with its reason."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

_LOOKED: Final = {
    "holdfast": (r"holdfast\.json", "holdfast.json"),
    "megatron": (r"\.metadata", "metadata.json with sharded_backend torch_dist, and .metadata"),
    "dcp": (r"\.metadata", ".metadata"),
    "deepspeed-universal": (r"zero/.*", "zero/optimizer_state.pt"),
    "deepspeed": (
        r".*_optim_states\.pt|.*mp_rank_\d+_model_states\.pt",
        "*_optim_states.pt or mp_rank_*_model_states.pt",
    ),
    "torch-checkpointing": (r"metadata\.pkl|model_\d+\.pt", "metadata.pkl or model_<rank>.pt"),
    "safetensors": (r".*\.safetensors(\.index\.json)?", "*.safetensors"),
}
"""Format → a name that its directory has, and the same in words."""


@dataclass(frozen=True, slots=True)
class FormatVerdict:
    """A format, or none, and why."""

    format: str
    """Empty: unknown or ambiguous."""
    reason: str
    below: tuple[str, ...] = ()
    """Directories in it that have a checkpoint."""


def recognise(
    path: str,
    names: Collection[str] | None,
    head: bytes = b"",
    config: Mapping[str, object] | None = MappingProxyType({}),
    deeper: Collection[str] = (),
) -> FormatVerdict:
    """Return the format of a path.

    names: in the directory, those of `zero/` as "zero/<name>"; None: it is a file. head: first
    bytes of a file. config: content of `metadata.json`; empty: there is none; None: it is no JSON
    object. deeper: directories in it that have a checkpoint by their names.
    """
    if names is None:
        return _file(path, head)
    found = [
        kind
        for kind, (pattern, _) in _LOOKED.items()
        if any(re.fullmatch(pattern, name) for name in names)
        and (kind != "megatron" or (config or {}).get("sharded_backend") == "torch_dist")
    ]
    if found[:1] == ["holdfast"]:
        return FormatVerdict("holdfast", f"{path} has holdfast.json")
    if refusal := _parts_of_two(path, names) or _damaged_megatron(path, names, config):
        return FormatVerdict("", refusal)
    if "megatron" in found:
        found.remove("dcp")
    if "torch-checkpointing" in found and "safetensors" in found:
        found.remove("safetensors")  # an item may be written so
    if "deepspeed-universal" in found and "deepspeed" in found:
        found.remove("deepspeed")
    if len(found) == 1:
        return FormatVerdict(found[0], f"{path} has {_LOOKED[found[0]][1]}")
    if found:
        both = " and ".join(f"{_LOOKED[kind][1]} ({kind})" for kind in found)
        return FormatVerdict("", f"{path} has {both}: remove what belongs to another save")
    if deeper:
        why = (
            f"{path} holds no checkpoint itself: name one of {', '.join(sorted(deeper)[:5])} in it"
        )
        return FormatVerdict("", why, tuple(sorted(deeper)))
    looked = "; ".join(f"{what} ({kind})" for kind, (_, what) in _LOOKED.items())
    return FormatVerdict("", f"{path} has none of: {looked}. Name the directory of one save")


def _parts_of_two(path: str, names: Collection[str]) -> str:
    """Say that a directory has files of two saves of DeepSpeed, or nothing."""
    if not any(name.startswith("zero/") for name in names):
        return ""
    if not any(name.endswith("_optim_states.pt") for name in names):
        return ""
    return f"{path} has zero/ and *_optim_states.pt: remove those of one save"


def _damaged_megatron(
    path: str, names: Collection[str], config: Mapping[str, object] | None
) -> str:
    """Say why a directory of Megatron must not be read as one of torch, or nothing."""
    backend = (config or {}).get("sharded_backend")
    if not {".metadata", "metadata.json"}.issubset(names) or backend == "torch_dist":
        return ""
    if config is None:
        return f"{path}/metadata.json is no JSON object: copy it again"
    if "common.pt" in names:
        return (
            f"{path}/metadata.json names the sharded_backend {backend!r} "
            "beside Megatron's common.pt and .metadata, where torch_dist is read: copy it again"
        )
    return ""


def _file(path: str, head: bytes) -> FormatVerdict:
    if not head:
        return FormatVerdict("", f"{path} is empty: copy it again")
    if head.startswith(b"\x80"):
        return FormatVerdict(
            "",
            f"{path} begins as a pickle: torch before 1.6, or without its zip format, saves so. "
            "Load it with torch.load, and torch.save it again",
        )
    if head.startswith(b"PK\x03\x04"):
        return FormatVerdict("torch", f"{path} is an archive of torch.save")
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**32:
        return FormatVerdict("safetensors", f"{path} begins with a header of safetensors")
    return FormatVerdict(
        "",
        f"{path} begins neither as an archive of torch.save (PK) nor with a header of safetensors",
    )
