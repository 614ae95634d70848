"""Text of a message in the environment: protobuf's JSON, read and written without protobuf."""

from __future__ import annotations

import math
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast_wire import codec
from holdfast_wire.messages import AgentSaid, Budget, CheckpointPolicy, MasterSpec
from holdfast_wire.proto_json import from_json, to_json
from messages.any_twin import twins

NAMES = ("CheckpointPolicy", "MasterSpec", "FailureRule", "WorldAssignment")


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
def test_protobuf_reads_what_is_written_and_is_read_itself(name: str, data: st.DataObject) -> None:
    """Each understands the other's text: a person may write either."""
    twin = data.draw(twins(name))
    ours, theirs = to_json(twin), json_format.MessageToJson(codec.to_proto(twin))
    assert _same(codec.from_proto(json_format.Parse(ours, codec.proto_of(name)())), twin)
    assert _same(from_json(type(twin), theirs), twin)
    assert _same(from_json(type(twin), ours), twin)


def _same(one: Any, other: Any) -> bool:
    """Return whether two twins are equal or differ only in how a NaN compares."""
    return one == other or repr(one) == repr(other)


def test_what_has_its_default_is_left_out() -> None:
    """The variable stays short, and a newer field that is not used breaks no older reader."""
    assert to_json(CheckpointPolicy()) == "{}"
    assert to_json(CheckpointPolicy(keep_last=3)) == '{"keepLast":3}'
    assert from_json(CheckpointPolicy, "{}") == CheckpointPolicy()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is no JSON"),
        ("[]", r"it is \[\]: expected an object of MasterSpec"),
        ('{"replicas":"two"}', "replicas is 'two': expected a whole number"),
        ('{"replicas":true}', "replicas is True: expected a whole number"),
        ('{"replicas":1.5}', "replicas is 1.5: expected a whole number"),
        ('{"suspend":1}', "suspend is 1: expected true or false"),
        ('{"replica":2}', "replica is no field of MasterSpec: try replicas"),
        ('{"budgets":{}}', "budgets is {}: expected a list"),
        ('{"budgets":[{"kind":"FAILURES"}]}', r"budgets\[0\].kind is 'FAILURES': expected one of"),
        ('{"budgets":[{"limit":[]}]}', r"budgets\[0\].limit is \[\]"),
        ('{"joinWindowSeconds":"soon"}', "joinWindowSeconds is 'soon': expected a number"),
    ],
)
def test_a_wrong_text_is_refused_by_the_name_of_its_field(text: str, words: str) -> None:
    """People write these variables by hand."""
    with pytest.raises(ValueError, match=words):
        from_json(MasterSpec, text)


def test_a_number_may_be_given_as_protobuf_writes_it() -> None:
    """64-bit numbers as text, and what is no finite number as a word."""
    assert from_json(MasterSpec, '{"generation":"7"}').generation == 7
    assert from_json(MasterSpec, '{"budgets":[{"limit":2}]}').budgets == (Budget(limit=2),)
    assert math.isinf(from_json(MasterSpec, '{"joinWindowSeconds":"Infinity"}').join_window_seconds)


def test_a_message_that_has_no_text_is_refused() -> None:
    """Bytes belong into a message, not into a variable."""
    with pytest.raises(TypeError, match="has no JSON here"):
        to_json(AgentSaid(session=1, request=b"x"))
