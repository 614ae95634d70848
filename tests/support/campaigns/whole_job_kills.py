"""Kills ranks, agents and masters of a real job at random instants; judges what it resumes from.

Run as a script (`--seed`, `--kills`); prints what it did as JSON, and what went wrong with the
number of the kill. Every number of the training state is the step that made it, so a state that is
mixed from two steps, ranks or lineages shows in the first rank that looks; ranks look after each
restore. The job trains on gloo over two nodes and saves each step to memory, each fifth to storage.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from campaigns.counting_scripts import LAYOUTS, STATES, script
from campaigns.kill_records import record
from holdfast_wire.messages import JobPhase, JobStatus
from jobs.local_job import RunningJob, elastic_job, loss_lines

SAVE_EVERY = 5
_OTHERS = ("agent 0", "agent 1", *("master",) * 2)
"""Victims besides ranks; an agent seldom, because the next one needs ten seconds."""
_MEGATRON = ("megatron", "megatron-turns")
"""Two ranks per node, so that tensor, pipeline and data parallel ranks are in one world. The layout
is drawn once; or it changes with every second round, though the world has as many ranks."""
_PRELOAD = {"HOLDFAST_PRELOAD": "megatron_worlds.preloaded", "TORCHDYNAMO_DISABLE": "1"}
"""Agents import megatron-core once: ten seconds of a core for each rank otherwise."""
_PLENTY = 100_000


def _in_files(folder: str) -> list[str]:
    """Return what begins a command whose agent keeps arenas in a directory of its node."""
    here = f"{folder}/$HOLDFAST_NODE_RANK"
    return ["sh", "-c", f'mkdir -p {here}; HOLDFAST_ARENA_DIR={here} exec "$@"', "in-files"]


class Campaign:
    """One job, killed again and again."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        device: str = "cpu",
        *,
        files: bool,
        overlap: bool,
        parallel: str = "",
    ) -> None:
        """Start the job."""
        self._rng = random.Random(seed)
        self._folder = folder
        self.parallel = parallel or self._rng.choice(["ddp", "fsdp2"])
        per_node = 1
        self.layouts: Sequence[tuple[int, int]] = ()
        if self.parallel in _MEGATRON:
            per_node = 2
            draws = self.parallel == "megatron"
            self.layouts = [self._rng.choice(LAYOUTS)] if draws else LAYOUTS
        ranks = [f"rank {number}" for number in range(2 * per_node)]
        self._victims = [*ranks * (4 - per_node), *_OTHERS]
        # Not on a disk: a mapping's writes would wait for it.
        self._arenas = tempfile.mkdtemp(dir="/dev/shm") if files else ""
        words = [f"--device={device}", *(["--overlap"] if overlap else [])]
        self.job = RunningJob(self._job(words, per_node), folder)
        self.kills: Counter[str] = Counter()
        self.resumed: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._seen = 0
        """Number of the newest event that was looked at."""
        self._started: dict[int, int] = {}
        """What each round was said to start from. A new master says it again of the round that it
        finds, and by then later steps of that round may have been announced."""

    def _job(self, words: Sequence[str], per_node: int) -> dict[str, Any]:
        """Write the script; return the job that runs it with these words."""
        file = self._folder / "count.py"
        file.write_text(script(self.parallel, SAVE_EVERY, self.layouts))
        words = [str(file), f"--parallel={self.parallel}", f"--folder={self._folder}", *words]
        limits = {"limit": _PLENTY, "windowSeconds": 1}
        spec: dict[str, Any] = {
            "failurePolicy": {"budgets": {"failures": limits, "noProgressRestarts": limits}},
            "elasticPolicy": {"joinWindowSeconds": 0},
        }
        job = elastic_job("kills", words, flags=[f"--nproc-per-node={per_node}"], **spec)
        [container] = job["spec"]["worker"]["template"]["spec"]["containers"]
        if self.layouts:
            container["env"] = [{"name": name, "value": value} for name, value in _PRELOAD.items()]
        if self._arenas:
            container["command"] = [*_in_files(self._arenas), *container["command"]]
        return job

    def round(self, number: int) -> None:
        """Let it train, kill one process, see what the job goes on from."""
        before = self._trains()
        time.sleep(self._rng.random() * 0.3)
        victim = self._rng.choice(self._victims)
        before = self.job.wait_for("the state", self.job.status)
        name = f"kill {number}: {victim} of round {before.round} at step {before.step}"
        self._look("before " + name, 0)
        pid, kind = self._pid(victim), victim.partition(" ")[0]
        if not pid:
            return  # a new master may not have heard of it yet
        os.kill(pid, signal.SIGKILL)
        self.kills[kind] += 1
        self._until_felt(kind, before)
        after = self._trains()
        self._look(name, before.stored_step)
        if after.stored_step < before.stored_step:
            self.wrong.append(f"{name}: {before.stored_step} was announced, {after.stored_step} is")

    def _trains(self) -> JobStatus:
        def steps() -> JobStatus | None:
            status = self.job.status()
            return status if status.phase is JobPhase.TRAINING and status.step else None

        status = self.job.wait_for("a world that trains", steps)
        assert status is not None
        return status

    def _pid(self, victim: str) -> int:
        """Return the victim's process; 0 where there is none at this moment."""
        kind, _, index = victim.partition(" ")
        if kind == "master":
            endpoint = self.job.home.endpoint()
            return endpoint.pid if endpoint is not None else 0
        nodes = sorted(self.job.nodes().values(), key=lambda node: node.node_rank)
        if kind == "agent":
            found = [node.agent_pid for node in nodes if node.agent_pid]
        else:
            found = [rank.pid for node in nodes for rank in node.ranks if rank.pid]
        return found[int(index) % len(found)] if found else 0

    def _until_felt(self, kind: str, before: JobStatus) -> None:
        """Wait until the job has noticed: a new round, or a new master."""

        def felt() -> bool:
            status = self.job.status()
            if kind == "master":
                return status.epoch > before.epoch
            return status.round > before.round

        self.job.wait_for(f"the death of a {kind}", felt)

    def _look(self, name: str, announced: int) -> None:
        """Judge every start of a world since the last look."""
        events = self.job.wait_for("the events", lambda: (True, self.job.events(self._seen)))[1]
        for event in events:
            if event.reason != "CheckpointRestored":
                continue
            words = event.text.split()
            step, tier = int(words[words.index("step") + 1]), words[words.index("in") + 1]
            number = int(words[words.index("round") + 1])
            if number in self._started:
                if self._started[number] != step:
                    self.wrong.append(f"{name}: {event.text}; it was step {self._started[number]}")
                continue
            self._started[number] = step
            self.resumed[tier] += 1
            if step < announced:
                self.wrong.append(f"{name}: {announced} was announced; {event.text}")
        lost = [one.text for one in events if one.reason == "CheckpointLost"]
        self.wrong += [f"{name}: {text}" for text in lost if text not in " ".join(self.wrong)]
        self._seen = max([self._seen, *(event.sequence for event in events)])

    def end(self) -> None:
        """Stop the job; judge what its ranks have found, and what is left on storage."""
        self.job.cli("stop", self.job.name)
        self.job.finish()
        rounds: defaultdict[int, set[int]] = defaultdict(set)
        for line in loss_lines(self._folder / "starts.jsonl"):
            rounds[line["round"]].add(line["start"])
            self._judge(line)
        apart = {number: starts for number, starts in rounds.items() if len(starts) > 1}
        self.wrong += [f"ranks of round {n} started from {s}" for n, s in apart.items()]
        left = [path.name for path in (self._folder / "checkpoints").iterdir()]
        left.remove("owners")
        self.wrong += [f"{n} is left" for n in left if not n.removeprefix("step_").isdecimal()]
        if self._arenas:
            self.wrong += [f"{path} is left" for path in Path(self._arenas).rglob("arena-*")]
            shutil.rmtree(self._arenas)

    def _judge(self, found: dict[str, Any]) -> None:
        start = found["start"]
        own = [start, found["rank"]] if start else 0
        if (found["seen"], found["count"], found["own"]) != ([float(start)], start, own):
            self.wrong.append(f"a state that is not of step {start}: {found}")


