"""Results of all ranks in one place: what a run folder keeps of a seed.

Features and edges never leave their rank. Outputs and labels of at most `MOST_CELLS` numbers come to rank 0, which then
writes what a single process writes. Of more, every rank writes its own: ``predictions-00003.npz`` has ``nodes``,
``outputs``, ``prediction`` and ``target`` of the rows of rank 3.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data import Split
from difformer.distributed.partition_folder import Partition
from difformer.distributed.process_group import Ranks
from difformer.distributed.shard import Shard, parts_of
from difformer.files import write_bytes
from difformer.training.predictions import Predictions
from difformer.training.record import RunRecord
from difformer.training.run_folder import RunFolder

MOST_CELLS = 2**27


@dataclass(frozen=True)
class Labels:
    """What a run folder asks of a task: facts, targets and splits, but neither features nor edges."""

    about: Any
    splits: tuple[Split, ...]
    y: Tensor
    instance_names: tuple[str, ...] = ()
    kind: str = "nodes"

    @staticmethod
    def without_targets(partition: Partition) -> Labels:
        """Facts alone: what ``config.toml`` needs."""
        none = torch.zeros(0, dtype=torch.long)
        return Labels(partition.about, tuple(Split(name, none, none, none) for name in partition.about["splits"]), none)

    def __getattr__(self, name: str) -> Any:
        if name in ("name", "problem", "metric", "protocol", "num_outputs", "num_nodes"):
            return self.about[name]
        raise AttributeError(name)

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self.about["class_names"])

    @property
    def num_instances(self) -> int:
        return int(self.about["num_nodes"])

    def fingerprint(self) -> str:
        """That of the task that was partitioned."""
        return str(self.about["fingerprint"])


def gather_labels(partition: Partition, shard: Shard) -> Labels | None:
    """Targets, splits and names of all ranks, on rank 0; None where there are too many, and on other ranks."""
    ranks, numbers = shard.ranks, shard.rows.numbers
    cells = partition.num_nodes * max(int(partition.about["num_outputs"]), 1)
    if cells > MOST_CELLS:
        return None
    y = gather_by_number(shard.y.to(ranks.device), numbers, partition.num_nodes, ranks)
    splits = []
    for split in shard.splits:
        found = [ranks.gather_rows(numbers[index.to(ranks.device)]) for index in split.parts().values()]
        if ranks.first:
            train, valid, test = (part.sort().values.cpu() for part in found if part is not None)
            splits.append(Split(split.name, train, valid, test))
    own = parts_of(ranks.rank, ranks.size, len(partition.sizes))
    # One line of JSON a rank: to rank 0 alone, like all else.
    line = json.dumps([name for number in own for name in partition.names(number)], ensure_ascii=False) + "\n"
    lines = ranks.gather_rows(torch.frombuffer(bytearray(line.encode()), dtype=torch.uint8).to(ranks.device))
    order = ranks.gather_rows(numbers)
    if y is None or order is None or lines is None:
        return None
    flat = [name for line in lines.cpu().numpy().tobytes().splitlines() for name in json.loads(line)]
    names = [""] * (partition.num_nodes if flat else 0)
    for number, name in zip(order.tolist(), flat, strict=False):
        names[number] = name
    return Labels(partition.about, tuple(splits), y, tuple(names))


def gather_by_number(x: Tensor, numbers: Tensor, count: int, ranks: Ranks) -> Tensor | None:
    """Rows of all ranks in their global order, on rank 0's CPU; None on the others."""
    rows, order = ranks.gather_rows(x.contiguous()), ranks.gather_rows(numbers)
    if rows is None or order is None:
        return None
    out = torch.empty(count, *x.shape[1:], dtype=x.dtype)
    out[order.cpu()] = rows.cpu()
    return out


def write_outputs(folder: RunFolder, record: RunRecord, labels: Labels | None, shard: Shard, problem: str) -> None:
    """Everything of a seed that has ended, ``result.json`` last; all ranks call it together."""
    ranks, place = shard.ranks, folder.of_seed(record.seed)
    if ranks.shared(labels is not None):
        whole = gather_by_number(record.outputs.to(ranks.device), shard.rows.numbers, shard.rows.total, ranks)
        if whole is not None:
            given: Any = labels
            complete = RunRecord(**{**vars(record), "outputs": whole})
            ranks.first_does(lambda: folder.write_record(complete, given))
        else:
            ranks.first_does(lambda: None)
        return
    _write_own(place / f"predictions-{ranks.rank:05d}.npz", record, shard, problem)
    ranks.wait_for_all()

    ranks.first_does(lambda: folder.write_result(record))


def _write_own(path: Path, record: RunRecord, shard: Shard, problem: str) -> None:
    arrays: dict[str, Any] = {
        "nodes": shard.rows.numbers.numpy(force=True),
        "outputs": record.outputs.numpy(force=True),
        "prediction": Predictions(problem, record.outputs).labels().numpy(force=True),
        "target": shard.y.numpy(force=True),
    }
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    write_bytes(path, content.getvalue())
