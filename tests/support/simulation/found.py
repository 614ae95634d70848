"""What hours of `make soak` found, each as it shrank it: data for a test that keeps it mended."""

from __future__ import annotations

from simulation.found_handovers import HANDOVERS
from simulation.scenario import Fault, Scenario

FOUND = HANDOVERS | {
    "a join window was counted from nodes that had gone while evidence was waited for": Scenario(
        seed=1795391525359,
        minimum=4,
        maximum=4,
        unit=2,
        replace_delay=3.0,
        commits=1.0,
        faults=(
            Fault(2.0, "crash_agent", 0, 0.0),
            Fault(2.0, "cut_all", 0, 11.0),
            Fault(2.0, "evict", 3, 6.0),
            Fault(3.0, "respec", 1, 0.0),
        ),
    ),
    "a join window was counted from nodes that had gone while a world had no store": Scenario(
        seed=1795391525359,
        replicas=4,
        minimum=4,
        maximum=4,
        unit=2,
        standbys=1,
        replace_delay=3.0,
        commits=1.0,
        faults=(
            Fault(1.8774, "crash_agent", 1, 0.0),
            Fault(1.8794, "cut_all", 0, 11.0),
            Fault(2.0, "evict", 3, 6.0),
            Fault(3.0, "respec", 1, 0.0),
            Fault(4.0, "stacks", 0, 0.0),
        ),
    ),
    "a round was asked why it had no processes after it had begun": Scenario(
        seed=7689,
        replicas=3,
        maximum=7,
        standbys=1,
        commits=0.3,
        faults=(
            Fault(3.0, "pause_node", 0, 5.0),
            Fault(4.0, "kill_worker", 2, 0.0),
            Fault(4.4831, "crash_agent", 0, 0.0),
            Fault(5.0, "freeze_agent", 0, 12.0),
        ),
    ),
    "an operator that came back was made to say what it had seen before it went": Scenario(
        seed=2200000020067,
        replicas=2,
        minimum=2,
        maximum=2,
        store_failures=0.2,
        commits=0.3,
        faults=(
            Fault(1.0, "operator_gone", 0, 2.6323),
            Fault(1.0, "evict", 1, 1.0),
            Fault(1.0, "respec", 1, 0.0),
            Fault(1.0, "operator_late", 0, 3.0),
            Fault(1.1192, "suspend", 0, 2.0),
            Fault(1.1237, "evict", 1, 3.0),
        ),
    ),
    "a drained node that had been silent for too long was taken back": Scenario(
        seed=275,
        replicas=1,
        maximum=1,
        faults=(
            Fault(4.0, "drain", 0, 0.0),
            Fault(4.0, "cut_all", 0, 8.0),
        ),
    ),
    "a node that a user wanted replaced was taken back after it had stood still": Scenario(
        seed=181,
        replicas=2,
        minimum=2,
        maximum=2,
        unit=2,
        commits=1.0,
        faults=(
            Fault(8.0, "restart_node", 1, 0.0),
            Fault(9.0, "freeze_agent", 1, 9.0),
        ),
    ),
    "an old pod's end, told twice, was blamed for what its successor met": Scenario(
        seed=3058,
        replicas=2,
        minimum=2,
        maximum=2,
        unit=2,
        faults=(
            Fault(1.0, "leave", 0, 0.0),
            Fault(2.6435, "raise_worker", 0, 0.0),
            Fault(3.0, "operator_repeats", 0, 0.0),
        ),
    ),
    "an evicted node that left by itself was paid before the operator had said why": Scenario(
        seed=88000814,
        maximum=4,
        standbys=2,
        join_window=3.0,
        commits=1.0,
        faults=(
            Fault(2.0, "operator_repeats", 0, 0.0),
            Fault(2.8057, "blip", 5, 0.0),
            Fault(2.8057, "operator_late", 0, 8.0),
            Fault(2.8556, "evict", 5, 2.0),
            Fault(5.0, "stop_job", 0, 0.0),
        ),
    ),
    "an eviction was not heard of once the agent of the next pod was there": Scenario(
        seed=1795557174222,
        maximum=4,
        heartbeat=3.0,
        commits=0.3,
        faults=(
            Fault(2.5979, "operator_late", 0, 5.0),
            Fault(2.9202, "blip", 3, 0.0),
            Fault(2.9719, "evict", 3, 7.0),
        ),
    ),
    "parts of which one was lost were expected on storage": Scenario(
        seed=1795568081278,
        replicas=2,
        minimum=2,
        maximum=2,
        standbys=2,
        heartbeat=0.5,
        commits=1.0,
        faults=(
            Fault(3.0, "restart_agent", 0, 0.0),
            Fault(5.0, "stop_wish", 0, 4.0),
        ),
    ),
    "an eviction was to be known that no operator had watched": Scenario(
        seed=1795569305275,
        maximum=4,
        heartbeat=1.0,
        commits=0.3,
        faults=(
            Fault(4.0, "slow_node", 3, 6.0),
            Fault(4.0, "vanish", 0, 0.0),
            Fault(5.0, "operator_gone", 0, 1.0),
            Fault(5.2792, "blip", 0, 0.0),
            Fault(5.3232, "respec", 0, 0.0),
            Fault(5.3232, "evict", 0, 5.0),
        ),
    ),
    "an eviction in the world after an incident's was to be no part of it": Scenario(
        seed=1795590239722,
        minimum=2,
        maximum=4,
        faults=(
            Fault(0.3803, "raise_worker", 1, 0.0),
            Fault(0.3823, "freeze_agent", 1, 8.0),
            Fault(3.0, "evict", 0, 2.0),
            Fault(3.0, "raise_worker", 0, 0.0),
            Fault(7.0, "suspend", 0, 1.0),
        ),
    ),
    "an agent was to ask its peers while it stood still": Scenario(
        seed=1795590564075,
        minimum=4,
        maximum=4,
        standbys=2,
        faults=(
            Fault(0.673, "cut_half", 0, 6.0),
            Fault(1.0, "kill_worker", 5, 0.0),
            Fault(3.0, "pause_node", 0, 13.0),
            Fault(4.0, "vanish", 0, 0.0),
            Fault(4.3179, "freeze_agent", 0, 3.6786),
        ),
    ),
    "a goodbye that nobody could hear was to be known": Scenario(
        seed=1795617609805,
        replicas=1,
        maximum=1,
        faults=(
            Fault(2.0, "operator_gone", 0, 5.0),
            Fault(2.268, "blip", 0, 0.0),
            Fault(2.2743, "respec", 0, 0.0),
            Fault(2.2993, "leave", 0, 0.0),
        ),
    ),
}
"""Name of the fault, in the past, to the scenario that shows it."""
