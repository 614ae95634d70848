"""The straggler benchmark: its traces, rules, scores, recordings and page."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.harness import machine
from bench.harness.record import DOCS
from bench.health import recorder
from bench.health.__main__ import BENCH, TRACES, main
from bench.health.generator import KINDS, LEAST_PERCENT, Trace, make
from bench.health.page import page_of, upper
from bench.health.recorder import WINDOW_STEPS, compact, record, signature
from bench.health.rules import PEERS, POLICY, RULES, oracle, seen
from bench.health.score import ALL, OURS, Total, healthy_weeks, rows, score, sweep, total
from holdfast_master.policies.straggler.slices import finished
from holdfast_master.policies.straggler.verdict import judge_slices
from holdfast_master.policies.straggler.votes import VoteRecord
from holdfast_master.policies.straggler.window import RankTime, window_slices

SEEDS = range(3_000_000, 3_000_040)


def _about(first: int = 0) -> dict[str, Any]:
    return machine.about("record", {}) | {"first": first}


def _trace(**changes: Any) -> Trace:
    """Four ranks on two nodes, 200 steps of a second."""
    values: dict[str, Any] = {
        "seed": 0,
        "kind": "quiet",
        "node": np.array([0, 0, 1, 1]),
        "local": np.ones((200, 4), np.float32),
        "transfer": np.zeros(200, np.float32),
        "reference": np.ones(2, np.float32),
        "marked": np.zeros(200, bool),
        "slow": np.zeros(4, bool),
        "onset": 200,
    }
    return Trace(**(values | changes))


def test_a_seed_is_a_trace() -> None:
    """The same one each time, of a known kind, with a slow rank where the kind has one."""
    for seed in SEEDS:
        one, again = make(seed), make(seed)
        assert np.array_equal(one.local, again.local)
        assert one.kind == again.kind
        assert one.slow.any() == KINDS[one.kind].slow
        assert (one.percent >= LEAST_PERCENT) == KINDS[one.kind].slow
        assert np.isfinite(one.local).all()
        assert (one.local > 0).all()


def test_most_traces_have_no_straggler() -> None:
    """As in life."""
    shares = {True: 0.0, False: 0.0}
    for one in KINDS.values():
        shares[one.slow] += one.weight
    assert shares[False] > shares[True]


def test_a_slow_rank_makes_its_step_so_many_percent_longer() -> None:
    """The truth of a trace is in its times."""
    for seed in SEEDS:
        one = make(seed)
        if one.kind == "one slow node" and not one.marked.any():
            wall = np.median(one.wall[one.onset :]) / np.median(one.wall[: one.onset])
            assert wall == pytest.approx(1 + one.percent / 100, rel=0.35)


def test_onsets_of_accusations_are_scored_by_node() -> None:
    """Early ones and those of others are false alarms, each time that they begin."""
    slow = np.array([False, False, True, False])
    trace = _trace(slow=slow, onset=100)
    accused = np.zeros((20, 4), bool)
    accused[[2, 3, 6], 0] = True  # begins twice
    accused[5, 3] = True  # before the first slow step, another rank of the node
    accused[12:, 2] = True
    found = score(trace, accused, 10)
    assert (found.slow, found.delays, found.left, found.false_alarms) == (1, (30,), 100, 3)
    weeks = found.healthy_weeks * 7 * 86_400
    assert weeks == pytest.approx(200 + 100)


def test_a_missed_node_counts_in_the_mean_with_its_traces_end() -> None:
    """Recall, precision, rate and delays follow from the counts."""
    slow = np.array([True, False, True, False])
    trace = _trace(slow=slow, onset=100)
    accused = np.zeros((20, 4), bool)
    accused[10:, 0] = True
    one = total("x", 10, [score(trace, accused, 10)])
    assert (one.recall, one.precision, one.false_rate) == (0.5, 1.0, 0.0)
    assert (one.delay_median, one.delay_mean) == (10, 55)


def test_the_oracle_finds_all_and_accuses_nobody_else() -> None:
    """On any trace."""
    for seed in SEEDS:
        trace = make(seed)
        found = score(trace, oracle(trace, 50), 50)
        assert len(found.delays) == found.slow
        assert found.false_alarms == 0
        assert found.healthy_weeks == pytest.approx(healthy_weeks(trace))


def test_steps_of_a_declared_section_are_left_out_of_a_window() -> None:
    """As the master leaves them out; a window of nothing else is not judged."""
    local = np.ones((200, 4), np.float32)
    marked = np.zeros(200, bool)
    marked[0:20] = marked[50:100] = True
    local[marked] = 9.0
    first, second, third, _ = seen(_trace(local=local, marked=marked), 50)
    assert first.ranks[0].local == third.ranks[0].local == 1.0
    assert (first.ranks[0].marked, second.ranks[0].marked) == (False, True)


def test_peers_rules_have_their_published_thresholds() -> None:
    """Just above accuses, just below does not."""
    local = np.ones((200, 4), np.float32)
    for name, limit in (("nvrx", 1 / 0.75), ("nvrx, relative", 1 / 0.75), ("2 × median", 2.0)):
        for factor, accused in ((1.01, True), (0.99, False)):
            local[:, 3] = limit * factor
            found = RULES[name].accuse(_trace(local=local), 50)
            assert found[-1].tolist() == [False, False, False, accused], (name, factor)
    local[:, 3] = 1.11
    assert RULES["megatron"].accuse(_trace(local=local), 50)[-1].tolist() == [False] * 3 + [True]
    local[:, 3] = 1.09
    assert not RULES["megatron"].accuse(_trace(local=local), 50).any()


def test_dlrovers_rule_never_fires_with_two_nodes() -> None:
    """Twice the median of two is more than their sum."""
    reference = np.array([1.0, 50.0], np.float32)
    assert not RULES["dlrover"].accuse(_trace(reference=reference), 50).any()
    three = _trace(node=np.array([0, 0, 1, 2]), reference=np.array([1.0, 1.0, 2.1], np.float32))
    assert RULES["dlrover"].accuse(three, 50)[0].tolist() == [False, False, False, True]


def test_the_policy_beats_every_peer_on_a_few_traces() -> None:
    """More found than missed, and fewer false alarms: the whole table is the benchmark's."""
    found = {
        one["rule"]: Total(**{name: one[name] for name in Total.__dataclass_fields__})
        for one in rows({name: rule.accuse for name, rule in RULES.items()}, SEEDS)
        if one["kind"] == ALL
    }
    assert found[OURS].recall >= 0.9
    assert found[OURS].false_alarms <= 1
    assert found[OURS].f1 > max(found[name].f1 for name in PEERS)


