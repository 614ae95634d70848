"""DeepSpeed's own two calls, made oddly: what does not work is named, and the engine stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checkpoints.deepspeed_world import DeepSpeedWorlds
from holdfast.flash.trainer.reshard import of_files, stored
from house.sample import sampled

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
TRAIN: list[Any] = ["train", [], {}]


def _save(root: Path, **given: Any) -> list[Any]:
    return ["save_checkpoint", [root], given]


def _load(root: Path, *more: Any, **given: Any) -> list[Any]:
    return ["load_checkpoint", [root, *more], given]


def _told(worlds: DeepSpeedWorlds, *calls: list[Any], **world: Any) -> list[list[dict[str, Any]]]:
    """Return what each call returned or raised, of each rank."""
    given = {"job": "script", "stage": 2, "world": 2, **world}
    return [rank["told"] for rank in worlds.run(calls=calls, **given)]


def _flip(step: Path, name: str) -> None:
    """Change a byte of a tensor."""
    part = stored(of_files(str(step))).tensors[name][0]
    begin = part.item.payload
    values = bytes(memoryview(part.image.memory())[begin : begin + part.item.size])
    [file] = [one for one in step.glob("*.distcp") if values in one.read_bytes()]
    body = bytearray(file.read_bytes())
    body[begin] ^= 1
    file.write_bytes(body)


def test_a_damaged_step_is_never_loaded_by_its_tag(worlds: DeepSpeedWorlds, tmp_path: Path) -> None:
    """A tag's step is compared with its hashes, as the newest one is; file and tensor are named."""
    _told(worlds, TRAIN, _save(tmp_path, tag="a"), TRAIN, _save(tmp_path))
    _flip(tmp_path / "step_1", "model.first.weight")
    told = _told(worlds, _load(tmp_path, "a"))
    for (one,) in told:
        assert "RestoreError" in one["raised"]
        assert one["untouched"]
    said = " ".join(one["raised"] for (one,) in told)
    assert "0.distcp: model.first.weight at byte" in said


def test_a_step_without_a_file_is_refused_by_all_ranks(
    worlds: DeepSpeedWorlds, tmp_path: Path
) -> None:
    """The file is named; DeepSpeed is not asked for a checkpoint that is none of its own."""
    _told(worlds, TRAIN, _save(tmp_path, tag="a"))
    (tmp_path / "step_1" / "__1_0.distcp").unlink()
    for tagged, newest in _told(worlds, _load(tmp_path, "a"), _load(tmp_path)):
        assert "__1_0.distcp" in tagged["raised"]
        assert "latest names 'a'" in newest["raised"]
        assert tagged["untouched"]
        assert newest["untouched"]


def test_a_tag_that_does_not_fit_leaves_the_engine(worlds: DeepSpeedWorlds, tmp_path: Path) -> None:
    """Not even the newest step is loaded on the way to it."""
    _told(worlds, TRAIN, _save(tmp_path, tag="a"), width=7)
    other = tmp_path / "other"
    _told(worlds, TRAIN, TRAIN, _save(other, tag="b"))
    (tmp_path / "step_1").rename(other / "step_1")
    (tmp_path / "tags" / "a").rename(other / "tags" / "a")
    for told in _told(worlds, _load(other, "a"), _load(other, "b")):
        assert "weight is float32 (9, 5), in the checkpoint" in told[0]["raised"]
        assert told[0]["untouched"]
        assert told[1]["returned"][0] == f"{other}/step_2"


def test_a_step_may_have_several_tags(worlds: DeepSpeedWorlds, tmp_path: Path) -> None:
    """Each names it on all ranks; a second tag with another client_state is refused, not lost."""
    calls = (
        TRAIN,
        _save(tmp_path, client_state={"epoch": 1}),
        _save(tmp_path, tag="best", client_state={"epoch": 1}),
        _load(tmp_path, "best"),
        _save(tmp_path, tag="worst", client_state={"epoch": 2}),
        _load(tmp_path, "worst"),
    )
    for first, second, best, other, worst in _told(worlds, *calls):
        assert first["returned"] is True
        assert second["returned"] is True
        assert best["returned"] == [f"{tmp_path}/step_1", {"epoch": 1}]
        assert "step 1 is saved already" in other["raised"]
        assert "tags there: best, global_step1" in worst["raised"]


def test_a_directory_is_bound_by_what_was_loaded_from_it(
    worlds: DeepSpeedWorlds, tmp_path: Path
) -> None:
    """A load that finds nothing does not bind the engine; arguments may stand by position."""
    calls = (
        _load(tmp_path / "empty", None, True, True),
        TRAIN,
        _save(tmp_path / "run"),
        _save(tmp_path / "another"),
        _load(tmp_path / "run", load_module_only=True),
    )
    for nothing, saved, other, part in _told(worlds, *calls):
        assert nothing["returned"] == [None, None]
        assert saved["returned"] is True
        assert "one engine has one directory" in other["raised"]
        assert "leave out load_module_only" in part["raised"]


def test_deepspeeds_own_checkpoint_may_be_loaded_in_part(
    worlds: DeepSpeedWorlds, tmp_path: Path
) -> None:
    """Where DeepSpeed loads, its arguments have their effect."""
    own = {"job": "calls", "stage": 2, "world": 2, "root": tmp_path}
    worlds.run(steps=1, own=True, **own)
    for (loaded,) in _told(worlds, _load(tmp_path, load_optimizer_states=False)):
        assert loaded["returned"][0].startswith(f"{tmp_path}/global_step1")


def test_a_save_before_the_first_step_is_refused(worlds: DeepSpeedWorlds, tmp_path: Path) -> None:
    """The error names the engine's counter, which the script knows."""
    for (told,) in _told(worlds, _save(tmp_path)):
        assert "engine.global_steps is 0" in told["raised"]


def test_one_rank_that_refuses_is_heard_by_all(worlds: DeepSpeedWorlds, tmp_path: Path) -> None:
    """A rank whose state cannot be read does not leave the others waiting in a load."""
    _told(worlds, TRAIN, _save(tmp_path))
    ranks = _told(worlds, ["spoil", [], {"by": "nvme", "ranks": [1]}], _load(tmp_path))
    assert "rank 1 refused" in ranks[0][0]["raised"]
    assert "keeps its state on NVMe" in ranks[1][0]["raised"]


@pytest.mark.parametrize(
    ("by", "said"),
    sampled(
        [
            ("quantized", "middle.weight is quantized to torch.float32"),
            ("random_ltd", "data_efficiency.data_routing.random_ltd"),
            ("tensor parallel", "tensor parallelism of 2 ranks"),
        ],
        1,
    ),
)
def test_what_would_be_lost_is_refused(
    worlds: DeepSpeedWorlds, tmp_path: Path, by: str, said: str
) -> None:
    """State that a checkpoint has no place for is named at the first save."""
    spoil = ["spoil", [], {"by": by, "ranks": [0, 1]}]
    calls = TRAIN, spoil, _save(tmp_path)
    for (told,) in _told(worlds, *calls, stage=3, frozen=True):
        assert "StateError" in told["raised"]
        assert said in told["raised"]


def test_a_scheduler_that_is_left_out_is_told(worlds: DeepSpeedWorlds, tmp_path: Path) -> None:
    """The learning rate stays as it was saved, which nobody may have meant."""
    warm_up = {"type": "WarmupLR", "params": {"warmup_num_steps": 4}}
    _told(worlds, TRAIN, _save(tmp_path), scheduler=warm_up)
    for (told,) in _told(worlds, _load(tmp_path)):
        assert any("the checkpoint's WarmupLR is left out" in note for note in told["notes"])
