"""`python -m bench.failover`: kill masters of a real job at random instants; publish what was found.

Each instant is judged by itself (`verdict`), and the watcher beside by what it saw. Prints a JSON
line an instant and a summary; ends with 1 where anything was lost, done twice or left behind.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from bench.failover.instants import draw
from bench.failover.page import Figures, page
from bench.failover.play import Played, Player
from bench.failover.running_job import ROOT, RunningJob
from bench.failover.watcher import Watcher

PAGE = ROOT / "docs" / "benchmarks" / "failover.md"
TORCH = ["examples/train_gpt.py", "--steps=1000000", "--batch=4", "--log-every=100000"]


def script(folder: Path, *, torch: bool) -> list[str]:
    """Return the words that start the training script."""
    if torch:
        checkpoints = f"--checkpoint-dir={folder / 'checkpoints'}"
        return [*TORCH, "--save-every=1000000", "--extra-work-ms=100", checkpoints]
    return [str(Path(__file__).with_name("loop.py")), f"--folder={folder}"]


def run(instants: int, seed: int, folder: Path, *, torch: bool) -> Figures:
    """Play the instants on one job; return what was found."""
    figures = Figures(seed=seed, torch=torch)
    began = time.monotonic()
    with RunningJob(folder, script(folder, torch=torch)) as job:
        player, watcher = Player(job), Watcher(job.home)
        try:
            player.begin()
            for instant in draw(seed, instants):
                played = player.play(instant)
                figures.played.append(played)
                show(played, seed)
        finally:
            figures.watched = watcher.close()
            player.close()
    figures.seconds = time.monotonic() - began
    return figures


def show(played: Played, seed: int) -> None:
    """Print one line of JSON."""
    instant, verdict = played.instant, played.verdict
    line = {
        "seed": seed,
        "instant": instant.number,
        "scene": instant.scene.value,
        "journal": instant.journal,
        "delay_s": round(instant.delay_s, 3),
        "answer": played.answer.value,
        "rounds": verdict.rounds,
        "split": verdict.split,
        "redone": verdict.redone,
        "away_s": round(played.away_s, 2),
        "settled_s": round(played.settled_s, 2),
        "problems": verdict.problems,
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    """Parse the arguments, play, print and publish."""
    parser = argparse.ArgumentParser(prog="bench.failover", description=__doc__)
    parser.add_argument("--instants", type=int, default=200, help="with the cheap script")
    parser.add_argument("--torch-instants", type=int, default=24, help="with the example")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--publish", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
    found = []
    for count, torch in ((options.instants, False), (options.torch_instants, True)):
        with tempfile.TemporaryDirectory(prefix=prog_prefix(torch)) as folder:
            if count:
                found.append(run(count, options.seed, Path(folder), torch=torch))
    text = page(found, " ".join(sys.argv[1:]))
    print(text)
    if options.publish:
        PAGE.write_text(text)
    sys.exit(any(figures.problems for figures in found))


def prog_prefix(torch: bool) -> str:
    """Return what the run's folder is called."""
    return "failover-torch-" if torch else "failover-loop-"


if __name__ == "__main__":
    main()
