"""Commits on a disk that forgets: an announced step is there, and nothing else passes for one."""

from __future__ import annotations

import contextlib
import errno
import json
import random

import pytest

from checkpoints.forgetful_disk import ForgetfulDisk, PowerCut
from checkpoints.sample_shards import begin, sample_step, save
from holdfast.flash.memory.hashes import hash64
from holdfast.flash.memory.shard_table import (
    Box,
    Needs,
    ShardTable,
    TensorItem,
    decode,
    encode,
    lacking,
)
from holdfast.flash.memory.slots import Version
from holdfast.flash.storage.commit import (
    Attempt,
    CommitError,
    commit,
    discard,
    open_attempt,
    sweep,
    write_shard,
)
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import (
    FormatError,
    Manifest,
    ManifestError,
    decode_manifest,
    encode_manifest,
    read_manifest,
    steps,
)
from holdfast.flash.storage.reader import committed, newest, verify

ROOT = "ck"


@pytest.fixture
def disk() -> ForgetfulDisk:
    """A disk with an empty directory."""
    found = ForgetfulDisk()
    found.make_dir(ROOT)
    return found


def _life(disk: ForgetfulDisk, rng: random.Random) -> tuple[dict[int, Manifest], list[int]]:
    """Save four steps, deleting old ones and a dead attempt on the way, until the power fails.

    Returns what was announced, and what retention has begun to delete.
    """
    announced: dict[int, Manifest] = {}
    deleting: list[int] = []
    with contextlib.suppress(PowerCut):
        disk.make_dir(ROOT)
        disk.sync_dir("")
        for step in (10, 20, 30, 40):
            manifest, images = sample_step(step, rng)
            if step == 30:  # one that died before it
                folder = open_attempt(disk, ROOT, Attempt(version=Version(0, 30), number="dead"))
                write_shard(disk, folder, manifest.shards[0], images[0])
                sweep(disk, ROOT, lambda attempt: attempt.number == "a")
            save(disk, ROOT, (manifest, images))
            announced[step] = manifest
            if step >= 30:
                deleting.append(step - 20)
                discard(disk, ROOT, f"{ROOT}/step_{step - 20}")
    return announced, deleting


def _judge(disk: Disk, announced: dict[int, Manifest], deleting: list[int]) -> list[str]:
    """Return which promises the disk breaks."""
    wrong = []
    there = steps(disk, ROOT) if announced else []
    for step in there:
        try:
            manifest = verify(disk, f"{ROOT}/step_{step}")
        except ManifestError as error:
            wrong.append(f"step {step} looks committed, but {error}")
        else:
            if step in announced and manifest != announced[step]:
                wrong.append(f"step {step} is another one")
    wrong += [
        f"step {step} was announced and is gone"
        for step in announced
        if step not in there and step not in deleting
    ]
    return wrong


def _operations() -> int:
    disk = ForgetfulDisk()
    _life(disk, random.Random(0))
    return disk.operations


@pytest.mark.parametrize("round_number", range(6))
def test_a_power_cut_at_any_operation_breaks_no_promise(round_number: int) -> None:
    """At each operation of saving, deleting and sweeping: announced steps load, no half does."""
    seed = random.randrange(2**32)
    for cut in range(1, _operations() + 2):
        rng = random.Random(f"{seed}/{round_number}/{cut}")
        disk = ForgetfulDisk()
        disk.cut_at = cut
        announced, deleting = _life(disk, random.Random(0))
        wrong = _judge(disk.after_power_cut(rng), announced, deleting)
        assert wrong == [], f"seed {seed}, round {round_number}, operation {cut}"


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_a_failing_operation_costs_at_most_its_own_step(disk: ForgetfulDisk, code: int) -> None:
    """Whichever operation fails: the step is committed or refused, older ones are untouched."""
    first, second = sample_step(10, random.Random(1)), sample_step(20, random.Random(2))
    save(disk, ROOT, first)
    begin = disk.operations
    save(disk, ROOT, second)
    for number in range(begin + 1, disk.operations + 1):
        tried = ForgetfulDisk()
        tried.make_dir(ROOT)
        save(tried, ROOT, first)
        tried.fail_at = {number: code}
        announced = {10: first[0]}
        with contextlib.suppress(CommitError, OSError):
            save(tried, ROOT, second)
            announced[20] = second[0]
        assert _judge(tried, announced, []) == [], f"operation {number}"


def test_after_an_error_of_fsync_the_shard_is_written_to_a_new_file(disk: ForgetfulDisk) -> None:
    """A second fsync on the same file would call lost pages durable."""
    left = [errno.EIO]
    disk.refuse = lambda name: left.pop() if name == "sync" and left else 0
    manifest = save(disk, ROOT, sample_step(10, random.Random(3)))
    assert left == []
    assert verify(disk, f"{ROOT}/step_10") == manifest


