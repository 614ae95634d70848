"""Sketches of a rank's data: what counts as alike on all ranks, and what does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed import fake_pg  # noqa: F401 - the backend "fake"

from holdfast.flash.memory.arena import BYTES_ROOM, SLOTS, Arena, geometry_of, in_memory
from holdfast.flash.memory.replica_check import ENTRY_BYTES, hash_of, unlike
from holdfast.flash.memory.shard_table import encode
from holdfast.flash.trainer.copier import Comparison, Copier
from holdfast.flash.trainer.leaves import Leaves, TensorLeaf
from holdfast.flash.trainer.planner import Planner, RankPosition
from holdfast.flash.trainer.replica_sketches import Compared, Sketcher
from holdfast.flash.trainer.state_dict import Parts, collect
from holdfast.flash.trainer.torch_shards import TorchShards

PLACE = RankPosition(rank=0, world=2, local_rank=0, local_world=2)


def tensor(values: torch.Tensor) -> bytes:
    """The sketch of one tensor."""
    leaf = TensorLeaf(("a",), {}, "a", values)
    return Sketcher([Compared(leaf, (0,) * values.dim())]).sketch({})


def value(value: Any) -> bytes:
    """The sketch of one value."""
    return Sketcher([]).sketch({"extra.a": value})


def are_alike(one: bytes, other: bytes) -> bool:
    """True if a commit takes both for equal."""
    return not list(unlike({0: one, 1: other}))


def randoms(count: int = 4096, seed: int = 0) -> torch.Tensor:
    """Random numbers."""
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("sketch", [tensor, value])
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64, torch.uint32])
def test_whole_numbers_must_be_equal(sketch: Any, dtype: torch.dtype) -> None:
    """Also where the difference is one thousandth, or beyond the bits of a float."""
    one = torch.arange(1000, 11_000).to(dtype)
    other = torch.arange(1001, 11_001).to(dtype)
    assert are_alike(sketch(one), sketch(one.clone()))
    assert not are_alike(sketch(one), sketch(other))


@pytest.mark.parametrize("sketch", [tensor, value])
def test_large_whole_numbers_and_truth_values_must_be_equal(sketch: Any) -> None:
    """Of 64 bits each one counts; of many truth values one that is sampled."""
    large = torch.tensor([2**62, 5])
    assert not are_alike(sketch(large), sketch(large + 1))
    mask = torch.ones(64, dtype=torch.bool)
    other = mask.clone()
    other[3] = False
    assert are_alike(sketch(mask), sketch(mask.clone()))
    assert not are_alike(sketch(mask), sketch(other))


@pytest.mark.parametrize("sketch", [tensor, value])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_floats_of_few_bits_may_round_otherwise(sketch: Any, dtype: torch.dtype) -> None:
    """In values as in tensors; numbers that have nothing to do with each other stay unlike."""
    one = randoms()
    near = one * (1 + 0.02 * (randoms(seed=1) > 0))
    assert are_alike(sketch(one.to(dtype)), sketch(near.to(dtype)))
    assert not are_alike(sketch(one.to(dtype)), sketch(randoms(seed=2).to(dtype)))


@pytest.mark.parametrize("number", [1e-9, 0.31, -17.0, 1e9])
@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_single_floats_differ_by_a_thousandth_at_most(number: float, kind: Any) -> None:
    """Beside numbers of any other size, which have the tolerance of their own."""

    def extra(factor: float) -> bytes:
        return value({"since": 1_764_136_000.0, "zero": 0.0, "best": kind(number * factor)})

    assert are_alike(extra(1.0), extra(1.0))
    assert are_alike(extra(1.0), extra(1.0 + 1e-4))
    assert not are_alike(extra(1.0), extra(1.01))
    assert not are_alike(extra(1.0), extra(-1.0))


def test_what_remains_of_equal_numbers_is_no_difference() -> None:
    """1e-17 is a rounded zero."""
    assert are_alike(value([0.5, 1e-17]), value([0.5, 0.0]))
    assert not are_alike(value([0.5, float("nan")]), value([0.5, 0.0]))


@pytest.mark.parametrize("sketch", [tensor, value])
def test_rounded_floats_in_8_bits_may_differ_by_a_quantum(sketch: Any) -> None:
    """Optimizers of 8 bits keep such states."""
    one = torch.randint(0, 256, (4096,), generator=torch.Generator().manual_seed(0))
    near = (one + (randoms() > 0)).clamp(max=255)
    assert are_alike(sketch(one.to(torch.uint8)), sketch(near.to(torch.uint8)))
    assert not are_alike(sketch(one.to(torch.uint8)), sketch(one.flip(0).to(torch.uint8)))


def test_a_value_with_floats_of_few_and_many_bits_has_a_tolerance_for_each() -> None:
    """A difference that 16 bits may have is one in 32."""
    one, near = randoms(), randoms() * 1.01
    mixed = value({"few": one.bfloat16(), "many": one})
    assert are_alike(mixed, value({"few": near.bfloat16(), "many": one}))
    assert not are_alike(mixed, value({"few": one.bfloat16(), "many": near}))
    assert len(mixed) == 2 * ENTRY_BYTES
    assert not are_alike(value({"a": 1.0, "b": 2.0}), value({"a": 2.0, "b": 1.0}))
    assert not are_alike(value([one, near * 2]), value([near * 2, one]))


@pytest.mark.parametrize("sketch", [tensor, value])
def test_numbers_close_to_zero_are_alike(sketch: Any) -> None:
    """They have few bits left; from a norm of 1e-30 on a difference counts."""
    least = torch.full((64,), 1.4e-45)
    assert are_alike(sketch(4 * least), sketch(5 * least))
    assert are_alike(sketch(4 * least), sketch(torch.zeros(64)))
    assert not are_alike(sketch(torch.full((64,), 1e-30)), sketch(torch.zeros(64)))
    assert not are_alike(sketch(torch.zeros(64)), sketch(torch.full((64,), float("nan"))))


def test_equal_values_are_alike_whatever_their_objects() -> None:
    """One list in two places is the same as two equal lists."""
    once, numbers = [1, 2], (3.0, "x")
    one = {"a": once, "b": once, "c": [numbers, numbers]}
    other = {"a": [1, 2], "b": [1, 2], "c": [(3.0, "x"), (3.0, "x")]}
    assert are_alike(value(one), value(other))
    assert not are_alike(value(one), value(other | {"b": [1, 3]}))


def test_a_value_that_contains_itself_has_a_sketch() -> None:
    """The same one on each rank."""

    def around(end: int) -> list[Any]:
        found: list[Any] = [end]
        found += [found] * 5000
        return found

    assert are_alike(value(around(1)), value(around(1)))
    assert not are_alike(value(around(1)), value(around(2)))


def _dtypes() -> list[torch.dtype]:
    found = {one for one in vars(torch).values() if isinstance(one, torch.dtype)}
    return sorted((one for one in found if ".q" not in str(one)), key=str)  # none can be saved


@pytest.mark.filterwarnings("ignore:.*Complex.* support is experimental")
@pytest.mark.parametrize("dtype", _dtypes(), ids=str)
@pytest.mark.parametrize("sketch", [tensor, value])
def test_a_tensor_of_any_type_has_a_sketch(sketch: Any, dtype: torch.dtype) -> None:
    """Whatever its strides; of a type that torch cannot convert, the type and shape."""
    made, again = (torch.zeros(8, 48, dtype=torch.uint8).view(dtype) for _ in range(2))
    assert are_alike(sketch(made), sketch(again))
    assert are_alike(sketch(made.t()), sketch(made.t()))
    other = torch.float16 if dtype is torch.float32 else torch.float32
    assert not are_alike(sketch(made), sketch(torch.zeros(made.shape, dtype=other)))


def test_strides_and_conjugation_do_not_count() -> None:
    """A matrix by columns, and a lazy view, have the sketch of the same values by rows."""
    one = randoms(48 * 48).view(48, 48)
    assert are_alike(tensor(one), tensor(one.t().contiguous().t()))
    assert not are_alike(tensor(one), tensor(one.t()))
    waves = torch.complex(randoms(), randoms(seed=1))
    assert are_alike(tensor(waves.conj()), tensor(waves.conj().resolve_conj()))


def _boxes(rank: int, *cut: tuple[int, int, torch.Tensor], **options: Any) -> bytes:
    """The sketches of a rank that has some columns of the tensor `model.tied`, row by row."""
    leaves = Leaves()
    for begin, end, whole in cut:
        path = options.get("path", ("model", "tied"))
        alike = options.get("alike", True)
        box = whole[:, begin:end]
        leaves.add_box(path, box, whole.shape, (0, begin), stored=rank == 0, alike=alike)
    place = RankPosition(rank=rank, world=2, local_rank=rank, local_world=2)
    return Sketcher(Planner(place).plan(leaves).compared).sketch({})


@pytest.mark.parametrize("cut", [((0, 96),), ((0, 40), (40, 96)), ((0, 7), (7, 56)), ((64, 96),)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_copies_of_a_box_are_compared_however_ranks_cut_it(
    cut: tuple[tuple[int, int], ...], dtype: torch.dtype
) -> None:
    """Tied embeddings on two stages lie in other ranges of their optimizers."""
    whole = (randoms(200 * 96) * 1000).view(200, 96).to(dtype)
    first = _boxes(0, (0, 48, whole), (48, 96, whole))
    assert are_alike(first, _boxes(1, *((*one, whole) for one in cut)))
    parted = (whole.double() * 2).to(dtype)
    found = list(unlike({0: first, 1: _boxes(1, *((*one, parted) for one in cut))}))
    assert found == [(hash_of("model.tied"), 0, 1)]


def test_a_few_elements_close_to_zero_are_not_judged_alone() -> None:
    """The whole tensor's size tells whether a difference is one."""
    whole = randoms(64 * 8).view(64, 8)
    whole[:8] = 1e-6
    near = whole.clone()
    near[:8] = 1.5e-6
    assert are_alike(_boxes(0, (0, 8, whole)), _boxes(1, (0, 8, near)))


