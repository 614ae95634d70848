"""Elastic replicas that a small control plane kills, freezes and adds: each a process of its own.

Run as a script with a scenario's JSON; it prints what the replicas wrote down. The parent imports
torch once, forks replicas, hosts an epoch's store, and writes rosters, as a master's agents would.
A replica steps alone, and at each boundary sums a tensor over its members.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STEPS = 5
"""Inner steps between two boundaries."""
SIZE = 200_000
"""Elements of the tensor that a boundary sums."""


class ControlPlane:
    """Processes of replicas, and the roster's file."""

    def __init__(self, folder: Path, scenario: Mapping[str, Any]) -> None:
        """Take a folder that is there for this run only."""
        self.folder, self.scenario = folder, scenario
        self.pids: dict[int, int] = {}
        self.epoch = 0
        self.stores: list[Any] = []

    def publish(self) -> None:
        """Write the next epoch's roster, with all replicas that live, and host its store."""
        import torch.distributed as dist

        from holdfast.local_sgd.policies.outer_roster import OuterRoster

        self.epoch += 1
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.stores.append(store)
        roster = OuterRoster(self.epoch, tuple(sorted(self.pids)), f"127.0.0.1:{store.port}")
        fresh = self.folder / "roster.new"
        fresh.write_text(roster.to_text(), encoding="utf-8")
        fresh.replace(self.folder / "roster")

    def start(self, *replicas: int) -> None:
        """Fork replicas; the roster does not have them yet."""
        for replica in replicas:
            pid = os.fork()
            if pid == 0:
                _child(self.folder, replica, self.scenario)
            self.pids[replica] = pid

    def kill(self, *replicas: int) -> None:
        """Kill replicas by SIGKILL at one time, and take them out of the next roster."""
        gone = [self.pids.pop(replica) for replica in replicas]
        for pid in gone:
            os.kill(pid, signal.SIGKILL)
        for pid in gone:
            os.waitpid(pid, 0)

    def freeze(self, replica: int) -> int:
        """Stop a replica by SIGSTOP, and take it out of the next roster; return its process."""
        pid = self.pids.pop(replica)
        os.kill(pid, signal.SIGSTOP)
        return pid

    def until(self, rounds: int, *replicas: int, epoch: int = 0) -> None:
        """Wait until replicas have made so many boundaries in an epoch or a later one."""
        deadline = time.monotonic() + 120
        for replica in replicas:
            while sum(one["epoch"] >= epoch for one in lines(self.folder, replica)) < rounds:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"replica {replica}: not {rounds} rounds, epoch {epoch}")
                time.sleep(0.005)

    def finish(self) -> None:
        """Tell replicas to end together, and wait for them."""
        (self.folder / "stop").touch()
        for replica, pid in self.pids.items():
            _, status = os.waitpid(pid, 0)
            if status:
                raise RuntimeError(f"replica {replica} ended with status {status}")

    def abandon(self) -> None:
        """Kill what is left, after an error."""
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)


