"""The command line of `train_gpt.py`, checked before anything starts."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import english_text
from gpt_model import CONTEXT


def flags() -> argparse.ArgumentParser:
    """Return the parser of every flag but those for faults."""
    parser = argparse.ArgumentParser(
        description="Train a small byte-level GPT on English text.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--parallel", choices=("ddp", "fsdp2"), default="ddp", help="how ranks share the model")
    add("--steps", type=whole(1), default=600, help="optimizer steps in all, restarts included")
    add("--batch", type=whole(1), default=16, help="samples a step, over all ranks together")
    add("--lr", type=rate, default=5e-3, help="highest learning rate")
    add("--warmup", type=whole(1), default=50, help="steps until it is reached")
    add("--seed", type=whole(0), default=0, help="of the weights and of the data's order")
    add("--text", type=readable, metavar="FILE", help="train on this file instead of Python's help")
    add("--threads", type=whole(1), default=1, help="CPU threads of each process")
    add("--checkpoint-dir", type=folder, metavar="DIR", help="no checkpoints without it")
    add(
        "--save-every",
        type=steps_or_auto,
        default=50,
        metavar="STEPS",
        help="between checkpoints on storage; auto: as Holdfast computes it",
    )
    add("--eval-every", type=whole(0), default=0, help="steps between validations; 0: at the end")
    add("--log-every", type=whole(1), default=20, help="steps between lines of output")
    add("--loss-log", type=file, metavar="FILE", help="append a JSON line per step to this file")
    return parser


def whole(least: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `least` on."""

    def parse(value: str) -> int:
        if not (value.isascii() and value.isdecimal() and least <= int(value) < 2**31):
            raise argparse.ArgumentTypeError(f"{value!r}: expected a whole number from {least} on")
        return int(value)

    return parse


def steps_or_auto(value: str) -> int | Literal["auto"]:
    """Parse a number of steps, or auto."""
    if value == "auto":
        return "auto"
    try:
        return whole(1)(value)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or auto") from error


def rate(value: str) -> float:
    """Parse a learning rate."""
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < 10:
        raise argparse.ArgumentTypeError(f"{value!r}: expected a number between 0 and 10")
    return number


def folder(value: str) -> Path:
    """Parse the path of a folder that exists or can be made."""
    path = Path(value)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{value!r}: expected a folder, this is a file")
    return path


def file(value: str) -> Path:
    """Parse the path of a file to write, and make its folder."""
    path = Path(value)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{value!r}: cannot be written: {error}") from error
    return path


def readable(value: str) -> Path:
    """Parse the path of a text that is there and long enough."""
    path = Path(value)
    try:
        english_text.split(english_text.read(path), CONTEXT)
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{value!r}: {error}") from error
    return path
