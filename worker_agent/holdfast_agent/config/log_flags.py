"""torchrun's flags about the workers' output, checked against the size of the node.

Belongs here: --log-dir, --redirects, --tee and the filters. Does not belong here: the files
(`workers.log_files`), the other flags (`flags`). torch is imported inside functions.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from holdfast_agent.config.launch import LogFlags
from holdfast_agent.errors import InputError


def parse(args: argparse.Namespace, environ: Mapping[str, str], size: int) -> LogFlags:
    """Return the log flags for a node of `size` processes; raises InputError."""
    template = args.log_line_prefix_template or environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
    if args.log_dir and Path(args.log_dir).is_file():
        raise InputError("--log-dir", args.log_dir, "a directory, this is a file")
    return LogFlags(
        log_dir=args.log_dir,
        redirects=_std("--redirects", args.redirects, size),
        tee=_std("--tee", args.tee, size),
        ranks_filter=_ranks_filter(args.local_ranks_filter, size),
        prefix_template=template,
        stdout_filters=_words(args.duplicate_stdout_filters),
        stderr_filters=_words(args.duplicate_stderr_filters),
        specs=args.logs_specs,
    )


def _std(name: str, text: str, size: int) -> str:
    from torch.distributed.elastic.multiprocessing import Std

    try:
        chosen = Std.from_str(text)
    except ValueError as error:
        raise InputError(name, text, "0 to 3, or a list such as 0:1,1:3") from error
    if isinstance(chosen, dict):
        _check_local_ranks(name, text, chosen, size)
    return text


def _ranks_filter(text: str, size: int) -> frozenset[int] | None:
    if not text:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InputError("--local-ranks-filter", text, "local ranks, for example 0,2")
    chosen = frozenset(int(part) for part in parts)
    _check_local_ranks("--local-ranks-filter", text, chosen, size)
    return chosen


def _check_local_ranks(name: str, text: str, chosen: Iterable[int], size: int) -> None:
    beyond = sorted(rank for rank in chosen if not 0 <= rank < size)
    if beyond:
        span = f"0 to {size - 1}" if size > 1 else "0 only"
        remedy = f"local ranks of this node, which are {span}; {beyond[0]} is none"
        raise InputError(name, text, remedy)


def _words(value: Sequence[str] | str) -> tuple[str, ...]:
    # A PET_* default arrives as the plain text, a flag as torch's list.
    return tuple(value.split(",")) if isinstance(value, str) else tuple(value)
