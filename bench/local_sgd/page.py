"""The page of a results file. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench import machine
from bench.local_sgd import results as r
from bench.local_sgd.bars import judge, spread
from bench.local_sgd.results import ByCost
from bench.recovery.report import table

_INTRO: Final = """\
# Local SGD: bytes, slow links, slow replicas, losses

Generated from [local_sgd.jsonl](local_sgd.jsonl) by `python -m bench.local_sgd --publish`.

Real processes on CPU with gloo, one thread a rank; a replica is one rank. The ways of a group run
in one world, in an order drawn by a seed. Median and range are over the turns.

- *Bytes* and *links*: 1.84 million parameters in fp32, replicas in networks of their own. Bytes are
  those that the interface of a rank has sent, headers included. `tbf` shapes what a rank sends. A
  step's computation is 50 ms of sleep.
- *Slow replicas*: 50 ms of sleep a step, all ways under FSDP2. With one of four 4 times slow,
  all steps together can be 3.25 times those of DDP at most, and those of a fast replica 4 times.
- *Loss*: the example's Llama of 192,000 parameters on English text, AdamW at 2e-3, 8 windows a
  rank and step, 64 steps of warm-up, outer SGD with lr 0.7 and Nesterov momentum 0.8. A turn is a
  seed. H = 64 makes 9 rounds in 640 steps and 19 in 1280. The validation text is all that is never
  trained on. torch's averager and torchft's LocalSGD have
  no outer optimizer; torchft's DiLoCo has EDiT's, and neither weights by norm nor a detector.
- *Replicas that go wrong*: the same model, 8 steps a round; the last round is disturbed.
- *Elastic*: replicas of one rank, killed by SIGKILL and replaced; under DDP, and in "grow" under
  FSDP2. Their control plane is the tests' own. Costs of a change are beyond the median sync without
  one. A survivor waits for the control plane to see that the killed process is gone, then for the
  roster without it: "from the roster on" is the part that is local SGD's own. Real-time priority
  does not exclude other work: Linux keeps 50 ms of each second for tasks without it.
- *Kills*: goodput is the rate of all replicas' steps as a share of their rate without a change in
  the same run. DDP runs under `holdfast run` with four nodes of one rank, and saves each step in
  memory; a kill makes all four ranks begin again, and they repeat no step.
"""
_TITLES: Final = {
    r.BYTES: "Bytes",
    r.LINKS: "Links",
    r.SLOW: "Slow replicas",
    r.LOSS: "Loss",
    r.ROBUST: "Replicas that go wrong",
    r.ELASTIC: "Elastic replicas",
}


def page(about: Mapping[str, Any], results: Sequence[ByCost]) -> str:
    """Return the page's text."""
    load = [one.load for one in results] or [0.0]
    said = (
        f"{machine.sentence(about)} Seed {about['seed']}. "
        f"Load average {min(load):.1f}–{max(load):.1f}. {about.get('remark', '')}".strip()
        + "\n"
    )
    found = [_row(row, [one for one in results if one.row == row]) for row in r.ROWS]
    return "\n".join([_INTRO, said, _promises(results), *filter(None, found)])


def _promises(results: Sequence[ByCost]) -> str:
    words = {True: "yes", False: "**no**", None: "–"}
    rows = [[one.text, one.promised, one.reached, words[one.kept]] for one in judge(results)]
    head = ("promise (medians)", "at", "measured", "kept")
    return "## What is promised\n\n" + table(head, rows)


def _row(row: str, results: Sequence[ByCost]) -> str:
    if not results:
        return ""
    if row == r.ELASTIC:
        return f"## {_TITLES[row]}\n\n" + "\n".join(
            _table([one for one in results if one.group == group])
            for group in dict.fromkeys(one.group for one in results)
        )
    return f"## {_TITLES[row]}\n\n" + _table(results)


def _table(results: Sequence[ByCost]) -> str:
    names = list(dict.fromkeys(name for one in results for name in one.values))
    rows = []
    for group in dict.fromkeys(one.group for one in results):
        mine = [one for one in results if one.group == group]
        for way in dict.fromkeys(one.way for one in mine):
            own = [one for one in mine if one.way == way]
            cells = [
                _cell([one.values[name] for one in own if name in one.values]) for name in names
            ]
            rows.append([group, way, str(len(own)), *cells])
    return table(("group", "way", "runs", *names), rows)


def _cell(found: Sequence[float]) -> str:
    return spread(found, 0 if found and max(found) >= 1000 else 3)
