"""Settings of the core: its identity and its time limits, as frozen values with their reasons."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CoreIdentity:
    """The identity of the job and of this master process of the job."""

    job_name: str
    job_uid: str
    epoch: int
    """Allocated by whoever starts the master; at least 1."""
    incarnation: str
    """Random id of this process; the shell makes it."""
    version: str
    """Release, for the journal's segment header."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """Time limits of the core. All in seconds."""

    heartbeat_seconds: float = 0.5
    """Between heartbeats in worlds of up to 500 nodes: ten of them fit into the silence limit."""
    lease_seconds: float = 4.0
    """An agent's lease. Shorter than the silence limit, so that the workers of a frozen agent are
    dead before a new round starts."""
    silence_seconds: float = 5.0
    """Without evidence of death an agent is lost after this long without a message: the lease and
    two heartbeats."""
    reconnect_seconds: float = 0.3
    """A broken stream that is back within this is no news: no warning event is written."""
    crowd_nodes: int = 500
    """Above this many nodes (not seconds) heartbeats are stretched."""
    crowd_messages_per_second: float = 1000.0
    """Heartbeats per second (not seconds) that stretched intervals aim at, all agents together."""
    longest_heartbeat_seconds: float = 5.0
    """Upper bound of a stretched interval; the silence limit becomes lease + 2 intervals."""
    masterless_seconds: float = 600.0
    """How long an agent may train on without a master."""
    stop_grace_seconds: float = 30.0
    """SIGTERM to SIGKILL for drain, stop and success: the usual grace of a pod."""
    evidence_seconds: float = 10.0
    """How long after the first step evidence of the incident still counts."""
    terminal_seconds: float = 1.0
    """How long the end of a job waits for better evidence."""
    store_seconds: float = 10.0
    """How long a world waits for its store before another node is asked for one."""
    start_seconds: float = 2.0
    """A world without the SDK counts as training this long after all its nodes have started."""
    barrier_seconds: float = 30.0
    """How long a barrier may take after its step should have been reached."""
    barrier_tries: int = 3
    """How often a barrier step is set anew (not seconds) when ranks had passed it already."""
    latency_seconds: float = 0.05
    """One way from master to rank, without the heartbeat interval: queue, stream, page poll."""
    rejoin_seconds: float = 30.0
    """How long a container that is started again in its pod has until its agent is ready: a
    kubelet waits up to 20 s before the third start, and torch is imported. The world that has lost
    it waits so long for what it has in memory; then a pod without an agent is made anew."""
    backoff_seconds: float = 1.0
    """Pause before the second restart in a row without a new step; each further one is twice as
    long. With the default budget of five such restarts a job outlasts 15 s without its storage."""
    longest_backoff_seconds: float = 30.0
    """Longest such pause: as long as a storage service takes to move to another server."""
    unseen_start_seconds: float = 120.0
    """How long a world whose ranks report no steps is taken to be starting: a newcomer does not
    throw its start away. A cold start that loads a large model takes one to two minutes."""
    grow_window_seconds: float = 5.0
    """How long a newcomer waits for others that are expected, so that they join together."""
    grow_horizon_seconds: float = 600.0
    """Over this long the gain of a larger world is compared with the cost of the change."""
    rescale_cost_seconds: float = 1.0
    """Assumed cost of a rescale before the first one has been measured."""
    adopt_seconds: float = 5.0
    """After a start with a journal: how long members of the old world may take to come back."""
    return_seconds: float = 10.0
    """How long the first world of a master without a journal waits for nodes of the world before
    it: an attempt to connect that was made while the predecessor was lost may take so long."""
    goodput_mark_seconds: float = 60.0
    """Between two goodput records in the journal: what a crash of the master may misplace."""
    commit_seconds: float = 60.0
    """How long an agent may take for a commit that it was granted before another one is asked. It
    writes two small files and renames: 1.2 s for 30,000 tensors, and more only where it deletes old
    steps of many files. One that is connected and silent has a disk that hangs."""
    commit_tries: int = 3
    """How many agents (not seconds) are granted a commit in turn before the step is given up."""
    rescue_seconds: float = 300.0
    """How long the end of a job, or a change of its nodes, waits for steps that only memory has. A
    disk with 0.2 GB/s writes 60 GB of a node in that time. A stop within a given time ends it
    before, and a stop at once does without."""
    rescue_least_seconds: float = 1.0
    """A change of nodes does not wait for less work than this: it is redone in the time that even a
    small checkpoint takes."""
    gather_ranks: int = 64
    """A world starts from parts in the memory of several nodes where so many ranks (not seconds) at
    most have saved them. Each node reads the shard table of each rank, so all together the square
    of the nodes; what more ranks have saved goes to storage first. 0: nobody reads another's
    memory."""
    schedule_seconds: float = 30.0
    """Between two looks at how far apart checkpoints should be: what they follow from changes
    slowly."""
    failure_seconds: float = 0.0
    """Mean time between failures of the job, where somebody knows it; 0: it is learned."""
    event_limit: int = 10_000
    """Events (not seconds) that are kept in memory for watchers."""
    incident_limit: int = 1_000
    """Closed incidents (not seconds) that are kept in memory."""