@pytest.mark.parametrize("options", [{"alike": False}, {"path": ("local_sgd", "anchor", "w")}])
def test_boxes_that_may_differ_are_not_compared(options: dict[str, Any]) -> None:
    """Statistics of a normalization, and what replicas keep that are in other rounds."""
    one, other = randoms(96).view(2, 48), randoms(96, seed=1).view(2, 48)
    assert are_alike(_boxes(0, (0, 48, one), **options), _boxes(1, (0, 48, other), **options))


def test_all_copies_of_shards_are_compared() -> None:
    """Of a mesh with replicas each shard is on several ranks; of others a few shards are enough."""
    store = dist.HashStore()
    dist.init_process_group("fake", store=store, rank=0, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (2, 2))
        place = RankPosition(rank=0, world=4, local_rank=0, local_world=4)
        counts = []
        for placements in ([Replicate(), Shard(0)], [Shard(1), Shard(0)]):
            leaves = Leaves()
            for number in range(50):
                tensor = distribute_tensor(torch.ones(4, 4), mesh, placements)
                path = ("model", f"w{number}")
                leaves.tensors.append(TensorLeaf(path, {0: tensor}, 0, tensor))
            counts.append(len(Planner(place).plan(leaves).compared))
    finally:
        dist.destroy_process_group()
    assert counts == [50, 32]


