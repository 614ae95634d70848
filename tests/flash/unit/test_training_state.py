"""Which key of a saved mapping is which part, and which parameter a number means."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.flash.tools.formats.foreign import ForeignError, ForeignTensor, whole
from holdfast.flash.tools.formats.pickles import Pickles
from holdfast.flash.tools.formats.recognise import recognise
from holdfast.flash.tools.formats.training_state import BY_NAME, Keys, arrange, names_of
from holdfast.flash.tools.inspect import look


def _tensor(*shape: int) -> ForeignTensor:
    """Return a tensor that nobody reads."""
    return whole((), "float32", shape, "", lambda: pytest.fail("it was read"))


def test_decay_groups_are_told_by_shape() -> None:
    """Weights in one group, biases and norms in another, as most scripts cut them."""
    model = {"a.weight": (4, 4), "a.bias": (4,), "n.weight": (4,), "b.weight": (4, 4)}
    shapes = {0: (4, 4), 1: (4, 4), 2: (4,), 3: (4,)}
    found = names_of([[0, 1], [2, 3]], shapes, model)
    assert found == {0: "a.weight", 1: "b.weight", 2: "a.bias", 3: "n.weight"}


@pytest.mark.parametrize(
    ("groups", "shapes", "said"),
    [
        ([[0], [1]], {0: (4,), 1: (4,)}, "2 of them of shape (4,) can be any of 2"),
        ([[0]], {0: (4,)}, "1 of them of shape (4,) can be any of 2"),
        ([[0], [1]], {0: (4,), 1: None}, "of shape (4,) can be any of 2"),
    ],
)
def test_numbers_that_may_mean_several_parameters_stay_numbers(
    groups: list[list[int]], shapes: dict[int, Any], said: str
) -> None:
    """Two groups of one shape, a frozen layer beside one that trains, a parameter without state."""
    assert said in names_of(groups, shapes, {"a": (4,), "b": (4,)})


def test_an_ambiguous_optimizer_keeps_its_numbers_with_a_note() -> None:
    """A load refuses it then by name; weights can be taken alone."""
    state = {number: {"exp_avg": _tensor(4)} for number in (0, 1)}
    groups = [{"params": [0], "lr": 1.0}, {"params": [1], "lr": 2.0}]
    saved = {"model": {"a": _tensor(4), "b": _tensor(4)}}
    optimizer = {"state": state, "param_groups": groups}
    parts = arrange("x.pt", {**saved, "optimizer": optimizer}, BY_NAME)
    assert parts.state["optimizer"] == optimizer
    assert "--model-only" in parts.notes[0]


def test_a_key_without_the_part_is_refused_with_those_that_have_one() -> None:
    """The user has named it."""
    saved = {"model": {"a": _tensor(4)}, "ema": {"a": _tensor(4)}}
    assert arrange("x", saved, Keys(model="ema")).state["model"] == saved["ema"]
    with pytest.raises(ForeignError, match=r"--model emma: x has no .* are model, ema"):
        arrange("x", saved, Keys(model="emma"))


@pytest.mark.parametrize(
    "beside",
    [
        {"rng_state": _tensor(5056)},
        {"step": _tensor(), "extra": {"epoch": 1}},
        {"train_state": {"step": _tensor()}},
        {"opt": {"state": {0: {"exp_avg": _tensor(4)}}, "param_groups": [{"params": [0]}]}},
    ],
)
@pytest.mark.parametrize("model", [{"a": _tensor(4)}, [{"a": _tensor(4)}]])
def test_what_lies_beside_a_model_is_not_taken_for_it(model: Any, beside: dict[str, Any]) -> None:
    """A generator's state, a step, an optimizer: the one key that may be the model is named."""
    with pytest.raises(ForeignError, match=r"name its key with --model KEY, one of net$"):
        arrange("x", {"net": model, **beside}, BY_NAME)


@pytest.mark.parametrize(
    ("weights", "beside"),
    [
        (("weight", "bias"), {"train_state": {"step": _tensor()}}),
        (("cls_token", "head.weight"), {"ema": {"head.weight": _tensor(4)}}),
    ],
)
def test_weights_at_the_top_stay_the_model(weights: tuple[str, ...], beside: Any) -> None:
    """Of a single layer beside a step, and of modules beside an average of them."""
    model = {name: _tensor(4) for name in weights}
    parts = arrange("x", {**model, **beside}, BY_NAME)
    assert parts.state == {"model": model, "extra": beside}


