"""A master in a pod: its configuration from the operator's variables, an epoch for each start."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_master.process.settings import EPOCHS_PER_POD, ConfigError, load_in_pod


def _variables(tmp_path: Path, epoch: int = 2001) -> dict[str, str]:
    return {
        "HOLDFAST_JOB": "gpt",
        "HOLDFAST_JOB_UID": "u-1",
        "HOLDFAST_TLS_DIR": "/tls",
        "HOLDFAST_MASTER": "0.0.0.0:50051",
        "HOLDFAST_EPOCH": str(epoch),
        "HOLDFAST_JOURNAL_DIR": str(tmp_path / "journal"),
    }


def test_each_start_of_the_container_has_an_epoch_of_its_own(tmp_path: Path) -> None:
    """The kubelet starts it again without asking anybody for an epoch."""
    starts = [load_in_pod(_variables(tmp_path)) for _ in range(3)]
    assert [config.epoch for config in starts] == [2001, 2002, 2003]
    assert (starts[0].bind_host, starts[0].port) == ("0.0.0.0", 50051)  # noqa: S104 - as told


def test_a_later_pod_on_the_same_claim_begins_at_its_own_epoch(tmp_path: Path) -> None:
    """The count of starts is of one pod, though the claim outlives it."""
    load_in_pod(_variables(tmp_path))
    load_in_pod(_variables(tmp_path))
    assert load_in_pod(_variables(tmp_path, 3001)).epoch == 3001


def test_a_master_without_a_journal_counts_its_starts_too(tmp_path: Path) -> None:
    """With the epoch of its predecessor it would end as a zombie at the first hello."""
    variables = _variables(tmp_path)
    variables["HOLDFAST_STARTS_DIR"] = variables.pop("HOLDFAST_JOURNAL_DIR")
    starts = [load_in_pod(variables) for _ in range(2)]
    assert [config.epoch for config in starts] == [2001, 2002]
    assert {config.journal_dir for config in starts} == {None}


def test_jobs_that_share_a_claim_have_journals_of_their_own(tmp_path: Path) -> None:
    """So has a job that is deleted and made again under its name."""
    first = load_in_pod(_variables(tmp_path))
    second = load_in_pod({**_variables(tmp_path), "HOLDFAST_JOB_UID": "u-2"})
    assert (first.epoch, second.epoch) == (2001, 2001)
    assert first.journal_dir != second.journal_dir
    with pytest.raises(ConfigError, match="must be a plain name"):
        load_in_pod({**_variables(tmp_path), "HOLDFAST_JOB_UID": "../u-1"})


def test_a_pod_that_has_used_up_its_epochs_says_what_to_do(tmp_path: Path) -> None:
    """The next one would belong to the next pod."""
    variables = _variables(tmp_path)
    load_in_pod(variables)
    file = tmp_path / "journal" / "u-1" / "starts"
    file.write_text(f"2001 {EPOCHS_PER_POD - 1}\n")
    with pytest.raises(ConfigError, match="delete the pod"):
        load_in_pod(variables)


@pytest.mark.parametrize("name", ["HOLDFAST_JOB", "HOLDFAST_EPOCH", "HOLDFAST_MASTER"])
def test_a_missing_variable_is_named(tmp_path: Path, name: str) -> None:
    """So is the way to start a master outside a pod."""
    variables = _variables(tmp_path)
    del variables[name]
    with pytest.raises(ConfigError, match=f"{name} must be set"):
        load_in_pod(variables)


def test_a_port_that_is_none_is_refused(tmp_path: Path) -> None:
    """The value is shown."""
    with pytest.raises(ConfigError, match=r"'0\.0\.0\.0:x'"):
        load_in_pod({**_variables(tmp_path), "HOLDFAST_MASTER": "0.0.0.0:x"})