def lines(folder: Path, replica: int) -> list[dict[str, Any]]:
    """Return what a replica has written down: a line for each boundary."""
    path = folder / f"log-{replica}"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def _child(folder: Path, replica: int, scenario: Mapping[str, Any]) -> None:
    """Be a replica, and end without the parent's clean-up."""
    import traceback

    try:
        _train(folder, replica, scenario)
    except BaseException:  # noqa: BLE001 - a forked process ends here, whatever it is
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _train(folder: Path, replica: int, scenario: Mapping[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    from holdfast.local_sgd.members.members import RosterMembers, roster_file
    from holdfast.local_sgd.sync.group import Group

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    members = RosterMembers(
        roster_file(folder / "roster"), replica, Group.of_one(), timeout=20.0, patience=60.0
    )
    step, stopped = 0, False
    now = members.refresh()
    with (folder / f"log-{replica}").open("w", encoding="utf-8") as log:
        while not stopped:
            for _ in range(STEPS):
                time.sleep(scenario["step"])
                step += 1
            arrived = time.monotonic()
            now, tries, total = _boundary(members, now, folder)
            stopped = total[1] > 0
            told = {
                "pid": os.getpid(), "step": step, "epoch": now.epoch, "tries": tries,
                "members": int(total[0]), "arrived": arrived, "left": time.monotonic(),
            }  # fmt: skip
            log.write(json.dumps(told) + "\n")
            log.flush()


def _boundary(members: Any, now: Any, folder: Path) -> tuple[Any, int, list[float]]:
    """Sum over the members, in as many groups as it takes; return (membership, tries, sums)."""
    now, tries = members.refresh() or now, 1
    while (total := _sum(now.group, folder)) is None:
        now, tries = members.recover(), tries + 1
    return now, tries, total


def _sum(group: Any, folder: Path) -> list[float] | None:
    """Return the count of members and of those told to stop; None: a collective failed.

    Two are on their way at a time, as those of two units are. The second waits for one rank only.
    """
    import torch

    from holdfast.local_sgd.sync.group import SyncError

    mine = torch.ones(SIZE)
    mine[1] = float((folder / "stop").exists())
    try:
        works = [group.begin_sum(mine), group.begin_broadcast(torch.ones(9), group.size // 2)]
        for work in works:
            work.wait()
    except SyncError:
        return None
    return [float(mine[0]), float(mine[1])]


def _shrink_and_grow(plane: ControlPlane) -> None:
    """4 replicas; two are killed at one time after a drawn pause; four others come."""
    plane.start(0, 1, 2, 3)
    plane.publish()
    plane.until(8, 0, 1, 2, 3)
    time.sleep(plane.scenario["pause"])
    plane.kill(1, 3)
    plane.publish()
    plane.until(8, 0, 2, epoch=plane.epoch)
    plane.start(4, 5, 6, 7)
    plane.publish()
    plane.until(8, *plane.pids, epoch=plane.epoch)


def _late_roster(plane: ControlPlane) -> None:
    """3 replicas; one is killed, and the roster that tells comes a second later."""
    plane.start(0, 1, 2)
    plane.publish()
    plane.until(4, 0, 1, 2)
    plane.kill(0)
    time.sleep(1.0)
    plane.publish()
    plane.until(4, 1, 2, epoch=plane.epoch)


def _frozen(plane: ControlPlane) -> None:
    """3 replicas; one is stopped, put out, continued, and taken in again by a later roster."""
    plane.start(0, 1, 2)
    plane.publish()
    plane.until(4, 0, 1, 2)
    pid = plane.freeze(1)
    plane.publish()
    plane.until(4, 0, 2, epoch=plane.epoch)
    os.kill(pid, signal.SIGCONT)
    plane.pids[1] = pid
    plane.publish()
    plane.until(4, 0, 1, 2, epoch=plane.epoch)


def _killed_while_meeting(plane: ControlPlane) -> None:
    """3 replicas; the roster of epoch 2 names one that is dead, epoch 3 does not."""
    plane.start(0, 1, 2)
    plane.publish()
    plane.until(4, 0, 1, 2)
    os.kill(plane.pids[2], signal.SIGKILL)
    os.waitpid(plane.pids[2], 0)
    plane.publish()
    time.sleep(0.5)
    del plane.pids[2]
    plane.publish()
    plane.until(4, 0, 1, epoch=plane.epoch)


def _killed_and_frozen(plane: ControlPlane) -> None:
    """4 replicas; one is stopped and one killed in the others' sync; another comes soon."""
    plane.start(0, 1, 2, 3)
    plane.publish()
    plane.until(4, 0, 1, 2, 3)
    frozen = plane.freeze(2)
    time.sleep(0.2)  # the others are in a sync that the stopped one does not come to
    plane.kill(1)
    time.sleep(0.2)
    plane.publish()
    plane.until(4, 0, 3, epoch=plane.epoch)
    plane.start(4)
    plane.publish()
    plane.until(4, *plane.pids, epoch=plane.epoch)
    os.kill(frozen, signal.SIGKILL)
    os.waitpid(frozen, 0)


SCENARIOS = {
    "killed and frozen": _killed_and_frozen,
    "shrink and grow": _shrink_and_grow,
    "late roster": _late_roster,
    "frozen": _frozen,
    "killed while meeting": _killed_while_meeting,
}


def main() -> None:
    """Run the scenario of the command line; print each replica's lines."""
    scenario = {"step": 0.005, "pause": 0.0, **json.loads(sys.argv[1])}
    with tempfile.TemporaryDirectory() as name:
        plane = ControlPlane(Path(name), scenario)
        try:
            SCENARIOS[scenario["scenario"]](plane)
            plane.finish()
        except BaseException:
            plane.abandon()
            raise
        print(json.dumps({one: lines(Path(name), one) for one in range(8)}))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    import torch.distributed  # noqa: F401 - forked replicas find both imported

    import holdfast.local_sgd.members.members  # noqa: F401

    main()
