"""The master's configuration: what is accepted, and how each mistake is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast_master.process.settings import ConfigError, load, parse
from holdfast_master.settings import CoreSettings
from holdfast_wire.json_log import LogLevel
from holdfast_wire.messages import Budget, BudgetKind, FailureAction, SuccessPolicy

BASE: dict[str, Any] = {"job_name": "job", "job_uid": "j1", "epoch": 1, "tls_dir": "/tls"}
SPEC: dict[str, Any] = {"min_replicas": 1, "max_replicas": 4, "replicas": 2, "node_unit": 1}


def test_what_is_not_given_has_its_default() -> None:
    """Four fields are enough; every process gets another incarnation."""
    config = parse(BASE)
    assert (config.port, config.bind_host, config.log_level) == (0, "127.0.0.1", LogLevel.INFO)
    assert config.tls_dir == Path("/tls")
    assert config.journal_dir is None
    assert config.core == CoreSettings()
    assert len(config.incarnation) == 32
    assert config.incarnation != parse(BASE).incarnation


def test_a_spec_is_read_by_field_names_and_enum_names() -> None:
    """Nested messages and enums are written as people write them; numbers work too."""
    spec = SPEC | {
        "success_policy": "RANK0",
        "budgets": [{"kind": "FAILURES", "limit": 3}, {"kind": 3, "limit": 1}],
        "failure_rules": [{"action": "FAIL_JOB", "exit_codes": [3, 4]}],
    }
    read = parse(BASE | {"initial_spec": spec}).initial_spec
    assert read is not None
    assert read.success_policy is SuccessPolicy.RANK0
    assert read.budgets[0] == Budget(kind=BudgetKind.FAILURES, limit=3)
    assert read.budgets[1].kind is BudgetKind.RESCALES
    assert read.failure_rules[0].action is FailureAction.FAIL_JOB
    assert read.failure_rules[0].exit_codes == (3, 4)


def test_time_limits_of_the_core_can_be_set() -> None:
    """A whole number is a number of seconds too."""
    core = parse(BASE | {"core": {"silence_seconds": 2}}).core
    assert core == CoreSettings(silence_seconds=2.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"job_name": ""}, ["job_name is empty"]),
        ({"job_uid": 3}, ["job_uid is 3", "must be a text"]),
        ({"epoch": 0}, ["epoch is 0", "at least 1"]),
        ({"epoch": True}, ["epoch is True", "a whole number"]),
        ({"epoch": 1.5}, ["epoch is 1.5", "a whole number"]),
        ({"port": 70_000}, ["port is 70000", "0 (any) to 65535"]),
        ({"prot": 1}, ["prot is no known field", "did you mean port?"]),
        ({"zzz": 1}, ["zzz is no known field", "known:", "journal_dir"]),
        ({"die_with_parent": 1}, ["die_with_parent is 1", "true or false"]),
        ({"log_level": "loud"}, ["log_level is 'loud'", "DEBUG, INFO, WARNING, ERROR"]),
        ({"journal_dir": 7}, ["journal_dir is 7", "a path"]),
        ({"exit_when_finished": -1}, ["exit_when_finished is -1", "0 or more"]),
        ({"core": {"silence_seconds": 0}}, ["core.silence_seconds is 0", "more than 0"]),
        ({"core": {"silense_seconds": 1}}, ["core.silense_seconds", "silence_seconds?"]),
        ({"core": []}, ["core is []", "an object"]),
        ({"initial_spec": {"budgets": {}}}, ["initial_spec.budgets is {}", "a list"]),
        (
            {"initial_spec": {"budgets": [{"kind": "FAIL"}]}},
            ["initial_spec.budgets[0].kind is 'FAIL'", "FAILURES"],
        ),
        (
            {"initial_spec": {"failure_rules": [{"exit_codes": ["a"]}]}},
            ["initial_spec.failure_rules[0].exit_codes[0] is 'a'"],
        ),
        (
            {"initial_spec": SPEC | {"min_replicas": 5}},
            ["initial_spec.min_replicas is 5 and max_replicas 4"],
        ),
        ({"initial_spec": SPEC | {"replicas": 9}}, ["initial_spec.replicas is 9", "0 to 4"]),
        ({"initial_spec": SPEC | {"node_unit": 3}}, ["initial_spec.node_unit is 3"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_mistake_is_named_with_its_value_and_the_remedy(
    change: dict[str, Any], words: list[str]
) -> None:
    """One clear error, before anything starts."""
    with pytest.raises(ConfigError) as caught:
        parse(BASE | change)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", sorted(BASE))
def test_a_field_without_a_default_must_be_there(name: str) -> None:
    """It is named."""
    rest = {key: value for key, value in BASE.items() if key != name}
    with pytest.raises(ConfigError, match=f"{name} is missing"):
        parse(rest)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """Absent, no JSON, or no object: the path or the value is in the error."""
    with pytest.raises(ConfigError, match=r"absent\.json cannot be read"):
        load(tmp_path / "absent.json")
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json is no JSON"):
        load(path)
    path.write_text(json.dumps([1]))
    with pytest.raises(ConfigError, match="must be an object"):
        load(path)
