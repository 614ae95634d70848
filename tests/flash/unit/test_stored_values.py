"""Stored values are decoded when they are asked for, once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from holdfast.flash.trainer.leaves import StateError
from holdfast.flash.trainer.values import StoredValues, encode_value, form_of


def _values(**given: Any) -> tuple[StoredValues, list[str]]:
    """Return stored values, and a list to which each read is added."""
    values, read = StoredValues(), list[str]()

    def reader(name: str, value: Any) -> Any:
        body = value if isinstance(value, bytes) else encode_value(name, value)

        def found() -> bytes:
            read.append(name)
            return body

        return found

    for name, value in given.items():
        values.add(name, reader(name, value))
    return values, read


def test_a_value_is_read_when_it_is_asked_for_and_once() -> None:
    """To look for a name, or to list names, reads nothing."""
    values, read = _values(one=1, other={"a": [2.5]})
    assert "one" in values
    assert "none" not in values
    assert sorted(values) == ["one", "other"]
    assert (len(values), read) == (2, [])
    assert (values["other"], values["other"]) == ({"a": [2.5]}, {"a": [2.5]})
    assert read == ["other"]


def test_equal_settings_have_their_own_containers() -> None:
    """Only what cannot change is shared between names with equal bytes."""
    values, _ = _values(one=[1], other=[1])
    values["one"].append(2)
    assert values["other"] == [1]


def test_true_and_one_stay_apart() -> None:
    """Values that compare equal have other bytes."""
    values, _ = _values(number=1, flag=True, real=1.0)
    assert [type(values[name]) for name in ("number", "flag", "real")] == [int, bool, float]


def test_what_is_no_data_is_refused_when_it_is_asked_for() -> None:
    """The message names the value."""
    values, _ = _values(bad=b"no zip at all")
    with pytest.raises(StateError, match="bad is no plain data"):
        values["bad"]


def test_a_value_is_replaced_and_dropped() -> None:
    """A value that was not decoded goes as well as one that was."""
    values, read = _values(one=1, other=2)
    values["one"] = 3
    del values["other"]
    assert (dict(values), read) == ({"one": 3}, [])
    with pytest.raises(KeyError):
        del values["other"]


@pytest.mark.parametrize(
    ("old", "new", "alike"),
    [
        (torch.arange(4), torch.arange(4), True),
        (torch.arange(4), torch.arange(1, 5), False),
        (torch.arange(4), torch.arange(4, dtype=torch.uint8), False),
        (torch.arange(4), torch.arange(4).view(2, 2), False),
        (torch.zeros(2), torch.zeros(2), False),
        (torch.zeros(2**14, dtype=torch.int64), torch.zeros(2**14, dtype=torch.int64), False),
        (3, torch.tensor(3), False),
        (1, True, False),
        (1, 1.0, False),
        ("1.0", 1.0, False),
        (0.0, -0.0, False),
        (float("nan"), float("nan"), True),
        ([1], (1,), False),
        ({"b": 1, "c": 2}, {"c": 2, "b": 1}, False),
        ({1: "x"}, {True: "x"}, False),
    ],
)
def test_a_value_is_encoded_again_unless_it_encodes_alike(
    old: Any, new: Any, *, alike: bool
) -> None:
    """States of random generators are compared by their bytes; tensors of real numbers stay out."""
    assert (form_of({"a": old}) == form_of({"a": new})) is alike


def test_the_kept_copy_does_not_change_with_its_tensor() -> None:
    """A generator's state that is changed in place is another one."""
    state = torch.arange(4)
    kept = form_of(state)
    state += 1
    assert kept != form_of(state)
