"""`python -m bench.failover`: kill masters of a real job at random instants; publish the counts.

Each instant is judged by itself (`verdict`), a watcher beside by what it saw. Prints and records a
JSON line an instant; ends with 1 where anything was lost or done twice.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.failover.instants import draw
from bench.failover.page import page, problems
from bench.failover.play import Played, Player
from bench.failover.running_job import KilledJob
from bench.failover.watcher import Watcher
from bench.harness import machine
from bench.harness.record import DOCS

PAGE = DOCS / "failover.md"
RECORD = PAGE.with_suffix(".jsonl")
TORCH = ["examples/train_gpt.py", "--steps=1000000", "--batch=4", "--log-every=100000"]


def script(folder: Path, *, torch: bool) -> list[str]:
    """Return the words that start the training script."""
    if torch:
        checkpoints = f"--checkpoint-dir={folder / 'checkpoints'}"
        return [*TORCH, "--save-every=50", "--extra-work-ms=100", checkpoints]
    return [str(Path(__file__).with_name("loop.py")), f"--folder={folder}"]


def run(
    instants: int,
    seed: int,
    folder: Path,
    note: Callable[[Mapping[str, Any]], None],
    *,
    torch: bool,
) -> None:
    """Play the instants on one job; `note` gets a line for each, and one for the run."""
    about, facts = {"seed": seed, "torch": torch}, machine.about("failover", [])
    with KilledJob(folder, script(folder, torch=torch)) as job:
        player, watcher = Player(job), Watcher(job.home)
        try:
            player.begin()
            for instant in draw(seed, instants):
                note({"kind": "instant", **about, **line_of(player.play(instant))})
        finally:
            note({"kind": "run", **about, **dataclasses.asdict(watcher.close()), "about": facts})
            player.close()


def line_of(played: Played) -> dict[str, Any]:
    """Return an instant as it is recorded."""
    instant, verdict = played.instant, played.verdict
    return {
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
        "problems": list(verdict.problems),
    }


def main() -> None:
    """Parse the arguments, play, record and publish."""
    parser = argparse.ArgumentParser(prog="bench.failover", description=__doc__)
    parser.add_argument("--instants", type=int, default=200, help="with the cheap script")
    parser.add_argument("--torch-instants", type=int, default=24, help="with the example")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, default=RECORD, help="lines are appended to it")
    parser.add_argument("--publish", action="store_true", help=f"write {PAGE.name} from the record")
    options = parser.parse_args()
    # As an exception, so that the job is ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with options.record.open("a", buffering=1) as record:

        def note(line: Mapping[str, Any]) -> None:
            text = json.dumps(line)
            print(text, flush=True)
            record.write(f"{text}\n")

        for count, torch in ((options.instants, False), (options.torch_instants, True)):
            with tempfile.TemporaryDirectory(prefix="failover-") as folder:
                if count:
                    run(count, options.seed, Path(folder), note, torch=torch)
    lines = [json.loads(line) for line in options.record.read_text().splitlines()]
    if options.publish:
        PAGE.write_text(page(lines))
    sys.exit(bool(problems(lines)))


if __name__ == "__main__":
    main()
