"""Workers forked from a zygote that has imported torch behave as fresh ones do, only sooner."""

from __future__ import annotations

import gzip
import json
import os
import statistics
from pathlib import Path

import pytest

from agents.plain_python import plain_python
from agents.zygote_driver import Driver, agent, ready
from holdfast_agent.zygote.protocol import Failure, RoundDead, Spawn

pytestmark = [pytest.mark.train, pytest.mark.timeout(180)]


def test_the_default_preload_is_forkable(warm: Driver) -> None:
    """Torch and all of the list leave one thread, no CUDA, and no descriptor."""
    tasks = list(Path(f"/proc/{warm.zygote()}/task").iterdir())
    assert len(tasks) == 1
    ended = warm.run(
        "import sys; print(*sorted({'torch', 'torch._dynamo', 'torch.distributed.fsdp',"
        " 'torch.distributed.checkpoint', 'grpc'} & set(sys.modules)))"
    )
    assert ended.out.split() == [
        "torch",
        "torch._dynamo",
        "torch.distributed.checkpoint",
        "torch.distributed.fsdp",
    ]


def test_random_numbers_differ_between_forks(warm: Driver) -> None:
    """torch, numpy and random would give the same numbers in every worker without a reseed."""
    code = """
        import json, random, numpy, torch
        print(json.dumps([torch.rand(1).item(), numpy.random.rand(), random.random(),
                          torch.initial_seed()]))
    """
    draws = [json.loads(warm.run(code).out) for _ in range(2)]
    assert all(first != second for first, second in zip(*draws, strict=True))


def test_a_seed_gives_what_it_always_gives(warm: Driver) -> None:
    """Reseeding leaves nothing behind that a script's own seed does not set."""
    code = "import torch; torch.manual_seed(7); print(torch.rand(3).tolist())"
    assert warm.run(code).out == plain_python("-c", code).stdout


COMPUTE = """
    import os, torch
    torch.manual_seed(0)
    a = torch.randn(700, 700, requires_grad=True)
    model = torch.nn.Sequential(torch.nn.Linear(700, 700), torch.nn.ReLU(), torch.nn.Linear(700, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(a @ a).square().mean()
        loss.backward()
        optimizer.step()
    tasks = os.listdir("/proc/self/task")
    print(torch.get_num_threads(), torch.isfinite(loss).item(), len(tasks) > 1)
"""


def test_parallel_work_in_a_child_does_not_hang(warm: Driver) -> None:
    """Matrix products and backward run on several threads in a fork (the zygote had one)."""
    ended = warm.run(COMPUTE, env={"OMP_NUM_THREADS": "2"})
    assert ended.err == ""
    assert ended.out.split()[1:] == ["True", "True"]


THREADS = """
    import ctypes, json, os, sys
    import numpy, torch
    libraries = {line.split()[-1] for line in open("/proc/self/maps") if "openblas" in line}
    blas = ctypes.CDLL(libraries.pop())
    count = next(getattr(blas, name) for name in (
        "scipy_openblas_get_num_threads64_", "openblas_get_num_threads64_",
        "scipy_openblas_get_num_threads", "openblas_get_num_threads") if hasattr(blas, name))
    print(json.dumps([torch.get_num_threads(), count(), os.environ.get("OMP_NUM_THREADS")]))
"""


@pytest.mark.parametrize("variables", [{}, {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}])
def test_thread_counts_are_those_of_a_fresh_process(
    warm: Driver, variables: dict[str, str]
) -> None:
    """Torch's and numpy's thread counts follow OMP_NUM_THREADS as at import."""
    forked = json.loads(warm.run(THREADS, env=variables).out)
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    plain = plain_python(warm.script(THREADS), env=environment | variables)
    assert forked == json.loads(plain.stdout)


def test_two_local_ranks_get_one_thread_each_by_default(tmp_path: Path) -> None:
    """As torchrun does when OMP_NUM_THREADS is not set, unless the user sets it."""
    with agent(tmp_path, torch=True, local_world_size=2, preload=("torch",)) as driver:
        ready(driver)
        code = "import os, torch; print(torch.get_num_threads(), os.environ['OMP_NUM_THREADS'])"
        assert driver.run(code).out == "1 1\n"
        assert driver.run(code, env={"OMP_NUM_THREADS": "2"}).out == "2 2\n"


def test_the_users_own_thread_count_reaches_the_workers(tmp_path: Path) -> None:
    """The zygote imports with one thread; OMP_NUM_THREADS of the agent's start counts later."""
    environment = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    with agent(tmp_path, torch=True, preload=("torch",), environment=environment) as driver:
        ready(driver)
        ended = driver.run(THREADS)
        assert json.loads(ended.out) == [2, 2, "2"], ended.err


