"""Elastic replicas that train, under a small control plane that kills, freezes and adds them.

Run as a script with a scenario's JSON; it prints what each rank wrote down. Belongs here: the
processes, the roster's file, the stores, and the course of a scenario. Does not belong here: what a
rank does (`elastic_training`).

The process that forks ranks has no thread: a fork while another thread holds a lock may hang. So
stores are hosted by a process of their own, which is forked first.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from house.patience import patience

DEFAULTS: Final = {
    "kind": "fsdp",
    "replicas": 4,
    "shards": 1,
    "interval": 5,
    "rounds": 0,
    "width": 24,
    "rows": 16,
    "pace": 0.004,
    "seed": 0,
    "every": 4,
    "back": 4,
    "pause": 0.1,
    "limit": 120.0,
}


class StoreHost:
    """A process that hosts the stores of all epochs.

    It makes the next epoch's store ahead of its need: a loss does not wait for it.
    """

    def __init__(self) -> None:
        """Fork it."""
        (ask, self._ask), (self._told, tell) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._ask)
            _serve_stores(ask, tell)
            os._exit(0)
        os.close(ask)
        os.close(tell)
        os.write(self._ask, b"?")

    def fresh(self) -> str:
        """Return host and port of a new store."""
        port = int(os.read(self._told, 16))
        os.write(self._ask, b"?")
        return f"127.0.0.1:{port}"

    def close(self) -> None:
        """End it."""
        os.close(self._ask)
        os.waitpid(self.pid, 0)


def _serve_stores(ask: int, tell: int) -> None:
    import torch.distributed as dist

    stores = []
    while os.read(ask, 1):
        stores.append(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        os.write(tell, str(stores[-1].port).encode())


class ControlPlane:
    """Processes of replicas, and the roster's file."""

    def __init__(self, folder: Path, scenario: Mapping[str, Any]) -> None:
        """Take a folder that is there for this run only."""
        self.folder, self.scenario = folder, scenario
        self.random = random.Random(scenario["seed"])
        self.stores = StoreHost()
        self.pids: dict[int, list[int]] = {}
        """Of each replica that is there, by shard."""
        self.members: list[int] = []
        self.epoch, self.next = 0, 0
        self.done: list[str] = []
        """What was done, for a message."""
        self.kills: list[str] = []
        """What each rank did that was killed, where ranks tell it."""
        self._frozen: list[int] = []
        self._ended: set[int] = set()

    def publish(self, *gone: int, come: tuple[int, ...] = ()) -> None:
        """Write the next epoch's roster."""
        from holdfast.local_sgd.policies.outer_roster import OuterRoster

        self.epoch += 1
        self.members = sorted({*self.members, *come} - set(gone))
        roster = OuterRoster(self.epoch, tuple(self.members), self.stores.fresh())
        fresh = self.folder / "roster.new"
        fresh.write_text(roster.to_text(), encoding="utf-8")
        fresh.replace(self.folder / "roster")
        self.note(f"epoch {self.epoch}: {self.members}")

    def start(self, count: int) -> tuple[int, ...]:
        """Fork replicas under new numbers; no roster has them yet."""
        came = tuple(range(self.next, self.next + count))
        self.next += count
        for replica in came:
            self.pids[replica] = [
                self._fork(replica, shard) for shard in range(self.scenario["shards"])
            ]
        return came

    def join(self, count: int) -> tuple[int, ...]:
        """Start replicas, and take them in once they are ready to meet the others."""
        came = self.start(count)
        self.wait(lambda: all(self._is_ready(one) for one in came), "joiners are ready")
        self.publish(come=came)
        return came

    def kill(self, *replicas: int, notice: float = 0.0) -> None:
        """Kill replicas by SIGKILL, one rank of each first, and tell after a while."""
        self.note(f"kill {replicas}")
        for replica, pids in [(one, self.pids.pop(one)) for one in replicas]:
            victims = [*enumerate(pids)]
            self.random.shuffle(victims)
            for shard, pid in victims:
                self.kills.append(self._doing(replica, shard))
                os.kill(pid, signal.SIGKILL)
                time.sleep(self.random.uniform(0, 0.01) if len(pids) > 1 else 0)
            for pid in pids:
                os.waitpid(pid, 0)
        self.note(f"killed {replicas}")
        time.sleep(notice)
        self.publish(*replicas)

    def _doing(self, replica: int, shard: int) -> str:
        path = self.folder / f"doing-{replica}-{shard}"
        return path.read_text(encoding="utf-8").strip() if path.exists() else ""

    def freeze(self, replica: int, notice: float | None = 0.3) -> None:
        """Stop a replica, tell after a while (None: with the next roster), and end it later."""
        self._frozen += self.pids.pop(replica)
        for pid in self._frozen:
            os.kill(pid, signal.SIGSTOP)
        self.note(f"froze {replica}")
        if notice is None:
            self.members.remove(replica)
            return
        time.sleep(notice)
        self.publish(replica)

    def thaw(self, replica: int, pids: list[int]) -> None:
        """Let the processes of a replica that was stopped go on, and take it in again."""
        self._frozen = [pid for pid in self._frozen if pid not in pids]
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        self.pids[replica] = pids
        self.publish(come=(replica,))

    def rounds_of(self, replica: int) -> int:
        """Return the newest round that a replica has written down."""
        found = [line["round"] for line in lines(self.folder, replica, 0) if "round" in line]
        return max(found, default=0)

    def until(self, rounds: int) -> None:
        """Wait until one of the members has made so many rounds."""

        def is_there() -> bool:
            return max(self.rounds_of(one) for one in self.members) >= rounds

        self.wait(is_there, f"{rounds} rounds")

    def until_all(self, rounds: int) -> None:
        """Wait until each member has made so many rounds in this epoch."""

        def made(replica: int) -> int:
            found = lines(self.folder, replica, 0)
            return sum("round" in line and line["epoch"] == self.epoch for line in found)

        self.wait(lambda: min(map(made, self.members)) >= rounds, f"{rounds} rounds of all")

    def begin(self, count: int, rounds: int = 4) -> None:
        """Start the first replicas, and wait until each has made so many rounds."""
        self.publish(come=self.start(count))
        self.until_all(rounds)

    def wait(self, is_there: Callable[[], bool], what: str) -> None:
        """Wait; fails if a rank has ended by an error, or after the limit."""
        deadline = time.monotonic() + self.scenario["limit"] * patience()
        while not is_there():
            if not self._running() and not is_there():
                raise RuntimeError(f"all replicas have ended before {what}; {self.done}")
            self._look_again(deadline, what)

    def _look_again(self, deadline: float, what: str) -> None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in {self.scenario['limit']} s: {what}; {self.done}")
        time.sleep(0.005)

    def stop(self, rounds: int) -> None:
        """Tell all to end together, after this outer round."""
        fresh = self.folder / "stop.new"
        fresh.write_text(str(rounds), encoding="utf-8")
        fresh.replace(self.folder / "stop")

    def finish(self) -> None:
        """Have the members end, after a few rounds more or when they have made all.

        One that has come makes a round first: the others may see its roster later than they make
        those few, and it would wait for them in vain.
        """
        if not self.scenario["rounds"]:
            self.wait(lambda: all(map(self.rounds_of, self.members)), "a round of each")
            newest = max(self.rounds_of(one) for one in self.members)
            self.stop(newest + self.scenario["every"])
        deadline = time.monotonic() + self.scenario["limit"] * patience()
        while self._running():  # not `wait`: to have ended is no failure here
            self._look_again(deadline, "the end")

    def abandon(self) -> None:
        """Kill what is left."""
        for pid in [*self._frozen, *(pid for pids in self.pids.values() for pid in pids)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.stores.close()

    def note(self, what: str) -> None:
        """Remember what was done."""
        self.done.append(f"{time.monotonic():.3f} {what}")

    def _is_ready(self, replica: int) -> bool:
        shards = range(self.scenario["shards"])
        return all((self.folder / f"ready-{replica}-{shard}").exists() for shard in shards)

    def _running(self) -> list[int]:
        """Return the processes that have not ended; fails if one has ended by an error."""
        for replica, pids in self.pids.items():
            for pid in set(pids) - self._ended:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended and status:
                    raise RuntimeError(f"replica {replica} ended with {status}; {self.done}")
                if ended:
                    self._ended.add(pid)
        return [pid for pids in self.pids.values() for pid in pids if pid not in self._ended]

    def _fork(self, replica: int, shard: int) -> int:
        pid = os.fork()
        if pid == 0:
            _child(self.folder, replica, shard, self.scenario)
        return pid


def _child(folder: Path, replica: int, shard: int, scenario: Mapping[str, Any]) -> None:
    """Be a rank, and end without the parent's clean-up."""
    import faulthandler
    import importlib
    import traceback

    module = {"megatron": "megatron_worlds.elastic"}
    module |= {kind: f"local_sgd.elastic_{kind}" for kind in ("ledger", "sums")}
    module |= dict.fromkeys(("whole", "shards"), "replicas.training")
    found = module.get(scenario["kind"], "local_sgd.elastic_training")
    run_rank = importlib.import_module(found).run_rank
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # where a rank hangs
    try:
        run_rank(folder, replica, shard, scenario)
    except BaseException:  # noqa: BLE001 - a forked process ends here, whatever it is
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def lines(folder: Path, replica: int, shard: int) -> list[dict[str, Any]]:
    """Return what a rank has written down, without a line that it has not ended."""
    path = folder / f"log-{replica}-{shard}"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def static(plane: ControlPlane) -> None:
    """Nothing happens."""
    plane.publish(come=plane.start(plane.scenario["replicas"]))


def campaign(plane: ControlPlane) -> None:
    """`events` in turn, each at a drawn instant: kill, two, late, freeze, join.

    A replica that is lost may be in its steps, in a sync, or in a change of members: the roster
    of a joiner is not waited for. One is left that has trained: a joiner has no state before it is
    given one. `late`: the roster comes a second after the death.
    """
    scenario = plane.scenario
    plane.publish(come=plane.start(scenario["replicas"]))
    plane.until(2)
    for event in scenario["events"]:
        time.sleep(plane.random.uniform(0, scenario["pause"]))
        spared = plane.random.choice([one for one in plane.members if plane.rounds_of(one)])
        others = [one for one in plane.members if one != spared]
        victims = plane.random.sample(others, min(len(others), 2))
        if event == "join":
            plane.join(1)
            continue
        if event == "freeze":
            plane.freeze(victims[0])
        else:
            count, notice = (2, 0.0) if event == "two" else (1, 1.0 if event == "late" else 0.0)
            plane.kill(*victims[:count], notice=notice)
        plane.until(max(plane.rounds_of(one) for one in plane.members) + scenario["every"])


def early(plane: ControlPlane) -> None:
    """One joins, or is killed (`event`), while gradients are averaged over all replicas."""
    plane.publish(come=plane.start(plane.scenario["replicas"]))
    plane.wait(lambda: len(lines(plane.folder, 0, 0)) > 3, "steps of the warm-up")
    if plane.scenario["event"] == "join":
        plane.join(1)
    else:
        plane.kill(plane.members[-1])
    plane.until(2)


def missed(plane: ControlPlane) -> None:
    """A replica misses the end of a round, or a choice in it; one more comes while others wait."""
    plane.publish(come=plane.start(plane.scenario["replicas"]))
    plane.wait((plane.folder / "missed").exists, "a change that was missed")
    plane.join(1)
    plane.until(max(plane.rounds_of(one) for one in plane.members) + plane.scenario["every"])


def thawed(plane: ControlPlane) -> None:
    """A replica is stopped and put out, and taken in again far behind; then one more comes."""
    plane.publish(come=plane.start(plane.scenario["replicas"]))
    plane.until(2)
    pids, more = plane.pids[1], plane.scenario["every"]
    plane.freeze(1)
    plane.until(plane.rounds_of(0) + 2 * more)
    plane.thaw(1, pids)
    plane.until(plane.rounds_of(0) + more)
    plane.join(1)
    plane.until(plane.rounds_of(0) + more)


def shrink_and_grow(plane: ControlPlane) -> None:
    """4 replicas; two are killed at one time; `back` others come."""
    plane.publish(come=plane.start(4))
    third = plane.scenario["rounds"] // 3
    plane.until(third)
    time.sleep(plane.random.uniform(0, plane.scenario["pause"]))
    plane.kill(*plane.random.sample(plane.members, 2))
    plane.until(2 * third)
    plane.join(plane.scenario["back"])


def four_two_six(plane: ControlPlane) -> None:
    """4 replicas; two are killed after a drawn pause; four others come."""
    plane.begin(4, rounds=8)
    time.sleep(plane.scenario["pause"])
    plane.kill(1, 3)
    plane.until_all(8)
    plane.join(4)
    plane.until_all(8)


def late_roster(plane: ControlPlane) -> None:
    """3 replicas; one is killed, and the roster that tells comes a second later."""
    plane.begin(3)
    plane.kill(0, notice=1.0)
    plane.until_all(4)


def frozen(plane: ControlPlane) -> None:
    """3 replicas; one is stopped, put out, continued, and taken in again by a later roster."""
    plane.begin(3)
    pids = plane.pids[1]
    plane.freeze(1, notice=0.0)
    plane.until_all(4)
    plane.thaw(1, pids)
    plane.until_all(4)


def killed_while_meeting(plane: ControlPlane) -> None:
    """3 replicas; the roster of epoch 2 names one that is dead, epoch 3 does not."""
    plane.begin(3)
    (pid,) = plane.pids.pop(2)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    plane.publish()
    time.sleep(0.5)
    plane.publish(2)
    plane.until_all(4)


def killed_and_frozen(plane: ControlPlane) -> None:
    """4 replicas; one is stopped and one killed in the others' sync; another comes soon."""
    plane.begin(4)
    plane.freeze(2, notice=None)
    time.sleep(0.2)  # the others are in a sync that the stopped one does not come to
    plane.kill(1, notice=0.2)
    plane.until_all(4)
    plane.join(1)
    plane.until_all(4)


def kills(plane: ControlPlane) -> None:
    """A replica is killed each `each` seconds for `seconds`, and another takes its place."""
    scenario = plane.scenario
    plane.publish(come=plane.start(scenario["replicas"]))
    plane.until(2)
    plane.note("window begins")
    end = time.monotonic() + scenario["seconds"]
    due = time.monotonic() + scenario["each"]
    while due < end:
        plane.wait(lambda: time.monotonic() > due, "the next kill")  # noqa: B023 - asked at once
        plane.kill(plane.random.choice(plane.members))
        plane.join(1)
        due += scenario["each"]
    plane.wait(lambda: time.monotonic() > end, "the end")
    plane.note("window ends")


def losses(plane: ControlPlane) -> None:
    """`count` replicas are lost, one at a time, each at a drawn instant; another comes for each."""
    scenario = plane.scenario
    plane.publish(come=plane.start(scenario["replicas"]))
    plane.until(5)
    for _ in range(scenario["count"]):
        time.sleep(plane.random.uniform(0, scenario["pause"]))
        plane.kill(plane.random.choice(plane.members))
        plane.until(max(plane.rounds_of(one) for one in plane.members) + 3)
        came = plane.join(1)
        plane.wait(lambda came=came: plane.rounds_of(came[0]) > 0, "a joiner's round")  # type: ignore[misc]
        plane.until(max(plane.rounds_of(one) for one in plane.members) + 2)


SCENARIOS: Final = {
    "losses": losses,
    "early": early,
    "static": static,
    "campaign": campaign,
    "missed": missed,
    "thawed": thawed,
    "shrink and grow": shrink_and_grow,
    "kills": kills,
    "four, two, six": four_two_six,
    "late roster": late_roster,
    "frozen": frozen,
    "killed while meeting": killed_while_meeting,
    "killed and frozen": killed_and_frozen,
}


def run(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """Run a scenario; return each rank's lines, by replica and shard, and what was done."""
    from replicas.training import counted

    whole = {**DEFAULTS, **scenario}
    with tempfile.TemporaryDirectory() as name:
        plane = ControlPlane(Path(name), whole)
        try:
            SCENARIOS[whole["scenario"]](plane)
            plane.finish()
        finally:
            plane.abandon()
        return {
            "done": plane.done,
            "kills": plane.kills,
            "members": plane.members,
            "ranks": {
                f"{replica} {shard}": lines(Path(name), replica, shard)
                for replica in range(plane.next)
                for shard in range(whole["shards"])
            },
            "samples": counted(Path(name)),
        }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if '"megatron"' in sys.argv[1]:
        import megatron_worlds.preloaded  # noqa: F401 - before torch
    # Forked ranks find all imported, also what the first optimizer imports: a second in each.
    import torch._dynamo
    import torch.distributed.fsdp  # noqa: F401

    import holdfast.local_sgd.frameworks.fsdp2  # noqa: F401
    import replicas.training  # noqa: F401

    print(json.dumps(run(json.loads(sys.argv[1]))))
