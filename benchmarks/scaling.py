"""Training steps over ranks on a CPU, one thread each: strong scaling (one graph for all) and weak (one share a rank).

python -m benchmarks.scaling                 # P = 0, 1, 2
python -m benchmarks.scaling --ranks 1 2 4 --json scaling.json

The graph is a band: node i is joined to i ± 1 … ± 5, so its degree is 10 and its cut is known, 30 edges at each border
of two ranks. A step is forward pass, loss, backward pass, sum of gradients and Adam, evaluation left out. Each rank
reads its own part of a folder, as `torchrun … difformer fit` does. P = 0 is a process without ranks, the plain loop.

Beside the seconds of a step stand those that its main thread computed: on a machine with other work only these tell
what a step costs, and what is left of the step is waiting, for other ranks or for other work.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from benchmarks.measure import Cost, Row, resident
from difformer.data import Split, Task
from difformer.training import TrainConfig

GROUP = "steps over ranks, CPU, one thread a rank"
FEATURES, HIDDEN, CLASSES, LAYERS = 64, 64, 16, 2


@dataclass(frozen=True)
class Case:
    """What is trained.

    Args:
        name: For the table.
        model: ``"difformer-s"`` or ``"difformer-a"``.
        nodes: N at one rank.
        weak: Whether N grows with the ranks.
    """

    name: str
    model: str
    nodes: int
    weak: bool

    def nodes_at(self, ranks: int) -> int:
        return self.nodes * max(ranks, 1) if self.weak else self.nodes


CASES = (
    Case("difformer-s, strong", "difformer-s", 100_000, False),
    Case("difformer-s, weak", "difformer-s", 50_000, True),
    Case("difformer-a (ring), strong", "difformer-a", 6_000, False),
)


@dataclass(frozen=True)
class Found:
    """A case at a number of ranks: the slowest rank's seconds, the busiest rank's bytes, the largest rank's memory.

    Args:
        case: Its name.
        ranks: P; 0 for a process without ranks.
        nodes: N.
        seconds: Of a step, the median.
        fastest: Of a step, the fastest.
        computed: Seconds that the main thread was at work in a step, the least.
        sent: Bytes by kind.
        peak: Bytes of memory, of which about a third of a gigabyte is torch itself.
    """

    case: str
    ranks: int
    nodes: int
    seconds: float
    fastest: float
    computed: float
    sent: dict[str, int]
    peak: int


def band(nodes: int) -> Task:
    """Nodes joined to their ten nearest in the order of their numbers."""
    number = torch.arange(nodes)
    pairs = [torch.stack([number[:-s], number[s:]]) for s in range(1, 6)]
    edges = torch.cat([*pairs, *(pair.flip(0) for pair in pairs)], 1)
    x = torch.randn(nodes, FEATURES, generator=torch.Generator().manual_seed(0))
    split = Split("half", number[::2], number[1:2], number[3:4])
    y = number % CLASSES
    return Task("band", "nodes", "multiclass", "accuracy", "a band", x, y, (split,), CLASSES, edge_index=edges)


def _rank(rank: int, size: int, port: int, folder: str, model: str, repeats: int, pipe: Any) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)

    from difformer.distributed.partition_folder import Partition
    from difformer.distributed.process_group import join
    from difformer.distributed.rank_trainer import sharded_trainer

    with join("cpu") as ranks:
        partition = Partition.open(folder)
        trainer = sharded_trainer(partition, partition.shard(ranks), 0, _config(model), 0)
        times, work = [], []
        for _ in range(repeats + 1):  # the first is a warm-up
            ranks.wait_for_all()
            before = dict(ranks.traffic.sent)
            start, begun = time.perf_counter(), time.thread_time()
            trainer.train_epoch()
            times.append(time.perf_counter() - start)
            work.append(time.thread_time() - begun)
        sent = {kind: count - before[kind] for kind, count in ranks.traffic.sent.items()}
        pipe.send((times[1:], work[1:], sent, resident("VmHWM") or 0))


def _alone(folder: str, model: str, nodes: int, repeats: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    from difformer.training.loop import Trainer

    task = band(nodes)
    torch.manual_seed(0)
    trainer = Trainer(task, task.splits[0], _config(model), 0, torch.device("cpu"))
    times, work = [], []
    for _ in range(repeats + 1):
        start, begun = time.perf_counter(), time.thread_time()
        trainer.train_epoch()
        times.append(time.perf_counter() - start)
        work.append(time.thread_time() - begun)
    pipe.send((times[1:], work[1:], {}, resident("VmHWM") or 0))


def _config(model: str) -> TrainConfig:
    return TrainConfig(model=model, options={"hidden_channels": HIDDEN, "num_layers": LAYERS, "dropout": 0.2})


def run(case: Case, ranks: int, repeats: int) -> Found:
    """One case at one number of ranks, in processes of their own."""
    from difformer.distributed.partition_folder import write_partition

    nodes = case.nodes_at(ranks)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as place, closing(socket.socket()) as found:
        folder = str(Path(place) / "parts")
        if ranks:
            write_partition(band(nodes), folder, ranks, assignment=torch.arange(nodes) * ranks // nodes)
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
        found.close()
        pipes, processes = [], []
        for rank in range(max(ranks, 1)):
            here, there = context.Pipe()
            given: tuple[Any, ...] = (rank, ranks, port, folder, case.model, repeats, there)
            if not ranks:
                given = (folder, case.model, nodes, repeats, there)
            processes.append(context.Process(target=_rank if ranks else _alone, args=given, daemon=True))
            processes[-1].start()
            pipes.append(here)
        answers = [pipe.recv() for pipe in pipes]
        for process in processes:
            process.join()
    # A step is as long as its slowest rank takes.
    slowest = [max(times) for times in zip(*(answer[0] for answer in answers), strict=True)]
    work = [max(times) for times in zip(*(answer[1] for answer in answers), strict=True)]
    sent = {kind: max(answer[2][kind] for answer in answers) for kind in answers[0][2]}
    peak = max(answer[3] for answer in answers)
    return Found(case.name, ranks, nodes, statistics.median(slowest), min(slowest), min(work), sent, peak)


def rows(repeats: int = 5, ranks: tuple[int, ...] = (1, 2)) -> Iterator[Row]:
    """Lines for ``python -m benchmarks``: each number of ranks against one."""
    for case in CASES:
        found = [run(case, size, min(repeats, 10)) for size in ranks]
        for each in found:
            theirs = found[0] if each.ranks > 1 else None
            against = "" if theirs is None else f"P = 1, N = {theirs.nodes:,}"
            yield Row(
                GROUP,
                f"{case.name}, P = {each.ranks}, N = {each.nodes:,}",
                Cost(each.seconds, each.fastest, each.peak),
                against,
                None if theirs is None else Cost(theirs.seconds, theirs.fastest, theirs.peak),
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[0, 1, 2], help="numbers of ranks (0 1 2)")
    parser.add_argument("--repeats", type=int, default=5, help="timed steps (5)")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    options = parser.parse_args()
    every = []
    headings = f"{'step':>9} {'fastest':>9} {'computed':>9} {'efficiency':>10} {'memory':>8}"
    print(f"{'case':<28} {'P':>2} {'N':>9} {headings}  sent by a rank")
    for case in CASES:
        one: Found | None = None
        for size in options.ranks:
            found = run(case, size, options.repeats)
            one = found if size == 1 else one
            # The share of what P ranks could do: the same work in 1/P of the time, or P times the work in it.
            ideal = None if one is None else one.computed * (1 if case.weak else 1 / max(size, 1))
            share = None if ideal is None else ideal / found.computed
            sent = ", ".join(f"{kind} {count:,} B" for kind, count in found.sent.items() if count) or "nothing"
            print(
                f"{case.name:<28} {size:>2} {found.nodes:>9,} {found.seconds:>8.3f}s {found.fastest:>8.3f}s "
                f"{found.computed:>8.3f}s {'' if share is None else f'{share:.0%}':>10} {found.peak / 1e6:>5.0f} MB  "
                f"{sent}",
                flush=True,
            )
            every.append({**asdict(found), "efficiency": share})
    if options.json is not None:
        from difformer.files import write_whole

        write_whole(options.json, (json.dumps(every, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
