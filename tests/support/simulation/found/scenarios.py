"""Finds of `make soak`, each as it shrank them: data for a test that keeps them mended."""

from __future__ import annotations

from simulation.scenario import pasted

FOUND = {
    "a digest's draining node was counted in the world that it left too small": pasted(
        "seed=905212 replicas=2 minimum=2 maximum=2",
        "2 restart_node, 2 lose_journal 1 2, 4 cut_down 0 12, 6 kill_master 0 0.4128",
    ),
    "a world was adopted with a member that had left before the last one was back": pasted(
        "seed=1795391514258 replicas=3 maximum=3 heartbeat=0.5",
        "3 kill_worker, 3.8127 exit_worker, 4 lose_journal 0 1, 5.8991 leave",
    ),
    "a member that had saved and was made anew was taken for itself by the next master": pasted(
        "seed=1795391514491 replicas=3 minimum=2 maximum=3 heartbeat=0.5 commits=0.3",
        "1 freeze_agent 0 10, 3 crash_agent 2, 5 kill_master 0 5",
    ),
    "a master that was still asking who runs a world died, and its successor did not ask": pasted(
        "seed=1730 maximum=5",
        "2 lose_journal 0 2.844, 3 pause_node 2 5, 3.2771 crash_agent 1, 4 pause_node 0 14, "
        "5.2386 restart_agent, 5.4155 zombie_master 0 9.2996, 5.4319 pause_node 0 13, "
        "5.4319 operator_repeats, 5.6336 cut_all 0 7.7186",
    ),
    "a join window was counted from nodes that a suspension had released": pasted(
        "seed=1795600009450 replicas=100 maximum=100 join_window=3.0 commits=1.0",
        "0 kill_master 0 3, 1 cut_half 0 12, 2 evict 87 1, 4.4485 evict 94 1, "
        "4.9709 suspend 0 0.1623",
    ),
    "a change was begun, its barrier torn off the journal, and nobody went on with it": pasted(
        "seed=1795700001313 replicas=2 maximum=2 commits=1.0",
        "0.3993 cut_half 0 8, 3 tear_journal 3 5",
    ),
    "two masters offered schedules of checkpoints by the same number": pasted(
        "seed=1795800001419 replicas=2 minimum=2 maximum=3 standbys=1 heartbeat=1.0",
        "2 zombie_master 0 8",
    ),
    "a master that was thought dead ended the job, and its successor was awaited to": pasted(
        "seed=1795400006644 replicas=1 maximum=1 heartbeat=1.0 commits=0.3",
        "1 stop_request 0 1, 1 full_disk 0 2, 1 zombie_master 0 9, 3 kill_master 0 5",
    ),
    "a world was left without its newest member by a torn half of a decision": pasted(
        "seed=1795900003783 replicas=5 maximum=5 join_window=3.0 commits=1.0",
        "2.4968 restart_agent 4, 2.5033 kill_worker, 3 stall_master 0 19, 5 tear_journal 6 3",
    ),
    "a world of one was left without its member by a torn half of a decision": pasted(
        "seed=23096 replicas=1 maximum=1",
        "4 tear_journal 0 3, 4 operator_gone 0 5, 7.8369 fail_agent, 8 tear_journal 5 2",
    ),
    "a master that was thought dead made a world of a node that nobody else reaches": pasted(
        "seed=28082 replicas=1 maximum=1 standbys=1 heartbeat=0.5",
        "4 zombie_master 0 10, 4 stall_master 0 3",
    ),
    "an agent that was to leave in its own time went on training when the others began": pasted(
        "seed=1900000004972 replicas=2 maximum=6 commits=0.3",
        "1 tear_journal 0 3, 1.305 cut_all 0 4, 1.3928 evict 0 6",
    ),
    "a charge that the journal had was brought again by an agent's digest": pasted(
        "seed=1910000010647 replicas=2 minimum=2 maximum=2 replace_delay=0.05",
        "0 crash_agent, 0 slow_node 0 8, 0.205 zombie_master 0 2",
    ),
    "an agent was blamed for workers that outlived the limit while it was frozen": pasted(
        "seed=2100000011309 replicas=1 maximum=1 masterless=4.0",
        "1 lose_journal 0 5, 2 cut 0 8, 4 slow_node 0 6, 5.5633 freeze_agent 0 3.5123",
    ),
    "a world got the number that a stalled master's predecessor had given meanwhile": pasted(
        "seed=2200000010592 replicas=2 minimum=2 maximum=2 unit=2 standbys=1 commits=0.3",
        "0.2118 zombie_master 0 8, 0.7886 kill_worker, 1 stall_master 0 13, 1 crash_agent, 1 blip",
    ),
    "a world was made with an agent whose words came after its pod's end": pasted(
        "seed=3100000012147 replicas=2 minimum=2 maximum=2 commits=0.3",
        "1.6911 stall_master 0 19, 1.714 cut 1 4, 1.8427 evict 1 6, 2 kill_master 0 1, "
        "3.523 kill_master 0 3, 4 crash_agent, 4 slow_node 0 7",
    ),
    "a zombie's world was taken for the newest one by agents that heard of its successor": pasted(
        "seed=3100000015926 replicas=8 heartbeat=1.0 replace_delay=3.0 skew=0.01 commits=1.0",
        "2.5704 zombie_master 0 12.1498, 3.1819 cut 5 3.3257",
    ),
    "a world had a lower number than its member's, who had it from a zombie": pasted(
        "seed=3200000089383 maximum=4",
        "2 zombie_master 0 13.2387, 2 vanish, 2 crash_agent, 2.3782 stall_master 0 13",
    ),
    "a zombie's world took its first step while its agent, told better, was killing it": pasted(
        "seed=1795552282165 replicas=2 maximum=2 standbys=1 heartbeat=0.5 skew=0.01",
        "3 raise_worker, 3.8254 stall_master 0 2, 4 respec, 4 cut_up 1 11.7007, "
        "5.9062 zombie_master 0 10.0994, 5.9344 blip",
    ),
    "a digest's draining node that came late was not drained": pasted(
        "seed=2285 replicas=2 minimum=2 maximum=6 commits=0.3",
        "2 restart_node 1, 3 pause_node 1 10, 3 lose_journal 0 0.4308",
    ),
    "a digest was not heard of nodes that a journal without a world knew": pasted(
        "seed=56 minimum=2 maximum=4 unit=2",
        "7 lose_journal 0 1, 8 evict 0 2, 10 tear_journal 0 5",
    ),
    "a drain was held against a master that its only keeper had reached too late": pasted(
        "seed=1795556127579 replicas=2 maximum=2 standbys=1",
        "3 restart_node, 5 cut_all 0 12, 7 lose_journal 0 1, 7 evict 2 6",
    ),
    "surplus nodes passed for those that might run a world": pasted(
        "seed=1795567360570 replicas=2 maximum=1 standbys=2 heartbeat=1.0 commits=0.3",
        "1.9161 kill_master 0 1, 2 cut_all 0 12, 2 scale, 3 evict 0 4, 3 scale, "
        "14 lose_journal 0 1",
    ),
    "a failure of a world was blamed on another of its number": pasted(
        "seed=1795567764635 replicas=1 maximum=1 standbys=2 replace_delay=3.0",
        "1 lose_journal 0 6, 1 leave, 1 freeze_agent 0 2, 1 crash_agent, 4 cut_all 0 14, "
        "4 raise_worker, 17.4725 lose_journal 0 1",
    ),
    "a surplus node gave way to the one that it stood for after a master was lost": pasted(
        "seed=1795568354862 replicas=3 maximum=3 heartbeat=3.0 commits=1.0",
        "2 kill_worker 2, 3 cut_half 0 3.6791, 3 kill_worker, 5 evict 0 6, 6 scale, "
        "7 kill_master 0 3",
    ),
    "a growth was to be paid that undid the loss to a zombie master": pasted(
        "seed=1795568375973 replicas=2 maximum=2 heartbeat=0.5 replace_delay=3.0",
        "1 zombie_master 0 8, 1 stall_master 0 3",
    ),
    "an offer was dropped that a lost master had confirmed to some": pasted(
        "seed=1795570134746 replicas=3 maximum=3 standbys=1 join_window=3.0 heartbeat=0.5 "
        "raises=1.0",
        "1 lose_journal 0 2, 1 cut_all 0 5, 1 crash_agent, 4 slow_node 3 10, 4 cut 0 7, "
        "13 lose_journal 0 1",
    ),
    "of two worlds of one number the older was adopted": pasted(
        "seed=1795571391371 replicas=11 maximum=11 standbys=1",
        "3 lose_journal 0 2, 3 cut_up 11 11, 12 lose_journal 1 1",
    ),
    "what a full disk had refused was not written again by itself": pasted(
        "seed=1795571936447 replicas=1 maximum=1",
        "3 full_disk 0 1, 3 drain, 5 drain, 6 kill_master 0 3",
    ),
    "who claimed another world than the adopted one ran on": pasted(
        "seed=1795574497311 replicas=12 maximum=12 standbys=1",
        "0.6058 leave 9, 1 twin_master 0 4, 1 leave 9, 1.119 crash_agent 9, 2 raise_worker 10, "
        "4 lose_journal 9 3",
    ),
    "a replacement was still to come when its master was lost": pasted(
        "seed=1795577468362 replicas=1 maximum=1 replace_delay=3.0",
        "1 drain, 1 restart_agent, 2 lose_journal 0 2",
    ),
    "a zombie ended the round while its successor stood still": pasted(
        "seed=1795579293370 replicas=3 minimum=3 maximum=3 heartbeat=1.0 commits=1.0",
        "0.8436 zombie_master 0 13, 1.1681 stall_master 0 18",
    ),
    "a window was not kept for a node that answers nothing": pasted(
        "seed=1795579090459 replicas=3 minimum=3 maximum=3",
        "2 respec 1, 3 exit_worker, 3 doubt_node 2 11, 3 lose_journal 0 2.274",
    ),
    "an adopted world broke at once, and no window was kept for the next": pasted(
        "seed=1795580483764 replicas=2 maximum=2 join_window=3.0",
        "2 lose_journal 0 1.838, 4 kill_worker, 4 restart_node",
    ),
    "a node that seemed to answer nothing was not waited for by nobody": pasted(
        "seed=1795582651611 replicas=1 maximum=5",
        "2 doubt_node 0 4, 3 lose_journal 0 2",
    ),
    "a drain that a digest had promised was forgotten by the next master": pasted(
        "seed=1795583593313 replicas=2 maximum=3",
        "0.179 cut 1 10, 0.5795 drain 1, 1 lose_journal 0 3, 5 kill_master 0 2",
    ),
    "a node froze before a restart was answered on a slow disk": pasted(
        "seed=1795588996402 replicas=2 maximum=2 join_window=3.0",
        "2 slow_disk 0 5, 2 restart_round, 2 freeze_agent 0 13",
    ),
    "a window was not kept for a node that answers nothing, beside one too many": pasted(
        "seed=1795589754511 replicas=8 minimum=2 unit=2 join_window=3.0",
        "0.5883 vanish 6, 0.5982 suspend 0 2.4898, 1.9128 twin_master 0 4, 2 stacks, "
        "3 kill_master 0 4.2108, 4 doubt_node 1 12",
    ),
    "a spare was not expected to take the place of the only node, which answered nothing": pasted(
        "seed=1795599063889 replicas=1 maximum=1 standbys=1",
        "6 vanish, 6 doubt_node 0 13, 13.1419 lose_journal 0 1",
    ),
    "of two worlds of one number the older was adopted before the newer one had a digest": pasted(
        "seed=1795571391371 replicas=11 maximum=11 standbys=1 samples=True",
        "3 lose_journal 0 2, 3 cut_up 11 11, 12 lose_journal 1 1",
    ),
    "a granted restart was held against the record of another node's loss": pasted(
        "seed=1795678918706 replicas=2 maximum=3 sdk=False commits=1.0",
        "2.3609 leave 1, 2.3609 crash_agent, 2.8798 restart_node",
    ),
    "a join window was counted from nodes that had gone while evidence was waited for": pasted(
        "seed=1795391525359 minimum=4 maximum=4 unit=2 replace_delay=3.0 commits=1.0",
        "2 crash_agent, 2 cut_all 0 11, 2 evict 3 6, 3 respec 1",
    ),
    "a join window was counted from nodes that had gone while a world had no store": pasted(
        "seed=1795391525359 minimum=4 maximum=4 unit=2 standbys=1 replace_delay=3.0 commits=1.0",
        "1.8774 crash_agent 1, 1.8794 cut_all 0 11, 2 evict 3 6, 3 respec 1, 4 stacks",
    ),
    "a round was asked why it had no processes after it had begun": pasted(
        "seed=7689 replicas=3 maximum=7 standbys=1 commits=0.3",
        "3 pause_node 0 5, 4 kill_worker 2, 4.4831 crash_agent, 5 freeze_agent 0 12",
    ),
    "an operator that came back was made to say what it had seen before it went": pasted(
        "seed=2200000020067 replicas=2 minimum=2 maximum=2 store_failures=0.2 commits=0.3",
        "1 operator_gone 0 2.6323, 1 evict 1 1, 1 respec 1, 1 operator_late 0 3, "
        "1.1192 suspend 0 2, 1.1237 evict 1 3",
    ),
    "a drained node that had been silent for too long was taken back": pasted(
        "seed=275 replicas=1 maximum=1",
        "4 drain, 4 cut_all 0 8",
    ),
    "a node that a user wanted replaced was taken back after it had stood still": pasted(
        "seed=181 replicas=2 minimum=2 maximum=2 unit=2 commits=1.0",
        "8 restart_node 1, 9 freeze_agent 1 9",
    ),
    "an old pod's end, told twice, was blamed for what its successor met": pasted(
        "seed=3058 replicas=2 minimum=2 maximum=2 unit=2",
        "1 leave, 2.6435 raise_worker, 3 operator_repeats",
    ),
    "an evicted node that left by itself was paid before the operator had said why": pasted(
        "seed=88000814 maximum=4 standbys=2 join_window=3.0 commits=1.0",
        "2 operator_repeats, 2.8057 blip 5, 2.8057 operator_late 0 8, 2.8556 evict 5 2, 5 stop_job",
    ),
    "an eviction was not heard of once the agent of the next pod was there": pasted(
        "seed=1795557174222 maximum=4 heartbeat=3.0 commits=0.3",
        "2.5979 operator_late 0 5, 2.9202 blip 3, 2.9719 evict 3 7",
    ),
    "parts of which one was lost were expected on storage": pasted(
        "seed=1795568081278 replicas=2 minimum=2 maximum=2 standbys=2 heartbeat=0.5 commits=1.0",
        "3 restart_agent, 5 stop_request 0 4",
    ),
    "an eviction was to be known that no operator had watched": pasted(
        "seed=1795569305275 maximum=4 heartbeat=1.0 commits=0.3",
        "4 slow_node 3 6, 4 vanish, 5 operator_gone 0 1, 5.2792 blip, 5.3232 respec, "
        "5.3232 evict 0 5",
    ),
    "an eviction in the world after an incident's was to be no part of it": pasted(
        "seed=1795590239722 minimum=2 maximum=4",
        "0.3803 raise_worker 1, 0.3823 freeze_agent 1 8, 3 evict 0 2, 3 raise_worker, "
        "7 suspend 0 1",
    ),
    "an agent was to ask its peers while it stood still": pasted(
        "seed=1795590564075 minimum=4 maximum=4 standbys=2",
        "0.673 cut_half 0 6, 1 kill_worker 5, 3 pause_node 0 13, 4 vanish, "
        "4.3179 freeze_agent 0 3.6786",
    ),
    "an eviction while the stream was broken was to cost a rescale": pasted(
        "seed=1795684342798 replicas=1 maximum=1",
        "2.842 operator_late 0 1, 2.8472 blip, 2.8551 evict 0 6, 5 restart_node, 5 kill_worker",
    ),
    "a goodbye that nobody could hear was to be known": pasted(
        "seed=1795617609805 replicas=1 maximum=1",
        "2 operator_gone 0 5, 2.268 blip, 2.2743 respec, 2.2993 leave",
    ),
}
"""Name of the fault, in the past, to the scenario that shows it."""
