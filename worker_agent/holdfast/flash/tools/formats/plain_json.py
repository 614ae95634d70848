"""Plain values as JSON, exactly: tuples, keys that are no text, bytes and tensors too."""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Mapping
from typing import Any, Final

from holdfast.flash.tools.formats.foreign import ForeignError
from holdfast.flash.trainer.values import decode_value

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
        file = io.BytesIO()
        torch.save(value, file)
        return {"T": base64.b64encode(file.getvalue()).decode()}
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
            return decode_value("a value", base64.b64decode(body))
