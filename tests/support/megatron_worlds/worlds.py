"""Worlds that train a tiny GPT with Megatron, run as a script (`checkpoints.forked_worlds`)."""

from __future__ import annotations

from checkpoints.forked_worlds import ForkedWorlds, serve


class Worlds(ForkedWorlds):
    """The script as seen by a test."""

    script = __file__
    before_torch = True


def main() -> None:
    """Import Megatron, then run the worlds that standard input names."""
    import logging

    import megatron_worlds.preloaded  # noqa: F401 - before torch

    logging.disable(logging.WARNING)  # one for each draw: CPU generators in CUDA's place
    from megatron_worlds.jobs import JOBS

    serve(JOBS)


if __name__ == "__main__":
    main()
