"""Schedules that once led masters, or the checks themselves, to a false verdict about a node."""

from __future__ import annotations

from collections.abc import Mapping

from simulation.scenario import Fault, Scenario

FOUND: Mapping[str, Scenario] = {
    "a node's clock was set, and the node seemed slow": Scenario(
        seed=27,
        minimum=2,
        maximum=3,
        policy=2,
        samples=True,
        faults=(Fault(19.4085, "set_clock", 1, 0.0),),
    ),
    "old answers about a clock outlived its setting": Scenario(
        seed=90,
        replicas=2,
        minimum=2,
        maximum=6,
        join_window=3.0,
        policy=3,
        skew=0.01,
        commits=0.3,
        samples=True,
        faults=(Fault(24.8188, "set_clock", 1, 0.0),),
    ),
    "a node that was not heard for some seconds seemed to hang": Scenario(
        seed=1795720601261,
        replicas=1,
        maximum=1,
        commits=0.3,
        samples=True,
        faults=(Fault(13.0, "cut_up", 0, 5.571),),
    ),
    "a worn-out node broke down behind a new master's begin": Scenario(
        seed=1795719201521,
        replicas=2,
        minimum=2,
        maximum=2,
        unit=2,
        samples=True,
        faults=(Fault(60.0, "wear_out", 0, 14.0), Fault(60.0, "kill_master", 0, 1.0)),
    ),
    "evidence of a hang was judged against the world that followed": Scenario(
        seed=377,
        maximum=4,
        heartbeat=3.0,
        samples=True,
        acts=True,
        faults=(Fault(37.0, "hang_rank", 0, 38.0), Fault(51.0, "crash_agent", 0, 0.0)),
    ),
    "a node that was to leave as it is slow broke down before the barrier": Scenario(
        seed=54,
        replicas=5,
        maximum=5,
        heartbeat=3.0,
        samples=True,
        acts=True,
        faults=(Fault(23.0, "wear_out", 2, 14.0),),
    ),
}