def test_a_loss_tensor_is_taken_without_a_warning(warm: Driver) -> None:
    """A loss that still has its gradient is read as a number, silently."""
    ended = warm.run(
        """
        import warnings, torch, holdfast
        warnings.simplefilter("error")
        loss = (torch.ones(1, requires_grad=True) * 2.5).sum()
        holdfast.init().step(torch.tensor(4), samples=torch.tensor(8), loss=loss)
        """
    )
    assert ended.err == ""
    sample = warm.page.read(0)
    assert (sample.step, sample.samples, sample.loss) == (4, 8, 2.5)


def test_data_loaders_with_workers_work(warm: Driver) -> None:
    """Forked and spawned loader processes deliver, and are gone with the round."""
    ended = warm.run(
        """
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Squares(Dataset):
            def __len__(self): return 16
            def __getitem__(self, i): return torch.tensor(i * i)

        if __name__ == "__main__":
            for method, workers in (("fork", 2), ("spawn", 1)):
                loader = DataLoader(Squares(), batch_size=4, num_workers=workers,
                                    multiprocessing_context=method)
                print(method, sum(batch.sum().item() for batch in loader))
        """
    )
    assert (ended.out, ended.err) == ("fork 1240\nspawn 1240\n", "")
    assert warm.family() == []


def test_a_record_decorated_script_keeps_torchs_error_file(warm: Driver, tmp_path: Path) -> None:
    """`@record` and the zygote write one file between them, in torch's format."""
    files = [tmp_path / name for name in ("recorded.json", "plain.json")]
    body = "def main():\n    raise ValueError('bad batch')\n"
    record = "from torch.distributed.elastic.multiprocessing.errors import record\n@record\n"
    for file, head in zip(files, (record, ""), strict=True):
        ended = warm.run(head + body + "main()\n", env={"TORCHELASTIC_ERROR_FILE": str(file)})
        assert ended.status == 1
    recorded, plain = (json.loads(file.read_text()) for file in files)
    assert recorded["message"]["message"] == plain["message"]["message"] == "ValueError: bad batch"
    assert set(recorded["message"]["extraInfo"]) == set(plain["message"]["extraInfo"])


def test_a_binding_without_accelerator_is_refused_with_torchs_reason(warm: Driver) -> None:
    """--numa-binding needs a device to stand next to."""
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has an accelerator")
    number = warm.round = warm.round + 1
    rank = warm.rank(argv=(warm.script(""),), numa="node")
    warm.send(Spawn(round=number, ranks=(rank,)))
    assert "No accelerator available for NUMA binding" in warm.wait(Failure).text
    warm.wait(RoundDead, round=number)


def test_a_worker_imports_nothing_that_its_zygote_has(warm: Driver) -> None:
    """A fork has torch at its first line, for a tenth of the CPU time that a fresh one imports it.

    CPU time, since a neighbour makes the time on a clock ten times as long: `bench.start` measures
    that time.
    """
    cost = "import time; print(time.process_time())"
    fork = statistics.median(float(warm.run(f"import torch; {cost}").out) for _ in range(5))
    fresh = float(plain_python("-c", f"import torch; {cost}").stdout)
    assert fork < fresh / 10, f"CPU time to the first line: {fork:.3f} s, fresh {fresh:.3f} s"


def test_what_a_trainer_leaves_open_is_closed_beside_gloos_threads(
    warm: Driver, tmp_path: Path
) -> None:
    """A process group that nobody destroyed, DDP, data loader workers: soon ended, files whole."""
    ended = warm.run(
        """
        import gzip, sys, time, torch, torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel as DDP
        from torch.utils.data import DataLoader
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        model = DDP(torch.nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rows = iter(DataLoader(torch.ones(64, 4), batch_size=4, num_workers=1))
        model(next(rows)).sum().backward()
        optimizer.step()
        log = gzip.open(sys.argv[1], "wt")
        log.write("hello" * 1000)
        print(time.monotonic())
        """,
        str(tmp_path / "log.gz"),
    )
    assert (ended.status, ended.err) == (0, "")
    assert gzip.decompress((tmp_path / "log.gz").read_bytes()).decode() == "hello" * 1000
    assert ended.exited.mono_ns * 1e-9 - float(ended.out) < 5.0
    print(ended.exited.mono_ns * 1e-9 - float(ended.out))