def test_a_sketcher_reads_the_present_values() -> None:
    """Also of what it has a view of."""
    kept, turned = randoms(), randoms().view(64, 64).t()
    compared = [
        Compared(TensorLeaf((name,), {}, name, one), (0,) * one.dim())
        for name, one in (("kept", kept), ("turned", turned))
    ]
    sketcher = Sketcher(compared)
    before = sketcher.sketch({})
    assert sketcher.sketch({}) == before
    kept.mul_(2)
    turned.mul_(2)
    assert len(list(unlike({0: before, 1: sketcher.sketch({})}))) == 2


def test_all_samples_of_a_device_come_in_one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tensors and of values, whatever their types; whole numbers take a second one."""
    moved: list[torch.dtype] = []
    to_cpu = torch.Tensor.cpu

    def counted(self: torch.Tensor) -> torch.Tensor:
        moved.append(self.dtype)
        return to_cpu(self)

    monkeypatch.setattr(torch.Tensor, "cpu", counted)
    leaves = [TensorLeaf((f"t{at}",), {}, "t", randoms(seed=at)) for at in range(9)]
    sketcher = Sketcher([Compared(leaf, (0,)) for leaf in leaves])
    few = [randoms(seed=at).bfloat16() for at in range(9)]
    sketcher.sketch({"few": few, "more": {"a": randoms(), "b": randoms().to(torch.float8_e5m2)}})
    assert moved == [torch.float64]
    sketcher.sketch({"few": few, "numbers": [torch.arange(9), torch.arange(9).int()]})
    assert sorted(map(str, moved[1:])) == ["torch.float64", "torch.int64"]


def _state(count: int, extra: dict[str, Any]) -> Leaves:
    model = nn.Module()
    model.p = nn.ParameterList(nn.Parameter(torch.ones(2)) for _ in range(count))
    optimizer = torch.optim.AdamW(model.parameters())
    for one in model.parameters():
        moments = {"exp_avg": torch.ones(2), "exp_avg_sq": torch.ones(2)}
        optimizer.state[one] = {"step": torch.tensor(1.0), **moments}
    shards = TorchShards({"": model}, {"": optimizer})
    parts = Parts(shards=shards, extra=extra, per_rank={})
    return collect(parts, 0)


def _copier(leaves: Leaves) -> Copier:
    plan = Planner(PLACE).plan(leaves)
    body = encode(plan.table)
    fd = in_memory(body, geometry_of(plan.table, len(body), SLOTS, plan.bytes_room))
    return Copier(plan, leaves, Arena(fd))


def test_the_room_for_values_has_room_for_all_sketches() -> None:
    """Those of 460 parameters with AdamW are larger than the room for values alone."""
    copier = _copier(_state(460, {}))
    plain, sketched = copier.values(), copier.values(sketched=True)
    assert plain[-1] == b""
    assert len(sketched[-1]) > BYTES_ROOM
    assert sketched[:-1] == plain[:-1]


class _Fails:
    def state_dict(self) -> Any:
        raise RuntimeError("only on rank 0")

    def load_state_dict(self, state: Any) -> None:
        """Load it."""


def test_an_extra_whose_state_is_only_to_be_had_elsewhere_is_not_compared_here() -> None:
    """It fails no save of a rank that does not store it; where it is stored it fails as ever."""
    named: dict[str, Any] = {f"k{number}": _Fails() for number in range(20)}
    plan = Planner(PLACE).plan(_state(1, named))
    stored = {str(leaf.path[1]) for leaf in plan.values if leaf.path[0] == "extra"}
    others = {key: one for key, one in named.items() if key not in stored}
    assert others
    extra: dict[str, Any] = {**others, "fine": 1}
    assert len(_copier(_state(1, extra)).values(sketched=True)[-1]) >= ENTRY_BYTES
    one = next(iter(stored))
    with pytest.raises(RuntimeError, match="only on rank 0"):
        _copier(_state(1, {one: _Fails()})).values()


def test_ranks_are_compared_until_a_step_with_sketches_is_durable() -> None:
    """Neither a step without sketches ends that, nor a later one than a refused one."""
    comparison = Comparison()
    assert not comparison.is_over([5])
    comparison.carried(10)
    comparison.carried(30)
    assert not comparison.is_over([5, 20])
    assert comparison.is_over([5, 20, 30])
    assert comparison.is_over([])
