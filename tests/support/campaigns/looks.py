"""Looks at C code that sleeps, again and again; a call that returns was woken.

Run as a script: `looks.py --looks 10000` prints the looks and the calls that were woken, and fails
where there is one. One rank holds the GIL in `poll`; its other threads sleep in `sleep` and
`sem_timedwait`. It has no worker server, so a look is what a held GIL leaves: its memory.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

from holdfast_agent.health.evidence import LocalRank, collect
from holdfast_agent.health.stacks import StackQuestions, of_process

FOREVER_SECONDS = 100_000
PROGRAM = f"""
import ctypes, os, threading, time
sleeping, holding = ctypes.CDLL(None, use_errno=True), ctypes.PyDLL(None, use_errno=True)
class Deadline(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]
def say(name, result):
    print(name, result, os.strerror(ctypes.get_errno()), flush=True)
def sleep():
    say("sleep", sleeping.sleep({FOREVER_SECONDS}))
def wait_for_semaphore():
    semaphore = ctypes.create_string_buffer(64)
    sleeping.sem_init(semaphore, 0, 0)
    until = Deadline(int(time.time()) + {FOREVER_SECONDS}, 0)
    say("sem_timedwait", sleeping.sem_timedwait(semaphore, ctypes.byref(until)))
def poll_with_the_gil():
    say("poll", holding.poll(None, 0, {FOREVER_SECONDS} * 1000))
for one in (sleep, wait_for_semaphore):
    threading.Thread(target=one).start()
time.sleep(0.2)
print("ready", flush=True)
poll_with_the_gil()
"""
"""Prints a line when a call returns."""


async def look(looks: int, folder: Path) -> tuple[str, str]:
    """Return the newest stacks, and what the calls that were woken said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-S", "-c", PROGRAM, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout
    stacks, questions, socket = "", StackQuestions(), folder / "none.sock"
    try:
        await process.stdout.readline()
        rank = LocalRank(local_rank=0, rank=0, pid=process.pid, socket_path=socket)
        await collect([rank], world_size=1, questions=questions)
        for _ in range(looks):
            stacks = await of_process(questions, process.pid, socket)
    finally:
        process.kill()
        said, _ = await process.communicate()
    return stacks, said.decode()


def main() -> int:
    """Run the campaign; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--looks", type=int, default=10_000)
    looks = parser.parse_args().looks
    began = time.monotonic()
    stacks, woken = asyncio.run(look(looks, Path("/nowhere")))
    seconds = time.monotonic() - began
    print(f"{looks} looks in {seconds:.0f} s; woken: {woken.splitlines() or 'none'}")
    return bool(woken) or "poll_with_the_gil" not in stacks


if __name__ == "__main__":
    sys.exit(main())
