"""One rank's training state as a list: boxes of named global tensors, and values.

Belongs here: what can be listed, by whatever framework keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from holdfast.flash.memory.shard_table import Path

if TYPE_CHECKING:
    import torch

OWN_BUFFERS: Final = "buffers"
"""First key of the buffers that each rank keeps for itself; the second one names the rank."""
REPLICAS: Final = "replicas"
"""First key of the state of one replica of several that differ; the second one is its number."""
OWN_BYTES: Final = 64 * 2**10
"""Bytes of a plain buffer that is saved per rank, at most: 16,384 channels of a BatchNorm."""


def name_of(path: Path) -> str:
    """Return the name of what lies under these keys of the nested state."""
    return ".".join(map(str, path))


def constant(value: Any) -> Callable[[], Any]:
    """Return a reader of a value that stays."""
    return lambda: value


class StateError(Exception):
    """The state holds a value that cannot be saved exactly; the message names it."""


@runtime_checkable
class Stateful(Protocol):
    """Common interface of schedulers, data loaders and torch's own Stateful."""

    def state_dict(self) -> Any:
        """Return the state."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Load the state."""


@dataclass(frozen=True, slots=True)
class GlobalBox:
    """An N-D box of a global tensor."""

    shape: tuple[int, ...]
    """Shape of the global tensor."""
    offsets: tuple[int, ...]
    """First element of the box in each dimension. Its sizes are the local tensor's."""


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """A tensor, and the place to find it again without a walk."""

    path: Path
    holder: Mapping[Any, Any]
    key: Any
    tensor: torch.Tensor
    trained: bool = False
    """It changes in `optimizer.step()` only."""
    buffer: bool = False
    """A module's buffer: ranks may have different values, such as BatchNorm's statistics."""
    synced: bool = False
    """DDP gives all ranks rank 0's values of this buffer before each forward pass."""
    own: bool = False
    """True: each rank has its own, under a name of its own."""
    box: GlobalBox | None = None
    """Place of the tensor in a global one; None: its kind tells (plain, or a DTensor)."""
    stored: bool = True
    """False: another rank stores this box, and this one needs it at a start only."""
    alike: bool = True
    """False: ranks that have the same elements may have them unlike."""
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", name_of(self.path))


def is_plain(value: Any) -> bool:
    """Return True for a strided tensor of torch's own classes: its bytes are all of it."""
    import torch

    known = type(value) in (torch.Tensor, torch.nn.Parameter)
    return known and value.layout is torch.strided and not value.is_quantized


def is_own(leaf: TensorLeaf) -> bool:
    """Return True if a buffer goes back to each rank with its own values: a plain and small one."""
    return leaf.buffer and is_plain(leaf.tensor) and leaf.tensor.nbytes <= OWN_BYTES


def of_rank(leaf: TensorLeaf, rank: int) -> TensorLeaf:
    """Return a buffer's leaf under its name for one rank."""
    return replace(leaf, path=(OWN_BUFFERS, f"rank_{rank}", *leaf.path), own=True)


def in_replica(path: Path) -> Path:
    """Return a path without the two keys that name a replica; the same path if it has none."""
    return path[2:] if path[:1] == (REPLICAS,) else path


@dataclass(frozen=True, slots=True)
class ValueLeaf:
    """A value that is no tensor; each save reads it anew."""

    path: Path
    read: Callable[[], Any]
    own: bool = False
    """True: a value of `per_rank`."""
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", name_of(self.path))


def is_common(leaf: ValueLeaf) -> bool:
    """Return True if all ranks should have the same value: not for a module's own state."""
    return not leaf.own and leaf.path[0] != "model"


@dataclass(slots=True)
class Leaves:
    """All tensors and values to save, and the signs of a changed structure."""

    tensors: list[TensorLeaf] = field(default_factory=list)
    values: list[ValueLeaf] = field(default_factory=list)
    counts: list[tuple[Any, int]] = field(default_factory=list)
    """Containers and their lengths."""
    links: list[tuple[Mapping[Any, Any], Any, Any]] = field(default_factory=list)
    """(holder, key, object) of each leaf's place. If the script replaces an object as a whole, the
    old one would otherwise still be read, and it would not change any more."""
    optimizers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Prefix of an optimizer's names → its classes (`optimizers.classes_of`)."""
    watched: list[tuple[Mapping[Any, Any], Any, torch.Tensor]] = field(default_factory=list)
    """(holder, key, tensor) of tensors that boxes are views of: another one, or other memory, makes
    a new plan necessary."""

    def add_box(
        self,
        path: Path,
        values: torch.Tensor,
        shape: Sequence[int],
        offsets: Sequence[int],
        *,
        trained: bool = True,
        stored: bool = True,
        alike: bool = True,
    ) -> None:
        """Add an N-D box of a global tensor.

        Args:
            path: Keys of the global tensor in the nested state, such as `("model", "head.weight")`
                or `("optimizer", "state", "head.weight", "exp_avg")`. Joined by dots they are its
                name. All ranks give it the same dtype and shape.
            values: The box's elements, a view of the memory that training uses; its shape is the
                box's sizes. A save copies from it and a load copies into it.
            shape: Shape of the global tensor.
            offsets: First element of the box in each dimension.
            trained: The values change in `optimizer.step()` only, so that a save may copy them
                during the next forward and backward.
            stored: False: another rank adds the same elements with True. This one stores none, and
                starts from memory only if some node's memory has them.
            alike: Of the model and the optimizer, the elements that several ranks have are compared
                by the first save to storage. False: they may differ, such as the statistics of a
                normalization, and all ranks get those that are stored.
        """
        key, box = len(self.tensors), GlobalBox(tuple(shape), tuple(offsets))
        leaf = TensorLeaf(path, {key: values}, key, values, trained=trained, box=box)
        self.tensors.append(replace(leaf, stored=stored, alike=alike))

    def add_value(self, path: Path, read: Callable[[], Any]) -> None:
        """Add a small value that is no tensor: numbers, text, and containers of them.

        Args:
            path: Its keys in the nested state, as in `add_box`. Ranks with the name have it equal.
            read: Returns the value of the moment; every save calls it.
        """
        self.values.append(ValueLeaf(path, read))

    def watch(self, holder: Mapping[Any, Any], key: Any) -> None:
        """Plan anew once `holder[key]`, a tensor that boxes are views of, is another one."""
        self.watched.append((holder, key, holder[key]))
