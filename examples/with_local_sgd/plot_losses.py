"""Trains the example by DDP, EDiT and A-EDiT, and draws loss against tokens and against bytes.

    python examples/with_local_sgd/plot_losses.py build/losses

writes `losses.csv` and `losses.png` there, in three minutes on two cores. Without matplotlib it
writes the CSV file alone.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
WAYS = {"ddp": "DDP", "edit": "EDiT", "a-edit": "A-EDiT"}
SMOOTH = 10
"""Steps whose mean is drawn."""

Row = dict[str, str]


def main() -> None:
    """Train each way, then draw."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--replicas", type=int, default=2)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    losses = args.folder / "losses.csv"
    losses.unlink(missing_ok=True)
    for way in WAYS:
        train(way, losses, args)
    with losses.open(newline="") as file:
        rows = list(csv.DictReader(file))
    draw(rows, args.folder / "losses.png")


def train(way: str, losses: Path, args: argparse.Namespace) -> None:
    """Train one way; a replica is one rank, so that FSDP2 shards nothing."""
    options = [f"--way={way}", f"--steps={args.steps}", f"--curve={losses}"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    script = [str(HERE / "train.py"), "--shards=1", *options]
    print(f"{WAYS[way]}:", flush=True)
    subprocess.run([*launch, f"--nproc-per-node={args.replicas}", *script], check=True)


def draw(rows: list[Row], picture: Path) -> None:
    """Draw the losses, smoothed, against tokens and against bytes."""
    try:
        import matplotlib as mpl
    except ImportError:
        print(f"{picture} is not drawn: matplotlib is missing (pip install matplotlib)")
        return
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    by_way: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_way[row["way"]].append(row)
    figure, sides = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for side, unit, factor in zip(sides, ("tokens", "bytes"), (1.0, 2.0**-20), strict=True):
        for way, own in by_way.items():
            values = [float(row["loss"]) for row in own]
            smooth = [_mean(values[max(0, at - SMOOTH) : at]) for at in range(1, len(values) + 1)]
            side.plot([float(row[unit]) * factor for row in own], smooth, label=WAYS[way])
        side.set_xlabel(unit if factor == 1 else "MiB sent by a rank")
        side.grid(visible=True, alpha=0.3)
    sides[0].set_ylabel(f"training loss, nats a byte, mean of {SMOOTH} steps")
    sides[0].legend()
    figure.savefig(picture, dpi=120)
    print(f"{picture} is drawn")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