def main() -> int:
    """Run a campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of the state")
    parser.add_argument("--parallel", choices=sorted(STATES), default="", help="of the state")
    parser.add_argument("--files", action="store_true", help="arenas lie in files")
    parser.add_argument("--overlap", action="store_true", help="copies run beside training")
    parser.add_argument("--record", default="", help="file to add a line to")
    arguments = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(
            arguments.seed, Path(folder), arguments.device,
            files=arguments.files, overlap=arguments.overlap, parallel=arguments.parallel,
        )  # fmt: skip
        with campaign.job:
            number = 0
            while campaign.kills.total() < arguments.kills and not campaign.wrong:
                campaign.round(number)
                number += 1
            campaign.end()
    said = {
        "seed": arguments.seed,
        "device": arguments.device,
        "parallel": campaign.parallel,
        "layouts": campaign.layouts,
        "files": arguments.files,
        "overlap": arguments.overlap,
        "kills": campaign.kills,
        "resumed": campaign.resumed,
        "seconds": round(time.monotonic() - begin, 1),
        "wrong": campaign.wrong,
    }
    sys.stdout.write(json.dumps(said) + "\n")
    record(arguments.record, "whole jobs", said)
    return bool(campaign.wrong)


if __name__ == "__main__":
    sys.exit(main())
