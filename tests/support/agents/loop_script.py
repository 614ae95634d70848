"""A job's script without a model: short steps with the SDK, for tests around training."""

from __future__ import annotations

import textwrap
from pathlib import Path

_LOOP = """
    import argparse, os, pathlib, sys, time
    import holdfast

    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    parser.add_argument("--steps-per-round", type=int, default=0)
    parser.add_argument("--loss", type=float, default=1.5)
    parser.add_argument("--raise-text", default="")
    parser.add_argument("--exit-once", default="", help="CODE:RANK:FILE, in step 5")
    parser.add_argument("--last-words", default="", help="said before that exit")
    args = parser.parse_args()
    job = holdfast.init()
    first = 1 + job.round * args.steps_per_round
    for step in range(first, first + args.steps):
        time.sleep(args.step_seconds)
        if args.raise_text and step == 5:
            raise RuntimeError(args.raise_text.encode().decode("unicode_escape"))
        code, _, where = args.exit_once.partition(":")
        rank, _, file = where.partition(":")
        if code and step == 5 and os.environ["RANK"] == rank and not os.path.exists(file):
            pathlib.Path(file).touch()
            print(args.last_words, file=sys.stderr, flush=True)
            sys.exit(int(code))
        if job.step(step, samples=4, loss=args.loss) is holdfast.SAVE_AND_STOP:
            break
"""


def loop_script(directory: Path, *flags: str) -> list[str]:
    """Write the script into `directory`; return the words that start it.

    Flags: --steps, --step-seconds, --steps-per-round (a round begins that much later than the one
    before: it gets further, as with a checkpoint), --loss (nan too), --raise-text (with escapes, in
    step 5), --exit-once=CODE:RANK:FILE (in step 5, unless FILE exists), --last-words (said before
    that).
    """
    script = directory / "loop.py"
    script.write_text(textwrap.dedent(_LOOP))
    return [str(script), *flags]
