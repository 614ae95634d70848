"""The page of a results file. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench import machine
from bench.recovery.report import table
from bench.universal import results as r
from bench.universal.bars import judge, ratios, spread
from bench.universal.results import Timed

_INTRO: Final = """\
# Saves, loads and reshaping of DeepSpeed's and Megatron's state

Generated from [universal.jsonl](universal.jsonl) by `python -m bench.universal --publish`.

Real engines and optimizers in bf16 on CPU with gloo, one thread a rank. The ways take turns in an
order drawn by a seed. All ranks begin together, and the slowest counts. × is a call's time over
Holdfast's of the same turn, median and range: above 1 Holdfast is faster. Collectives are those of
the rank with most: calls of `torch.distributed`, or sequence numbers of its groups.

- *Save*: what training waits for, then the time until the step is committed. Other saves end in the
  page cache; Holdfast's are synchronised.
- *Warm copy*: all ranks copy their shards at once, streaming, between memory that is faulted in.
- *Load from storage*: one call in fresh processes under `holdfast-run`, of files in the page cache.
  The ranks have trained a step, so that there is memory for the moments.
- *Load from memory*: one call after all ranks have failed and were started again, with memory for
  the moments and without.
- *Load as another world*: several loads in one world under `holdfast-run`; the agent compares the
  hashes before the first one. `dcp.load` reads no more than the rank's own boxes.

torch.save writes the tensors that Holdfast stores, a file for each rank, as DLRover's
`megatron_dist_ckpt` does. Holdfast's load also makes the weights from the masters and gathers them.
`dist_checkpointing` deals the replicas out to the ranks, as Megatron's training does. It gets gloo
where it asks for NCCL: `fully_reshardable`, which gathers, would take other times on GPUs.
"""


def page(about: Mapping[str, Any], results: Sequence[Timed]) -> str:
    """Return the page's text."""
    load = [one.load for one in results] or [0.0]
    versions = f"DeepSpeed {about['deepspeed']}, megatron-core {about['megatron']}"
    said = (
        f"{machine.sentence(about)} {versions}. Seed {about['seed']}. "
        f"Load average {min(load):.1f}–{max(load):.1f}. {about.get('remark', '')}".strip()
        + "\n"
    )
    return "\n".join([_INTRO, said, _promises(results), *_states(results)])


def _promises(results: Sequence[Timed]) -> str:
    rows = [
        [one.text, one.state, one.promised, one.reached, "yes" if one.kept else "**no**"]
        for one in judge(results)
    ]
    head = ("promise (medians)", "state", "at", "measured", "kept")
    return "## What is promised\n\n" + table(head, rows)


def _states(results: Sequence[Timed]) -> list[str]:
    found = []
    for state in dict.fromkeys(one.state for one in results):
        mine = [one for one in results if one.state == state]
        mib = max(one.mib for one in mine)
        head = ("act", "system", "calls", "s", "× Holdfast", "collectives")
        rows = [
            _row([one for one in mine if one.act == act], system)
            for act in dict.fromkeys(one.act for one in mine)
            for system in dict.fromkeys(one.system for one in mine if one.act == act)
        ]
        found.append(f"## {state}\n\n{mib:.0f} MiB in all.\n\n" + table(head, rows))
    return found


def _row(results: Sequence[Timed], system: str) -> list[str]:
    mine = [one for one in results if one.system == system]
    beside = "1" if system == r.FLASH else spread(ratios(results, system, r.FLASH))
    collectives = max(one.collectives for one in mine)
    seconds = spread([one.seconds for one in mine], digits=3)
    return [mine[0].act, system, str(len(mine)), seconds, beside, str(collectives)]
