"""Names that two components share: environment variables, labels, files, roles, limits.

Values only. Their meaning to a component is that component's business.
"""

from __future__ import annotations

# --- environment that an operator or runner sets for an agent ------------------------------------
ENV_MASTER = "HOLDFAST_MASTER"
"""host:port of the job master."""
ENV_JOB = "HOLDFAST_JOB"
"""Name of the job."""
ENV_JOB_UID = "HOLDFAST_JOB_UID"
"""Uid of the job object; part of every certificate of the job."""
ENV_NODE_RANK = "HOLDFAST_NODE_RANK"
"""Stable index of this node (pod index)."""
ENV_POD_UID = "HOLDFAST_POD_UID"
"""Uid of this pod; locally the runner's id of this agent process."""
ENV_TLS_DIR = "HOLDFAST_TLS_DIR"
"""Directory that holds `ca.pem`, `cert.pem` and `key.pem` of this process."""
ENV_NPROC_PER_NODE = "HOLDFAST_NPROC_PER_NODE"
"""Default for --nproc-per-node: a number, auto, gpu or cpu."""
ENV_NNODES = "HOLDFAST_NNODES"
"""min:max nodes of the job."""

# --- environment that an operator sets for a master ----------------------------------------------
ENV_EPOCH = "HOLDFAST_EPOCH"
"""First epoch of those that this pod owns; each start of its container takes the next."""
ENV_JOURNAL_DIR = "HOLDFAST_JOURNAL_DIR"
"""Directory of the master's journal; unset: it keeps none."""
ENV_STARTS_DIR = "HOLDFAST_STARTS_DIR"
"""Directory where a master without a journal counts the starts of its container."""
ENV_NAMESPACE = "HOLDFAST_NAMESPACE"
"""Namespace of the job, as its metrics name it."""
ENV_METRICS_PORT = "HOLDFAST_METRICS_PORT"
"""Port of the master's metrics; unset: it serves none."""
ENV_GRACE = "HOLDFAST_GRACE_SECONDS"
"""Seconds from SIGTERM to an agent's end; in a pod less than its grace period."""
ENV_TOPOLOGY = "HOLDFAST_TOPOLOGY"
"""Topology labels as `key=value,key=value`."""

# --- environment that an agent sets for a training process ---------------------------------------
ENV_PAGE = "HOLDFAST_PAGE"
"""`fd:slot` of the rank's shared page."""
ENV_ROUND = "HOLDFAST_ROUND"
"""Round of the world that the process belongs to."""
ENV_STEP_LOG = "HOLDFAST_STEP_LOG"
"""Directory to which the SDK writes a line per step; inherited from the starter of the agent."""
ENV_ARENA_DIR = "HOLDFAST_ARENA_DIR"
"""Directory of a memory volume for an agent's arenas; set for an agent, by an operator."""
ENV_ARENA_SOCKET = "HOLDFAST_ARENA_SOCKET"
"""Number of an inherited socket to the runner, which holds an agent's arenas too."""
ENV_ARENA = "HOLDFAST_ARENA"
"""Socket of this node's checkpoint server; set for a rank."""
ENV_ROSTER = "HOLDFAST_OUTER_ROSTER"
"""File of the newest roster of replicas (local SGD); set for a rank."""
ENV_REPLICA = "HOLDFAST_REPLICA"
"""Number of a rank's replica in rosters; set for a rank."""
ENV_SYNC_CHOICES = "HOLDFAST_SYNC_CHOICES"
"""File to which a rank appends how replicas have chosen to agree (local SGD): a `SyncChosen` in
protobuf's JSON on each line; set for a rank."""
ENV_DATA = "HOLDFAST_DATA"
"""Socket of this node's agent for readers of shards; set for a rank."""
ENV_SCHEDULE = "HOLDFAST_SCHEDULE"
"""`memory:storage`: a world's first steps between checkpoints; set for a rank."""
ENV_CHECKPOINT = "HOLDFAST_CHECKPOINT"
"""A `CheckpointPolicy` in protobuf's JSON, as the job's file says it; set for a rank."""

# --- torchrun's own variables, for an unmodified torchrun ----------------------------------------
PET_RDZV_BACKEND = "PET_RDZV_BACKEND"
PET_RDZV_ENDPOINT = "PET_RDZV_ENDPOINT"
PET_RDZV_ID = "PET_RDZV_ID"
PET_NNODES = "PET_NNODES"
PET_NODE_RANK = "PET_NODE_RANK"
PET_NPROC_PER_NODE = "PET_NPROC_PER_NODE"
RDZV_BACKEND = "holdfast"
"""Name of the handler in the `torchrun.handlers` entry-point group."""

# --- certificates --------------------------------------------------------------------------------
CA_FILE = "ca.pem"
CERT_FILE = "cert.pem"
KEY_FILE = "key.pem"

ROLE_MASTER = "master"
ROLE_AGENT = "agent"
ROLE_USER = "user"
ROLE_OPERATOR = "operator"
ROLES = (ROLE_MASTER, ROLE_AGENT, ROLE_USER, ROLE_OPERATOR)

# --- Kubernetes ----------------------------------------------------------------------------------
API_GROUP = "holdfast.dev"
API_VERSION = "holdfast.dev/v1alpha1"
KIND = "ElasticJob"
LABEL_JOB = "holdfast.dev/job"
LABEL_ROLE = "holdfast.dev/role"
LABEL_INDEX = "holdfast.dev/index"
FINALIZER = "holdfast.dev/checkpoint"

# --- limits that both sides of a stream keep -----------------------------------------------------
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Largest message on any stream: stacks (256 KiB per node) and snapshots fit; a flood does not."""
MAX_TEXT_BYTES = 8 * 1024
"""Limit to which error messages and log tails are cut before they are sent."""
