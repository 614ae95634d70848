"""Megatron's view of a directory: `iter_0000010`, `latest_checkpointed_iteration.txt`.

Holdfast commits a step by a rename to `step_<n>`, and no other name may become a step. So an
iteration's folder is a relative link to it: nothing is stored twice, a link to a step that does not
exist can be told from a checkpoint, and both names read with `torch.distributed.checkpoint`. Links
and the text follow the commits: they may be behind, never ahead. Nothing here reads them again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from holdfast.flash.storage.commit import write_whole
from holdfast.flash.storage.filesystem import PosixDisk
from holdfast.flash.storage.manifest import steps

LATEST: Final = "latest_checkpointed_iteration.txt"


def show(root: str) -> None:
    """Let links and text name the committed steps; for one process of a world.

    Raises:
        OSError: the directory takes no links, or cannot be written.
    """
    disk = PosixDisk()
    there = steps(disk, root)
    wanted = {f"iter_{step:07d}": f"step_{step}" for step in there}
    for link in Path(root).glob("iter_*"):
        if link.is_symlink() and link.name not in wanted:
            link.unlink()  # retention has deleted the step
    for name, target in wanted.items():
        link = Path(root, name)
        if not link.is_symlink() and not link.exists():
            link.symlink_to(target)
    if there and _text(root) != str(there[-1]):
        text = str(there[-1]).encode()
        write_whole(disk, root, LATEST, memoryview(text), len(text))


def is_megatrons(root: str) -> bool:
    """Tell whether a directory has checkpoints of Megatron's own format, and none of Holdfast."""
    return bool(_text(root)) and not steps(PosixDisk(), root)


def _text(root: str) -> str:
    try:
        return Path(root, LATEST).read_text().strip()
    except FileNotFoundError:
        return ""
