"""Plain values as JSON, exactly: tuples, keys that are no text, bytes and tensors too."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from typing import Any, Final

from holdfast.flash.tools.formats.foreign import ForeignError

_FLOAT: Final = struct.Struct(">d")


def to_json(value: Any) -> Any:
    """Return JSON values for a plain value; raises `ForeignError` for an object."""
    import torch

    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"f": _FLOAT.pack(value).hex()}  # JSON has no infinity
    if isinstance(value, list):
        return {"l": [to_json(one) for one in value]}
    if isinstance(value, tuple):
        return {"t": [to_json(one) for one in value]}
    if isinstance(value, set):
        return {"s": [to_json(one) for one in value]}
    if isinstance(value, Mapping):
        return {"d": [[to_json(key), to_json(one)] for key, one in value.items()]}
    if isinstance(value, bytes):
        return {"b": base64.b64encode(value).decode()}
    if isinstance(value, torch.Tensor):
        body = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        dtype = str(value.dtype).removeprefix("torch.")
        return {"T": [dtype, list(value.shape), base64.b64encode(body).decode()]}
    raise ForeignError(f"a {type(value).__name__} is no plain data")


def from_json(value: Any) -> Any:
    """Return the value that `to_json` made JSON of."""
    if not isinstance(value, dict):
        return value
    ((kind, body),) = value.items()
    match kind:
        case "f":
            return _FLOAT.unpack(bytes.fromhex(body))[0]
        case "l":
            return [from_json(one) for one in body]
        case "t":
            return tuple(from_json(one) for one in body)
        case "s":
            return {from_json(one) for one in body}
        case "d":
            return {from_json(key): from_json(one) for key, one in body}
        case "b":
            return base64.b64decode(body)
        case _:
            return _tensor(*body)


def _tensor(dtype: str, shape: list[int], text: str) -> Any:
    import torch

    body = bytearray(base64.b64decode(text))
    kind = getattr(torch, dtype)
    flat = torch.frombuffer(body, dtype=kind) if body else torch.empty(0, dtype=kind)
    return flat.view(shape)
