"""The core's time: its clocks, derived from the moments that the shell hands in, and its deadlines.

Deadlines are on the patient clock: the monotonic clock without the time in which the master itself
stood still. So a stall puts off every deadline without touching one.
"""

from __future__ import annotations

import dataclasses
import enum
import heapq
from collections.abc import Iterator

from holdfast_master.inputs import Moment
from holdfast_master.policies.goodput import micros

Subject = int | str


class Timer(enum.Enum):
    """Kinds of deadlines: what is due then, with the subject in brackets."""

    SILENCE = "(node rank) look whether the node has been heard"
    MISSING = "(node rank) an agent came back without its processes and has not said why"
    STORE = "the first node should have had its store by now"
    STORE_RETRY = "(node rank) ask a node again whose store could not start"
    BACKOFF = "the pause before a restart without progress is over"
    JOIN_WINDOW = "form the world with the nodes that are there"
    BELOW_MIN = "too few nodes for too long"
    ADOPT = "members of a world that this master does not know have had their time to come back"
    START = "a world without the SDK counts as training"
    GROW = "nodes that were expected have had their time"
    ACK = "every rank should have seen the barrier by now"
    SAVE_ACK = "every rank should have seen by now that it is to save"
    SAVE_SIGN = "something should show by now that ranks save"
    SCHEDULE = "look whether checkpoints should be further apart, or closer"
    SCHEDULE_SEEN = "every rank should have heard by now of a new distance between checkpoints"
    BARRIER = "every rank should have saved and stopped by now"
    ROSTER = "replicas that are ready have waited long enough for others to begin with"
    PARTING = "(replica) one whose ranks have ended well has been in the roster for long enough"
    LEASES = "readers that ask for shards have waited long enough for others to be leased with"
    SHARDS = "write down what readers of shards have committed"
    READERS_LEAVE = "readers that were told to end have had the time to"
    READERS_LOST = "others have had the time to tell how far lost readers had read"
    TERMINAL = "(incident) no better evidence came: the job ends"
    EVIDENCE = "(incident) evidence does not count any more: close it"
    STRAGGLER_SLICE = "go on with a look at the ranks' collectives"
    HANG = "look whether the running world makes progress"
    PREFLIGHT_GATHER = "nodes that are to be checked have waited long enough for others"
    PREFLIGHT_ROUND = "every node should have said by now what it measured"
    HANG_EVIDENCE = "every node should have said by now what its ranks do"
    REJOIN = "(node rank) a container that is started again in its pod should be ready by now"
    UNREACHABLE = "(node rank) the agent of a node that does not answer should have come by now"
    REQUEST = "(request) a user has waited long enough"
    COMMIT = "an agent should have answered the grant of a commit by now"
    RESCUE = "the flush of memory to storage has had its time"
    RELEASE = "surplus nodes go although the new world does not train yet"
    END = "agents have had their time to leave"
    ACTIVE_DEADLINE = "the job has run longer than it may"
    MARK = "write the goodput down"


Key = tuple[Timer, Subject]


class Timers:
    """Deadlines by key; setting a key again moves it."""

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._count = 0

    def set(self, timer: Timer, at: float, subject: Subject = 0) -> None:
        """Set or move a deadline."""
        key = (timer, subject)
        if self._due.get(key) == at:
            return
        self._due[key] = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, key))

    def ensure(self, timer: Timer, at: float, subject: Subject = 0) -> None:
        """Set a deadline unless one of this key is running."""
        if (timer, subject) not in self._due:
            self.set(timer, at, subject)

    def cancel(self, *timers: Timer, subject: Subject = 0) -> None:
        """Forget those of a subject's deadlines that are set."""
        for timer in timers:
            self._due.pop((timer, subject), None)

    def running(self, timer: Timer, subject: Subject = 0) -> bool:
        """Whether a deadline of this key is set."""
        return (timer, subject) in self._due

    def due(self, timer: Timer, subject: Subject = 0) -> float | None:
        """Return when a deadline is due; None: none of this key is running."""
        return self._due.get((timer, subject))

    def next(self) -> float | None:
        """The earliest deadline."""
        while self._heap:
            at, _, key = self._heap[0]
            if self._due.get(key) == at:
                return at
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now: float) -> Iterator[Key]:
        """Every key whose deadline has come, earliest first; what is set meanwhile counts too."""
        while (at := self.next()) is not None and at <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._due[key]
            yield key

    def __len__(self) -> int:
        """Number of running deadlines."""
        return len(self._due)


_BEFORE = Moment(0.0, 0.0)


@dataclasses.dataclass(slots=True)
class JobClock:
    """The time of the input that is being taken."""

    moment: Moment = _BEFORE
    stalled: float = 0.0
    """Time that the master itself has stood still so far, s."""
    opened: float = 0.0
    """Monotonic time at which this master took the job up, s."""
    job_base: float = 0.0
    """The job's own time at which this master took it up, s."""

    def open(self, moment: Moment, job_seconds: float) -> None:
        """The job's own time runs on from here."""
        self.moment, self.opened, self.job_base = moment, moment.mono, job_seconds

    @property
    def patient(self) -> float:
        """Monotonic without the time in which the master stood still: for deadlines, s."""
        return self.moment.mono - self.stalled

    @property
    def micros(self) -> int:
        """Monotonic, stalls included: for the goodput ledger, microseconds."""
        return micros(self.moment.mono)

    @property
    def job_seconds(self) -> float:
        """The job's own time, s: it runs while a master runs."""
        return self.job_base + (self.moment.mono - self.opened)
