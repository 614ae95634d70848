"""Entry of a worker that could not be forked: `python -m …bootstrap DESCRIPTOR SIGNAL`.

Started by the zygote only; the descriptor holds the worker's description.
"""

from __future__ import annotations

import os
import sys

from holdfast_agent.zygote.child import run_fresh

if __name__ == "__main__":
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        file.seek(0)
        body = file.read()
    run_fresh(body, int(sys.argv[2]))
