"""Facts about torch's FSDP2 that local SGD builds on: a new torch that changes one fails here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from checkpoints.flash_world import Worlds
from local_sgd import fsdp2_facts

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]


class Facts(Worlds):
    """Worlds of 2 replicas with 2 shards each, of which each rank tells what it found."""

    script = fsdp2_facts.__file__

    def of(self, job: str) -> list[dict[str, Any]]:
        """Return what each rank found out."""
        return self.run(job=job, world=4, mesh=[2, 2], kind="fsdp")


@pytest.fixture(scope="module")
def facts() -> Iterator[Facts]:
    """One process with torch for all facts."""
    with Facts() as started:
        yield started


def _flat(gradients: list[list[float]]) -> list[float]:
    return [value for one in gradients for value in one]


def test_a_hybrid_mesh_keeps_gradients_without_its_all_reduce(facts: Facts) -> None:
    """With `set_requires_all_reduce(False)` no parameter has a gradient: a 2-D mesh is no way."""
    for found in facts.of("without_all_reduce"):
        assert found["none"] == [True] * 4


def test_an_all_reduce_hook_makes_the_gradients_of_a_hybrid_mesh(facts: Facts) -> None:
    """A hook that averages over the replicas on a shard mesh equals HSDP to 1e-6."""
    for found in facts.of("hook_for_all_reduce"):
        assert _flat(found["hooked"]) == pytest.approx(_flat(found["hybrid"]), abs=1e-6)
        assert found["dtypes"] == ["torch.float32"]


def test_gradients_of_a_shard_mesh_are_the_mean_of_its_own_ranks(facts: Facts) -> None:
    """Divided by M, not by M times N: the scale of a replica's gradients needs no mending."""
    for found in facts.of("gradients_of_a_shard_mesh"):
        assert _flat(found["got"]) == pytest.approx(_flat(found["mean"]), abs=1e-6)


def test_an_all_reduce_hook_may_see_sums(facts: Facts) -> None:
    """With sums forced the division comes after the hook: a mean over replicas commutes with it."""
    for found in facts.of("divide_factor"):
        for name, times in (("mean", 1.0), ("forced sum", 2.0), ("factor 1", 1.0)):
            (in_the_hook,), total = found[name]
            assert in_the_hook == pytest.approx(times * total, rel=1e-5)
        assert found["factor 1"][1] == pytest.approx(2 * found["mean"][1], rel=1e-5)


def test_gradients_are_reduced_in_their_own_dtype_by_default(facts: Facts) -> None:
    """`reduce_dtype=None` reduces in float32 since torch 2.15, also with a 16-bit `param_dtype`."""
    for found in facts.of("reduce_dtype"):
        assert found == {"default": ["torch.float32"], "bfloat16": ["torch.bfloat16"]}


def test_only_a_prepended_hook_comes_before_the_all_gather(facts: Facts) -> None:
    """A prepended hook finds shards and its writes last; another one finds what is gathered."""
    for found in facts.of("order_of_hooks"):
        assert found["prepend True"] == [True, 7.0, False]
        finds_shards, bias, unchanged = found["prepend False"]
        assert (finds_shards, unchanged) == (False, True)
        assert bias != 7.0


def test_a_prefetched_unit_computes_with_what_was_there_before_its_hook(facts: Facts) -> None:
    """Its gather is under way before the hook writes; `unshard()` and `reshard()` drop it."""
    for found in facts.of("prefetch"):
        assert found["on"] > 0.1
        assert (found["off"], found["reshard"]) == (0.0, 0.0)


def test_a_root_stays_whole_after_an_evaluation(facts: Facts) -> None:
    """Writes into its shards are ignored until `reshard()`."""
    for found in facts.of("evaluation"):
        assert found["as it is: whole"]
        assert found["as it is"] > 0.1
        assert found["resharded"] == 0.0


def test_recomputation_outside_a_unit_calls_its_hooks_twice(facts: Facts) -> None:
    """Inside it, once: a hook must know by itself what it has done."""
    for found in facts.of("recompute"):
        assert found == {"none": 1, "outside": 2, "inside": 1}


def test_shards_may_be_empty(facts: Facts) -> None:
    """3 rows on 2 ranks are 2 and 1; 1 row is 1 and none."""
    assert [found["sizes"] for found in facts.of("sizes")] == [[4, 1], [2, 0]] * 2


def test_an_outer_optimizer_steps_on_shards(facts: Facts) -> None:
    """Nesterov's first step moves by lr * (1 + momentum), and its momentum is sharded alike."""
    for found in facts.of("outer_optimizer"):
        assert found["moved"] == pytest.approx([0.7 * 1.8] * 30, abs=1e-5)
        assert found["momentum"]


def test_an_optimizer_s_hook_counts_steps_not_micro_batches(facts: Facts) -> None:
    """Two backwards and one step call it once."""
    assert [found["calls"] for found in facts.of("step_hook")] == [1] * 4
