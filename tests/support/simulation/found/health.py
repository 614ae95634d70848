"""Schedules that once led masters, or the checks themselves, to a false verdict about a node."""

from __future__ import annotations

from collections.abc import Mapping

from simulation.scenario import Scenario, pasted

FOUND: Mapping[str, Scenario] = {
    "a node's clock was set, and the node seemed slow": pasted(
        "seed=27 minimum=2 maximum=3 policy=2 samples=True",
        "19.4085 set_clock 1",
    ),
    "old answers about a clock outlived its setting": pasted(
        "seed=90 replicas=2 minimum=2 maximum=6 join_window=3.0 policy=3 skew=0.01 commits=0.3 "
        "samples=True",
        "24.8188 set_clock 1",
    ),
    "a node that was not heard for some seconds seemed to hang": pasted(
        "seed=1795720601261 replicas=1 maximum=1 commits=0.3 samples=True",
        "13 cut_up 0 5.571",
    ),
    "a worn-out node broke down behind a new master's begin": pasted(
        "seed=1795719201521 replicas=2 minimum=2 maximum=2 unit=2 samples=True",
        "60 wear_out 0 14, 60 kill_master 0 1",
    ),
    "evidence of a hang was judged against the world that followed": pasted(
        "seed=377 maximum=4 heartbeat=3.0 samples=True acts=True",
        "37 hang_rank 0 38, 51 crash_agent",
    ),
    "a node that was to leave as it is slow broke down before the barrier": pasted(
        "seed=54 replicas=5 maximum=5 heartbeat=3.0 samples=True acts=True",
        "23 wear_out 2 14",
    ),
}
