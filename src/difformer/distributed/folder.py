"""The folder of a partitioned task: one file a part, so that a rank reads its own and nothing else.

    partition.json                 what the task is, where it comes from, its parts, cut and balance
    part-00000.safetensors, …      nodes, features, targets, splits and incoming edges of one part

The folder appears whole, with everything in it, or not at all. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from difformer.data import Task
from difformer.data.errors import DataError
from difformer.distributed.partitioning import Quality, partition, quality
from difformer.distributed.parts import Part, cut
from difformer.distributed.ranks import Ranks
from difformer.distributed.shard import Shard, assemble

FORMAT = 1
MANIFEST = "partition.json"
PARTS = ("train", "valid", "test")
# What of a task stands in the manifest as it is.
FACTS = ("name", "problem", "metric", "protocol", "num_outputs", "num_features", "class_names", "notes")


def is_partition(path: str | os.PathLike[str]) -> bool:
    """Whether there is a partitioned task."""
    return (Path(path) / MANIFEST).is_file()


def write_partition(
    task: Task,
    path: str | os.PathLike[str],
    parts: int,
    *,
    method: str = "auto",
    seed: int = 0,
    source: Mapping[str, Any] | None = None,
    assignment: Tensor | None = None,
    on_part: Callable[[int], None] | None = None,
) -> Partition:
    """Cuts a task into parts and writes them.

    Args:
        task: Nodes of one graph, or rows of a table.
        path: The folder, new.
        parts: How many; as many as there will be ranks, or more (each rank then takes several).
        method: See `difformer.distributed.partitioning.partition`.
        seed: Of the partitioner.
        source: Where the task comes from, as a run folder has it, so that a run can be used without this folder.
        assignment: ``[N]`` part of each node, in place of a partitioner's.
        on_part: Told of every part that is written.

    Raises:
        ValueError: If the task is none of nodes, or the folder is there already.
    """
    path = Path(path)
    if task.kind != "nodes":
        raise ValueError(
            f"task {task.name!r} is of kind {task.kind!r}: only nodes are cut into parts; batches of graphs are spread "
            f"over ranks as they are (torchrun … -m difformer fit {task.name})"
        )
    if path.exists():
        raise FileExistsError(f"--out: {path} is already there; nothing was changed. Name another folder")
    edges = task.edge_index
    assert edges is None or isinstance(edges, Tensor)
    found = "given"
    if assignment is None:
        assignment, found = partition(edges, task.num_nodes, parts, method=method, seed=seed)
    manifest = {
        "format": FORMAT,
        **{name: getattr(task, name) for name in FACTS},
        "num_nodes": task.num_nodes,
        "num_edges": task.num_edges,
        "fingerprint": task.fingerprint(),
        "splits": [split.name for split in task.splits],
        "source": source,
        "method": found,
        "quality": vars(quality(edges, assignment, parts)),
        "layout": {
            "sparse": task.x.layout != torch.strided,
            "x": str(task.x.dtype).removeprefix("torch."),
            "y": str(task.y.dtype).removeprefix("torch."),
            "columns": list(task.y.shape[1:]),
            "weighted": task.edge_weight is not None,
        },
        "sizes": torch.bincount(assignment, minlength=parts).tolist(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        for number, part in enumerate(cut(task, assignment, parts)):
            _write(part, new / _file(number), task.instance_names)
            if on_part is not None:
                on_part(number)
        (new / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        for file in new.iterdir():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        new.chmod(0o755)
        os.replace(new, path)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return Partition.open(path)


def _file(number: int) -> str:
    return f"part-{number:05d}.safetensors"


def _write(part: Part, path: Path, names: tuple[str, ...]) -> None:
    tensors: dict[str, Tensor] = {"nodes": part.nodes, "y": part.y}
    if part.x.layout == torch.strided:
        tensors["x"] = part.x
    else:
        tensors |= {"x.crow": part.x.crow_indices(), "x.col": part.x.col_indices(), "x.values": part.x.values()}
    for i, split in enumerate(part.splits):
        tensors |= {f"split.{i}.{name}": rows for name, rows in zip(PARTS, split, strict=True)}
    for name in ("source", "target", "edge_weight", "halo_part", "halo_row"):
        if (value := getattr(part, name)) is not None:
            tensors[name] = value if value.is_floating_point() or value.numel() >= 2**31 else value.int()
    if names:
        text = json.dumps([names[i] for i in part.nodes.tolist()], ensure_ascii=False).encode()
        tensors["names"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, path)


@dataclass(frozen=True)
class Partition:
    """A partitioned task on disk.

    Args:
        path: The folder.
        about: Its manifest.
    """

    path: Path
    about: Mapping[str, Any]

    @staticmethod
    def open(path: str | os.PathLike[str]) -> Partition:
        """What `write_partition` wrote.

        Raises:
            DataError: If it is absent, damaged, or written by a newer version.
        """
        path = Path(path)
        if not is_partition(path):
            raise DataError("holds no partitioned task; `difformer partition` makes such folders", path=path)
        try:
            about = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            if about["format"] > FORMAT:
                raise DataError(
                    f"is in format {about['format']}, this difformer reads up to {FORMAT}: upgrade difformer", path=path
                )
            missing = [_file(i) for i in range(len(about["sizes"])) if not (path / _file(i)).is_file()]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise DataError(f"its {MANIFEST} is damaged: {type(error).__name__}: {error}", path=path) from error
        if missing:
            raise DataError(f"{missing[0]} is missing; partition the task again", path=path)
        return Partition(path, about)

    @property
    def sizes(self) -> list[int]:
        """Nodes of every part."""
        return list(self.about["sizes"])

    @property
    def num_nodes(self) -> int:
        return int(self.about["num_nodes"])

    @property
    def quality(self) -> Quality:
        return Quality(**self.about["quality"])

    def read(self, number: int) -> Part:
        """One part.

        Raises:
            DataError: If its file is damaged.
        """
        path = self.path / _file(number)
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys() if name != "names"}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise DataError(f"is damaged: {error}; partition the task again", path=path) from error
        return self._part(tensors)

    def _part(self, tensors: dict[str, Tensor]) -> Part:
        nodes = tensors["nodes"]
        x = tensors.get("x")
        if x is None:
            given = (tensors["x.crow"], tensors["x.col"], tensors["x.values"])
            x = torch.sparse_csr_tensor(*given, (nodes.numel(), self.about["num_features"]))
        splits = tuple(
            (tensors[f"split.{i}.train"], tensors[f"split.{i}.valid"], tensors[f"split.{i}.test"])
            for i in range(len(self.about["splits"]))
        )
        edges = {
            name: tensors[name].long() if name in tensors else None
            for name in ("source", "target", "halo_part", "halo_row")
        }
        return Part(nodes, x, tensors["y"], splits, edge_weight=tensors.get("edge_weight"), **edges)

    def names(self, number: int) -> list[str]:
        """Names of the nodes of a part; none where the task has none."""
        with safe_open(self.path / _file(number), framework="pt", device="cpu") as file:
            if "names" not in file.keys():  # noqa: SIM118
                return []
            return list(json.loads(file.get_tensor("names").numpy().tobytes()))

    def empty(self) -> Part:
        """A part without nodes, for a rank that has none."""
        layout, none = self.about["layout"], torch.zeros(0, dtype=torch.long)
        x = torch.zeros(0, self.about["num_features"], dtype=getattr(torch, layout["x"]))
        if layout["sparse"]:
            x = torch.sparse_csr_tensor(torch.zeros(1, dtype=torch.long), none, x.flatten(), x.shape)
        y = torch.zeros(0, *layout["columns"], dtype=getattr(torch, layout["y"]))
        weight = torch.zeros(0) if layout["weighted"] else None
        splits = tuple((none, none, none) for _ in self.about["splits"])
        return Part(none, x, y, splits, none, none, weight, none, none)

    def shard(self, ranks: Ranks) -> Shard:
        """What this rank trains on; all ranks must call it together."""
        edges = self.about["num_edges"] or 0
        return assemble(ranks, self.read, self.sizes, self.about["splits"], num_edges=edges, empty=self.empty)