@pytest.mark.parametrize("world", [1, 2, 5])
@pytest.mark.parametrize("shares", [1, 2, 3, 7])
def test_the_shares_of_all_nodes_are_all_files_once(
    disk: ForgetfulDisk, world: int, shares: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes verify neighbouring ranks' files, in their order: each file on one node."""
    save(disk, ROOT, sample_step(10, random.Random(3), world=world))
    read: list[str] = []

    def opened(name: str) -> int:
        read.append(name)
        return ForgetfulDisk.open(disk, name)

    monkeypatch.setattr(disk, "open", opened)
    for share in range(shares):
        verify(disk, f"{ROOT}/step_10", share, shares)
    assert read == [f"{ROOT}/step_10/__{rank}_0.distcp" for rank in range(world)]


def test_a_full_disk_is_named_and_leaves_no_file(disk: ForgetfulDisk) -> None:
    """ENOSPC is not tried again; what was half written is removed."""
    manifest, images = sample_step(10, random.Random(3))
    folder = open_attempt(disk, ROOT, Attempt(version=manifest.version))
    disk.refuse = lambda name: errno.ENOSPC if name == "write" else 0
    with pytest.raises(CommitError, match="No space left on device"):
        write_shard(disk, folder, manifest.shards[0], images[0])
    assert disk.names(folder) == []


def test_a_vanished_directory_is_an_error_of_that_step(disk: ForgetfulDisk) -> None:
    """Somebody deleted the attempt: the save fails, by name, without going round for ever."""
    manifest, images = sample_step(10, random.Random(3))
    folder = open_attempt(disk, ROOT, Attempt(version=manifest.version))
    disk.remove_tree(folder)
    with pytest.raises(CommitError, match="__0_0"):
        write_shard(disk, folder, manifest.shards[0], images[0])


def test_a_bit_that_flips_is_found_and_the_step_before_is_taken() -> None:
    """Each bit drawn from every file of the newest step: it is passed over, with a note."""
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for _ in range(60):
        disk = ForgetfulDisk()
        disk.make_dir(ROOT)
        older, newer = sample_step(10, rng), sample_step(20, rng)
        save(disk, ROOT, older)
        save(disk, ROOT, newer)
        shard = rng.choice(newer[0].shards)
        path, size = f"{ROOT}/step_20/{shard.file}", shard.bytes
        if rng.random() < 0.5:
            path = f"{ROOT}/step_20/holdfast.json"
            size = disk.size(path)
        disk.flip(path, rng.randrange(8 * size))
        found, notes = newest(disk, ROOT)
        if found == newer[0]:  # white space, say
            continue
        assert found == older[0], f"seed {seed}"
        assert "step 20 was passed over" in notes[0]


def _reads(content: bytes) -> str:
    """Return the kind of the error that reading a manifest ends with, and what it says."""
    with pytest.raises(ManifestError) as caught:
        decode_manifest(content, "F")
    return f"{type(caught.value).__name__}: {caught.value}"


def test_a_newer_format_is_told_apart_from_damage() -> None:
    """With the right hash or another: newer; what one flipped bit makes of the number: damaged."""
    content = encode_manifest(sample_step(10, random.Random(3))[0])
    fields = json.loads(content)
    number, begin = b'"format":1,"lineage"', content.index(b'"format":1,"lineage"')
    for newer in (2, 4, 17, 99):
        found = content.replace(number, b'"format":%d,"lineage"' % newer)
        assert f"FormatError: F: format={newer}, this Holdfast reads 1" in _reads(found)
    for bit in range(8):
        flipped = bytearray(content)
        flipped[begin + len(b'"format":')] ^= 1 << bit
        assert _reads(bytes(flipped)).startswith("ManifestError: F is damaged"), bit
    fields["checkpoint"]["shards"][0]["table"]["format"] = 2
    body = json.dumps(fields["checkpoint"], separators=(",", ":"), sort_keys=True).encode()
    found = b'{"hash":"%016x","checkpoint":%s}' % (hash64(body), body)
    assert "FormatError: F: format=2" in _reads(found)


def test_a_step_of_a_newer_format_is_never_passed_over_or_replaced(disk: ForgetfulDisk) -> None:
    """Neither for an older step nor for a new one of the same number."""
    older, newer = sample_step(10, random.Random(3)), sample_step(20, random.Random(4))
    save(disk, ROOT, older)
    save(disk, ROOT, newer)
    path = f"{ROOT}/step_20/holdfast.json"
    content = disk.read(path).replace(b'"format":1,"lineage"', b'"format":2,"lineage"')
    handle = disk.create(f"{path}.new", direct=False)
    disk.write(handle, memoryview(content))
    disk.close(handle)
    disk.rename(f"{path}.new", path)
    for read in (lambda: newest(disk, ROOT), lambda: committed(disk, ROOT, 16)):
        with pytest.raises(FormatError, match=r"step_20/holdfast.json: format=2"):
            read()
    with pytest.raises(CommitError, match=r"step_20/holdfast.json: format=2"):
        save(disk, ROOT, newer)
    assert disk.read(path) == content


def test_a_coordinator_that_was_thought_dead_commits_nothing(disk: ForgetfulDisk) -> None:
    """The new one has renamed the directory: the old one's rename finds nothing."""
    sample = sample_step(10, random.Random(3))
    attempt = begin(disk, ROOT, sample)
    newer = Attempt(version=attempt.version, number="new")
    disk.rename(f"{ROOT}/{attempt.folder}", f"{ROOT}/{newer.folder}")
    with pytest.raises(CommitError, match="was not committed"):
        commit(disk, ROOT, attempt, sample[0].shards, own="old")
    assert steps(disk, ROOT) == []


def test_a_step_that_lacks_a_shard_is_never_committed(disk: ForgetfulDisk) -> None:
    """A missing rank, and tables that do not tile the tensor, are refused by name."""
    manifest, _ = sample_step(10, random.Random(3))
    attempt = Attempt(version=manifest.version)
    with pytest.raises(CommitError, match=r"ranks \[0\] are no world"):
        commit(disk, ROOT, attempt, manifest.shards[:1])
    with pytest.raises(CommitError, match=r"ranks \[0, 0\] are no world"):
        commit(disk, ROOT, attempt, [manifest.shards[0]] * 2)


def test_committing_twice_is_committing_once(disk: ForgetfulDisk) -> None:
    """An answer that was lost is asked for again."""
    sample = sample_step(10, random.Random(3))
    save(disk, ROOT, sample)
    assert read_manifest(disk, f"{ROOT}/step_10") == save(disk, ROOT, sample, "b")
    assert disk.names(ROOT) == ["step_10"]


def test_a_step_of_an_abandoned_lineage_is_replaced_at_once(disk: ForgetfulDisk) -> None:
    """The world went back behind step 20 and trained it again: the new one stands."""
    save(disk, ROOT, sample_step(20, random.Random(3), lineage=1))
    again = save(disk, ROOT, sample_step(20, random.Random(4), lineage=2))
    assert read_manifest(disk, f"{ROOT}/step_20") == again
    assert disk.names(ROOT) == ["step_20"]


def _piece(rank: int, begin: int, rows: int, needs: dict[str, tuple[Box, ...]]) -> ShardTable:
    """Return the table of a rank that stores rows of a tensor of four."""
    item = TensorItem(
        name="w", dtype="uint8", shape=(4,), offsets=(begin,), sizes=(rows,),
        at=0, length=rows, payload=0, size=rows,
    )  # fmt: skip
    paths = {"w": ("w",)}
    return ShardTable(
        rank=rank, world=4, tensor_bytes=4096, tensors=(item,), paths=paths, needs=needs
    )


@pytest.mark.parametrize(
    ("pieces", "missing"),
    [
        ([(0, 2, (0, 2))], []),  # its own shard, whole
        ([(0, 2, (0, 4)), (2, 2, (0, 4))], []),  # two ranks of a node share what both have
        ([(0, 1, (0, 2)), (2, 1, (2, 2))], ["w"]),  # the other rows are on another node
        ([(0, 2, (0, 4)), (0, 2, (0, 4))], ["w"]),  # the same piece twice is one piece
    ],
)
def test_a_node_starts_from_its_memory_only_with_all_that_its_ranks_need(
    pieces: list[tuple[int, int, tuple[int, int]]], missing: list[str]
) -> None:
    """A value held alike may lie in pieces with ranks of other nodes. The node then lacks it."""
    tables = [
        decode(encode(_piece(rank, begin, rows, {"w": (((start,), (size,)),)})))
        for rank, (begin, rows, (start, size)) in enumerate(pieces)
    ]
    assert lacking(tables) == missing


@pytest.mark.parametrize(
    ("asked", "missing"),
    [
        ({"w": (((0,), (2,)),)}, []),  # as stored
        ({"w": (((1,), (2,)),)}, []),  # across two stored pieces
        ({"w": (((2,), (2,)),)}, ["w"]),  # the last row is on another node
        ({"v": (((0,), (1,)),)}, ["v"]),  # as with a stage that another node had
        ({"w": (((0,), (3,)), ((4,), (2,)))}, []),  # a vocabulary that is padded for more ranks
        ({"w": (((0, 0), (4, 4)),)}, []),  # it fits nowhere, which the rank reports
    ],
)
def test_ranks_of_another_layout_need_other_parts(asked: Needs, missing: list[str]) -> None:
    """The world has as many ranks; its tensors may be cut otherwise."""
    tables = [_piece(0, 0, 2, {}), _piece(1, 2, 1, {})]
    assert lacking(tables, [{}, asked]) == missing


def test_a_rank_may_need_several_boxes_of_a_tensor() -> None:
    """Each counts; the one box that an older release wrote is read."""
    two: dict[str, tuple[Box, ...]] = {"w": (((0,), (1,)), ((3,), (1,)))}
    tables = [decode(encode(_piece(0, 0, 1, two)))]
    assert tables[0].needs == two
    assert lacking(tables) == ["w"]
    assert lacking([*tables, _piece(1, 3, 1, {})]) == []
    old = json.loads(encode(_piece(0, 0, 1, {})))
    old["needs"] = {"w": [[1], [2]]}
    assert decode(json.dumps(old).encode()).needs == {"w": (((1,), (2,)),)}