def test_a_page_is_made_of_a_run(tmp_path: Path) -> None:
    """Its table has a row for each rule, its bars their verdicts."""
    rules = {name: rule.accuse for name, rule in RULES.items()}
    text = page_of(_about(SEEDS.start), [*rows(rules, SEEDS[:8]), *sweep(SEEDS[:2])])
    for name, rule in RULES.items():
        assert f"| {name}, {rule.text} |" in text
    assert "| recall ≥ 99 % |" in text
    assert "seeds 3000000 to 3000007" in text


def test_a_rule_of_ones_own_runs_on_the_traces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rule on the published page, as it stands there."""
    text = page_of(_about(), list(rows({OURS: oracle}, [0])))
    code = text.partition("```python\n")[2].partition("```")[0]
    assert 10 <= len(code.splitlines()) <= 20
    path = tmp_path / "mine.py"
    path.write_text(code)
    assert main([f"--rule={path}", "--traces=10", f"--first={SEEDS.start}"]) == 0
    assert "| mine |" in capsys.readouterr().out


def test_a_rate_of_few_alarms_has_a_bound() -> None:
    """The rule of three for none; 4.74 for one."""
    assert [upper(0), upper(1)] == [pytest.approx(3.0, abs=0.01), pytest.approx(4.74, abs=0.01)]


def _kept(value: float, bar: float) -> str:
    return "yes" if value <= bar else "**no**"


def test_the_published_page_is_of_enough_traces() -> None:
    """Its bar of false verdicts is judged by the rate of the file beside it."""
    lines = (DOCS / "health.jsonl").read_text().splitlines()
    about, results = BENCH.read(lines)
    text = page_of(about, results)
    ours = next(
        one
        for one in results
        if one["what"] == "rule" and (one["rule"], one["kind"]) == (OURS, ALL)
    )
    assert ours["traces"] >= TRACES
    rate = 1000 * ours["false_alarms"] / ours["node_weeks"]
    assert f"| {rate:.2f} ({ours['false_alarms']} in" in text
    (line,) = [one for one in text.splitlines() if one.startswith("| ≤ 1 false verdict")]
    assert line.endswith(f"| {_kept(rate, 1.0)} |")


RECORDED = sorted(recorder.FOLDER.glob("*.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: str(path.stem))
def test_a_recorded_run_is_aligned_nearly_whole(path: Path) -> None:
    """Nearly all of its steps are found in what the flight recorders held."""
    steps = recorder.steps_of(recorder.load(path))
    assert len(steps) >= 0.9 * 300
    assert all(min(step.local.values()) > 0 for step in steps)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: str(path.stem))
def test_the_masters_own_way_accuses_the_slow_rank_of_a_recorded_run_only(path: Path) -> None:
    """Aligned, in windows, judged; the slow loader is missed, as the page says."""
    one = recorder.load(path)
    steps, memory, found = recorder.steps_of(one), VoteRecord(), set[int]()
    about = {rank: RankTime(node=f"n{rank}", local=0.0) for rank in one.samples}
    for first in range(0, len(steps) - WINDOW_STEPS + 1, WINDOW_STEPS):
        window = finished(window_slices(first, steps[first : first + WINDOW_STEPS], about))
        memory, verdicts = finished(judge_slices(memory, window, POLICY))
        found |= {rank for verdict in verdicts for rank in verdict.ranks}
    assert found == ({2} if one.cause == "slow rank" else set())


def test_a_compact_recording_has_the_order_and_times_of_the_recorder() -> None:
    """Point-to-point operations are left out: they are no collectives of the group."""
    entry = {"is_p2p": False, "profiling_name": "gloo:all_reduce", "input_dtypes": ["Float"]}
    entries = [
        entry | {"collective_seq_id": 3 + i, "input_sizes": [[i % 2]], "time_created_ns": ns}
        for i, ns in enumerate((1_000_000, 3_000_000, 4_500_000))
    ]
    found = compact([[*entries, entries[0] | {"is_p2p": True}], entries])
    assert found["table"] == [signature(entries[0]), signature(entries[1])]
    mine = {"first_sequence": 3, "signatures": [0, 1, 0], "issued_us": [1000, 2000, 1500]}
    assert found["ranks"] == [mine, mine]


@pytest.mark.extended(
    "runs a benchmark for real; the parts of the product that it drives have tests of their own",
    held_by=[
        "bench/test_health_page.py::test_a_recorded_run_is_aligned_nearly_whole",
        "bench/test_health_page.py::test_a_compact_recording_has_the_order_and_times_of_the_recorder",
    ],
)
@pytest.mark.train
@pytest.mark.slow
def test_a_run_is_recorded_and_its_slow_rank_has_more_local_work(tmp_path: Path) -> None:
    """Real ranks, torch's own recorder: rank 2's extra sleep is its local time."""
    path = tmp_path / "slow.json"
    path.write_text(json.dumps(record("slow rank", 200)))
    one = recorder.load(path)
    steps = recorder.steps_of(one)[one.onset :]
    assert len(steps) > 50
    excess = [
        step.local[2] - float(np.median([step.local[rank] for rank in (0, 1, 3)])) for step in steps
    ]
    assert float(np.median(excess)) == pytest.approx(0.03, abs=0.02)
    assert dataclasses.asdict(one)["slow"] == (2,)