@pytest.mark.parametrize("told", [["module.a", "module._orig_mod.b"], ["of", "another"]])
def test_names_in_the_optimizers_groups_are_the_models(told: list[str]) -> None:
    """The model loses the prefixes of its wrappers; names that it has not are not believed."""
    model = {"module.a": _tensor(4), "module.b": _tensor(2)}
    group = {"params": [0, 1], "param_names": told}
    optimizer = {"state": {0: {"exp_avg": _tensor(4)}}, "param_groups": [group]}
    parts = arrange("x", {"model": model, "optimizer": optimizer}, BY_NAME)
    assert parts.state["optimizer"]["param_groups"][0]["params"] == ["a", "b"]
    assert list(parts.state["optimizer"]["state"]) == ["a"]


@pytest.mark.parametrize(
    ("extra", "kept"), [(None, {"epoch": 1}), ("run 7", {"extra": "run 7", "epoch": 1})]
)
def test_an_extra_that_is_no_mapping_is_one_itself(extra: Any, kept: dict[str, Any]) -> None:
    """A script may save anything under that key; nothing is lost."""
    saved = {"model": {"a": _tensor(4)}, "extra": extra}
    assert arrange("x", {**saved, "epoch": 1}, BY_NAME).state["extra"] == kept
    assert arrange("x", saved, BY_NAME).state.get("extra", extra) == (
        None if extra is None else {"extra": extra}
    )


def test_lightnings_optimizer_is_an_optimizer() -> None:
    """In a list; as an extra it would be held in memory whole."""
    optimizer = {"state": {0: {"exp_avg": _tensor(4)}}, "param_groups": [{"params": [0]}]}
    saved = {"state_dict": {"a": _tensor(4)}, "optimizer_states": [optimizer]}
    state = arrange("x", saved, BY_NAME).state
    assert list(state["optimizer"]["state"]) == ["a"]
    assert "extra" not in state


@pytest.mark.parametrize("size", [0, 2**11])
def test_a_pickle_that_stands_for_more_than_memory_holds_is_refused_at_once(size: int) -> None:
    """A few bytes name a list twice, forty times; also beside kilobytes that are honest."""
    value: Any = "a"
    for _ in range(40):
        value = [value, value]
    body, began = pickle.dumps([value, b"x" * size]), time.process_time()
    with Pickles() as pickles:
        with pytest.raises(ForeignError, match="again and again"):
            pickles.read(body, "laughs.pt")
        assert pickles.read(pickle.dumps(["a"]), "fine.pt") == ["a"], "it is the same process"
    assert time.process_time() - began < 1


def test_what_a_pickle_has_twice_is_read_twice() -> None:
    """Honest ones share small values among many entries."""
    shared = {"dtype": "float32", "layout": (1, 2, 3)}
    value = [{"name": str(number), "properties": shared} for number in range(20_000)]
    with Pickles() as pickles:
        assert pickles.read(pickle.dumps(value), "metadata") == value
        with pytest.raises(ForeignError, match="not made of bytes"):
            pickles.read(pickle.dumps(_Zeros()), "zeros")


class _Zeros:
    def __reduce__(self) -> Any:
        return bytearray, (2**33,)


def test_an_empty_file_and_a_pickle_are_called_what_they_are(tmp_path: Path) -> None:
    """Neither is "a file, not a directory"."""
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "old.pt").write_bytes(pickle.dumps([1]))
    for name, said in (("empty.pt", "is empty: copy it again"), ("old.pt", "torch before 1.6")):
        with pytest.raises(ForeignError, match=said):
            look(str(tmp_path / name), lambda _: pytest.fail("there is no step"))
    assert "PK" in recognise("x", None, b"text").reason


@pytest.mark.parametrize("config", [None, {"sharded_backend": "torch_disu"}, {"sharded_bac": 1}])
def test_a_megatron_directory_is_never_read_as_torchs_own(config: dict[str, Any] | None) -> None:
    """A damaged metadata.json is named; one of somebody else beside torch's files is none."""
    names = [".metadata", "__0_0.distcp", "common.pt", "metadata.json"]
    verdict = recognise("x", names, config=config)
    assert not verdict.format
    assert "x/metadata.json" in verdict.reason
    assert "copy it again" in verdict.reason
    assert recognise("x", names, config={"sharded_backend": "torch_dist"}).format == "megatron"
    names.remove("common.pt")
    assert recognise("x", names, config={"trainer": "mine"}).format == "dcp"
