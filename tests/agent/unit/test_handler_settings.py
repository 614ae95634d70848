"""Settings of `torchrun --rdzv-backend=holdfast`: where they come from, and their errors."""

from __future__ import annotations

import pytest

from holdfast_agent.config import settings as agent_settings
from holdfast_agent.errors import InputError


def test_torchruns_handler_needs_an_endpoint(managed: dict[str, str]) -> None:
    """An unmodified torchrun names the master by --rdzv-endpoint, else by HOLDFAST_MASTER."""
    assert agent_settings.for_torchrun(managed, "", "2").master == "10.0.0.7:7777"
    settings = agent_settings.for_torchrun(managed, "other:1", None)
    assert (settings.master, settings.launch.local_world_size) == ("other:1", 1)
    without = {name: value for name, value in managed.items() if name != "HOLDFAST_MASTER"}
    with pytest.raises(InputError, match="--rdzv-endpoint"):
        agent_settings.for_torchrun(without, "", None)


@pytest.mark.parametrize(
    ("environ", "endpoint", "nproc", "part"),
    [
        ({}, "foo", None, "--rdzv-endpoint='foo': expected host:port"),
        ({"PET_RDZV_ENDPOINT": "foo"}, "foo", None, "PET_RDZV_ENDPOINT='foo'"),
        ({"HOLDFAST_MASTER": "foo"}, "", None, "HOLDFAST_MASTER='foo'"),
        ({}, "a:1", "foo", "--nproc-per-node='foo'"),
        ({"PET_NPROC_PER_NODE": "foo"}, "a:1", None, "PET_NPROC_PER_NODE='foo'"),
        ({"HOLDFAST_NPROC_PER_NODE": "foo"}, "a:1", None, "HOLDFAST_NPROC_PER_NODE='foo'"),
    ],
)
def test_torchruns_handler_complains_under_the_name_that_was_used(
    managed: dict[str, str], environ: dict[str, str], endpoint: str, nproc: str | None, part: str
) -> None:
    """A flag, a torchrun variable and ours lead to the same setting."""
    with pytest.raises(InputError) as caught:
        agent_settings.for_torchrun({**managed, **environ}, endpoint, nproc)
    assert part in str(caught.value)
