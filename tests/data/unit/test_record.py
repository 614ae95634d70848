"""Records of samples as files: whole lines, in the order in which ranks came; and the command."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.data import QuotaRecord, QuotaSampler, SampleMap
from holdfast.data.counting import Applied, LostReplica, Origin, Read
from holdfast.data.record import SUFFIX, SampleRecord, files_of, lines_of
from holdfast.data.samples_report import UNLIKE, main
from holdfast.data.shards import ShardReader

ORIGIN = Origin(3, "round 1", 0, samples=8, micro_batch=2)


def test_lines_come_back_as_they_were_written(tmp_path: Path) -> None:
    """Also sets, and what a rank does not know."""
    record = SampleRecord(tmp_path / "made")
    record.begin(ORIGIN)
    record.read(Read(1, 2, 0, 0, (5, 7)))
    record.applied(1, [2], None)
    record.lost(LostReplica(2, 7, 8))
    [path] = files_of(tmp_path / "made")
    assert list(lines_of(path)) == [
        ORIGIN, Read(1, 2, 0, 0, (5, 7)), Applied(1, frozenset({2}), None), LostReplica(2, 7, 8)
    ]  # fmt: skip


def test_files_have_the_order_in_which_they_were_begun(tmp_path: Path) -> None:
    """A file of a later process sorts behind, whatever its host and its pid."""
    (tmp_path / f"000009-zz-99{SUFFIX}").write_text("")
    SampleRecord(tmp_path).begin(ORIGIN)
    assert [path.name[:6] for path in files_of(tmp_path)] == ["000009", "000010"]


def test_a_torn_last_line_is_left_out_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    """A machine that lost its power may leave half a line."""
    record = SampleRecord(tmp_path)
    record.begin(ORIGIN)
    [path] = files_of(tmp_path)
    with path.open("a") as file:
        file.write('{"read":{"st')
    assert list(lines_of(path)) == [ORIGIN]
    with path.open("a") as file:
        file.write("\n")
    with pytest.raises(ValueError, match=r"line 2: no line of a record"):
        list(lines_of(path))


def test_a_folder_that_cannot_be_written_ends_the_record_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The training goes on, and the log says once that there is no record."""
    (tmp_path / "file").write_text("")
    record = SampleRecord(tmp_path / "file")
    record.begin(ORIGIN)
    record.applied(1, [0], [0])
    assert record.has_begun
    assert caplog.text.count("samples are not recorded any more") == 1


def test_a_plain_world_that_is_resized_uses_each_sample_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """3 ranks for 4 steps, then 2 from step 3 on: an epoch of 1,000 samples, each once."""
    samples = SampleMap(samples=1000, micro_batch=20, micro_batches=5, seed=7)
    for number, (world, start, end) in enumerate([(3, 0, 4), (2, 3, 10)]):
        monkeypatch.setenv("HOLDFAST_ROUND", str(number))
        for rank in range(world):
            record = QuotaRecord(tmp_path, QuotaSampler(samples, rank, world, start=start))
            for step in range(start, end):
                record.commit(step + 1)
    assert main([str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["steps"], told["redone"]) == (10, 1)
    [epoch] = told["epochs"]
    assert (epoch["once"], epoch["lost"], epoch["doubled"], epoch["unused"]) == (1000, 0, [], [])


def test_a_rank_killed_behind_a_reduction_has_its_samples_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 1 dies before its commit of step 2, which the other one's checkpoint has."""
    samples = SampleMap(samples=80, micro_batch=5, micro_batches=4, seed=7)
    records = [QuotaRecord(tmp_path, QuotaSampler(samples, rank, 2)) for rank in range(2)]
    for record in records:
        record.commit(1)
    records[0].commit(2)
    monkeypatch.setenv("HOLDFAST_ROUND", "1")
    alone = QuotaRecord(tmp_path, QuotaSampler(samples, 0, 1, start=2))
    alone.commit(3)
    alone.commit(4)
    assert main([str(tmp_path), "--json"]) == 0
    [epoch] = json.loads(capsys.readouterr().out)["epochs"]
    assert (epoch["once"], epoch["lost"], epoch["doubled"], epoch["unused"]) == (80, 0, [], [])


def test_the_command_names_what_was_used_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two ranks that both think that they are the first: exit code and ids say it."""
    samples = SampleMap(samples=4, micro_batch=2, micro_batches=2, shuffle=False)
    for rank in (0, 0, 1):
        QuotaRecord(tmp_path, QuotaSampler(samples, rank, 2)).commit(1)
    lines = [list(lines_of(path)) for path in files_of(tmp_path)]
    assert [one[0].replica for one in lines if isinstance(one[0], Origin)] == [0, 0, 1]
    assert main([str(tmp_path)]) == 0  # one rank twice is the same part, read by two processes
    other = SampleRecord(tmp_path)
    other.begin(Origin(5, None, 0, samples=4, micro_batch=2))
    other.read(Read(1, 0, 0, 0, (0, 1)))
    other.applied(1, [0], [0])
    capsys.readouterr()
    assert main([str(tmp_path)]) == UNLIKE
    assert "epoch 0: used more than once: 0, 1" in capsys.readouterr().out


def test_readers_that_no_checkpoint_has_lose_nothing_at_a_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go on behind what was read: nothing is done anew."""

    def one(shard: str, start: int) -> Iterator[int]:
        return iter(range(start, 1))

    for number, shards in enumerate((["a", "b"], ["c", "d"])):
        monkeypatch.setenv("HOLDFAST_ROUND", str(number))
        reader = ShardReader(shards, one, checkpointed=False, record=tmp_path)
        for step in range(2):
            assert list(itertools.islice(reader, 1))
            reader.commit(2 * number + step + 1)
        assert list(reader) == []
    assert main([str(tmp_path), "--json"]) == 0
    [epoch] = json.loads(capsys.readouterr().out)["epochs"]
    assert (epoch["once"], epoch["unfinished"]) == (4, [])


def test_a_folder_without_records_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says how a script writes them."""
    assert main([str(tmp_path)]) == 2
    assert "BatchOptions(record=...)" in capsys.readouterr().err


def test_readers_of_shards_record_what_is_committed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two readers share four shards of five records; what was read behind a commit is not used."""

    def five(shard: str, start: int) -> Iterator[int]:
        return iter(range(start, 5))

    for rank in range(2):
        reader = ShardReader(["a", "b", "c", "d"], five, place=(rank, 2), record=tmp_path)
        for step in range(1, 4):
            assert list(itertools.islice(reader, 3))
            reader.commit(step)
        next(reader)
    assert main([str(tmp_path), "--json"]) == 0
    [epoch] = json.loads(capsys.readouterr().out)["epochs"]
    assert (epoch["used"], epoch["lost"], epoch["doubled"]) == (18, 0, [])
    assert epoch["unfinished"] == ["c", "d"]
