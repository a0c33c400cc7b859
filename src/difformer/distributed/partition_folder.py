"""The folder of a partitioned task: one file per part, so that a rank reads only its own.

    partition.json                 what the task is, where it comes from, its parts, cut and balance
    part-00000.safetensors, …      nodes, features, targets, splits and incoming edges of one part

Every part carries the fingerprint of its partition and its own number, and every index is checked when a part is read.
The folder appears complete, or not at all. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from difformer.data import Preprocessing, Split, Task
from difformer.data.sparse_features import csr
from difformer.distributed.graph_partition import NONE, Part, Quality, cut, partition, quality
from difformer.distributed.process_group import Ranks
from difformer.distributed.shard import Shard, assemble
from difformer.errors import DataError, UserError
from difformer.files import whole_folder
from difformer.schema import check
from difformer.training.checkpoint import newer_format

FORMAT = 2
MANIFEST = "partition.json"
PARTS = ("train", "valid", "test")
DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64", "int64")}
MOST_OUTPUTS = 2**24  # classes or columns: far more than any task has
# Attributes of a task that are copied into the manifest.
FACTS = ("name", "problem", "metric", "protocol", "num_outputs", "num_features", "class_names", "notes")


def is_partition(path: str | os.PathLike[str]) -> bool:
    """Whether the folder holds a partitioned task."""
    return (Path(path) / MANIFEST).is_file()


def write_partition(
    task: Task,
    path: str | os.PathLike[str],
    parts: int,
    *,
    method: str = "auto",
    source: Mapping[str, Any] | None = None,
    assignment: Tensor | None = None,
) -> Partition:
    """Cuts a task into parts and writes them.

    Args:
        task: Nodes of one graph, or rows of a table.
        path: The folder, new.
        parts: Number of parts: one per rank, or more (each rank then takes several).
        method: See `difformer.distributed.graph_partition.partition`.
        source: Where the task comes from, as in a run folder, so that a run can be used without this folder.
        assignment: ``[N]`` part of each node, instead of running a partitioner.

    Raises:
        UserError: If the task does not consist of nodes.
        FileExistsError: If the folder exists.
    """
    path = Path(path)
    task.check_finite()
    if task.kind != "nodes":
        advice = f"batches of graphs are spread over ranks without it (torchrun … -m difformer fit {task.name})"
        raise UserError(f"task {task.name!r} is of kind {task.kind!r}: only nodes are cut into parts; {advice}")
    if path.exists():
        raise FileExistsError(f"--out: {path} already exists; nothing was changed. Choose another folder")
    edges = task.edge_index
    assert edges is None or isinstance(edges, Tensor)
    found = "given"
    if assignment is None:
        assignment, found = partition(edges, task.num_nodes, parts, method=method)
    # Fingerprint of the partition: of the task, and of the part of each node.
    digest = hashlib.sha256(f"{task.fingerprint()} {parts} ".encode())
    digest.update(assignment.long().contiguous().numpy().tobytes())
    identity = digest.hexdigest()[:16]
    manifest = {
        "format": FORMAT,
        **{name: getattr(task, name) for name in FACTS},
        "num_nodes": task.num_nodes,
        "num_edges": task.num_edges,
        "fingerprint": task.fingerprint(),
        "partition": identity,
        "preprocessing": None if task.preprocessing is None else task.preprocessing.to_dict(),
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
    with whole_folder(path) as new:
        for number, part in enumerate(cut(task, assignment, parts)):
            marks = {"partition": identity, "part": str(number)}
            save_file(_tensors(part, graph=edges is not None), new / _file(number), metadata=marks)
        (new / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return Partition.open(path)


def shared_partition(task: Task, parts: int, *, source: Mapping[str, Any] | None = None) -> Partition:
    """A partition of a task in ``parts/NAME-P-FINGERPRINT``, written unless the same one is already there."""
    path = Path("parts") / f"{task.name}-{parts}-{task.fingerprint()[:8]}"
    if is_partition(path):
        found = Partition.open(path)
        if found.about["fingerprint"] == task.fingerprint() and len(found.sizes) == parts:
            return found
    return write_partition(task, path, parts, source=source)


def _file(number: int) -> str:
    return f"part-{number:05d}.safetensors"


def _tensors(part: Part, *, graph: bool) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {"nodes": part.nodes, "y": part.y}
    if part.x.layout == torch.strided:
        tensors["x"] = part.x
    else:
        tensors |= {"x.crow": part.x.crow_indices(), "x.col": part.x.col_indices(), "x.values": part.x.values()}
    for i, split in enumerate(part.splits):
        tensors |= {f"split.{i}.{name}": rows for name, rows in zip(PARTS, split, strict=True)}
    if graph:
        ends = {name: getattr(part, name) for name in ("source", "target", "halo_part", "halo_row")}
        tensors |= {name: value if value.numel() >= 2**31 else value.int() for name, value in ends.items()}
    if part.edge_weight is not None:
        tensors["edge_weight"] = part.edge_weight
    if part.names:
        text = json.dumps(part.names, ensure_ascii=False).encode()
        tensors["names"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return {name: tensor.contiguous().clone() for name, tensor in tensors.items()}


_FORM: dict[str, Any] = {
    **dict.fromkeys(("name", "metric", "protocol", "fingerprint", "partition", "method"), str),
    **{key: [str] for key in ("class_names", "notes", "splits")},
    **dict.fromkeys(("num_nodes", "num_features", "num_outputs"), int),
    "problem": {"multiclass", "multilabel", "regression"},
    "num_edges": (int, None),
    "sizes": [int],
    "source": (dict, None),
    "preprocessing": (dict, None),
    "quality": {"cut": int, "edges": int, "balance": float, "boundary": int},
    "layout": {"sparse": bool, "weighted": bool, "x": set(DTYPES), "y": set(DTYPES), "columns": [int]},
}
_SOURCE = {"name": (str, None), "root": (str, None), "options": (dict, None), "files": (dict, None)}


def _check_manifest(about: Mapping[str, Any]) -> None:
    """Refuses a manifest that `write_partition` could not have written, naming the entry."""
    check(about, _FORM)
    if "num_edges" not in about:
        raise UserError("num_edges must be a count, or null without a graph, but is missing")
    if about["source"] is not None:
        check(about["source"], _SOURCE, "source")
        check(list((about["source"].get("files") or {}).values()), [str], "source.files")
    if not 0 < about["num_outputs"] <= MOST_OUTPUTS:
        raise UserError(f"num_outputs must lie in 1 … {MOST_OUTPUTS:,}, got {about['num_outputs']:,}")
    if sum(about["sizes"]) != about["num_nodes"]:
        raise UserError(f"sizes add up to {sum(about['sizes']):,} nodes, num_nodes is {about['num_nodes']:,}")
    if about["preprocessing"] is not None:
        try:
            Preprocessing.from_dict(about["preprocessing"])
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(f"preprocessing: {error}") from error


class _Tensors:
    """The tensors of a part, each checked when it is taken."""

    def __init__(self, found: Mapping[str, Tensor], path: Path) -> None:
        self.found, self.path = found, path

    def check(self, name: str, fine: bool | Tensor, problem: str) -> None:
        if not bool(fine):
            raise DataError(f"{name} {problem}; the file is damaged: partition the task again", path=self.path)

    def take(
        self, name: str, shape: tuple[int, ...] | None, dtype: torch.dtype | None = None, *, finite: bool = True
    ) -> Tensor:
        self.check(name, name in self.found, "is missing")
        value = self.found[name]
        self.check(name, shape in (None, tuple(value.shape)), f"has shape {tuple(value.shape)}, expected {shape}")
        self.check(name, dtype in (None, value.dtype), f"has type {value.dtype}, expected {dtype}")
        self.check(name, not finite or value.isfinite().all(), "has values that are not finite")
        return value

    def index(self, name: str, size: int | None, below: int | None = None) -> Tensor:
        """Whole numbers in 0 … below - 1."""
        value = self.take(name, None if size is None else (size,), finite=False)
        whole = value.ndim == 1 and value.dtype in (torch.int32, torch.int64)
        self.check(name, whole, f"is not a list of integers: {value.dtype}, shape {tuple(value.shape)}")
        value = value.long()
        inside = not value.numel() or (int(value.min()) >= 0 and (below is None or int(value.max()) < below))
        self.check(name, inside, f"has numbers outside 0 … {'' if below is None else below - 1}")
        return value

    def split(self, number: int, name: str, rows: int) -> tuple[Tensor, ...]:
        """Disjoint rows to train on, to choose by and to test on."""
        found = [self.index(f"split.{number}.{part}", None, rows) for part in PARTS]
        try:
            return tuple(Split(name, *found).parts().values())
        except UserError as error:
            raise DataError(f"split.{number} is invalid ({error}); partition the task again", path=self.path) from error

    def names(self, rows: int) -> tuple[str, ...]:
        """Names of the nodes, if the task has names."""
        if "names" not in self.found:
            return ()
        try:
            found = json.loads(self.found["names"].numpy().tobytes())
        except (ValueError, TypeError, RecursionError):
            found = None
        self.check("names", isinstance(found, list) and len(found) == rows, f"is not a list of {rows} names")
        return tuple(map(str, found))

    def csr(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """``[rows, columns]``, with every invariant of the format checked."""
        values = self.take("x.values", None, dtype)
        column = self.index("x.col", values.numel(), columns)
        crow = self.index("x.crow", rows + 1, values.numel() + 1)
        counts = int(crow[0]) == 0 and int(crow[-1]) == values.numel() and bool((crow.diff() >= 0).all())
        self.check("x.crow", counts, "is not a valid row pointer")
        return csr(crow, column, values, (rows, columns))


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
            raise DataError("holds no partitioned task; `difformer partition` writes such folders", path=path)
        try:
            about = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            older = "in format 1, whose parts carry no fingerprint; partition the task again"
            if wrong := newer_format(about["format"], FORMAT) or older * (about["format"] < FORMAT):
                raise DataError(f"is {wrong}", path=path)
            _check_manifest(about)
        except DataError:
            raise
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            raise DataError(f"its {MANIFEST} is damaged: {kind}{error}", path=path) from error
        if missing := [_file(i) for i in range(len(about["sizes"])) if not (path / _file(i)).is_file()]:
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
        return Quality(**{name: self.about["quality"][name] for name in _FORM["quality"]})

    def stand_in(self, y: Tensor = NONE, splits: Sequence[Split] = (), names: Sequence[str] = ()) -> Any:
        """What a model and a run folder need from a task: facts, targets and splits, but neither features nor edges."""
        about, given = self.about, self.about["preprocessing"]
        return SimpleNamespace(
            **{name: about[name] for name in (*FACTS, "num_nodes")} | {"class_names": tuple(about["class_names"])},
            kind="nodes",
            num_instances=self.num_nodes,
            preprocessing=None if given is None else Preprocessing.from_dict(given),
            fingerprint=lambda: str(about["fingerprint"]),  # that of the task that was partitioned
            splits=tuple(splits),
            y=y,
            instance_names=tuple(names),
        )

    def read(self, number: int) -> Part:
        """One part.

        Raises:
            DataError: If its file is damaged, belongs to another partition, or has an index out of range.
        """
        path, about, sizes = self.path / _file(number), self.about, self.sizes
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                marks = file.metadata() or {}
        except (SafetensorError, OSError) as error:
            raise DataError(f"is damaged: {error}; partition the task again", path=path) from error
        if (found := marks.get("partition")) != about["partition"]:
            said = f"belongs to another partition ({found}, not {about['partition']}); partition the task again"
            raise DataError(said, path=path)
        if (found := marks.get("part")) != str(number):
            raise DataError(f"is part {found} of the partition, not part {number}; partition the task again", path=path)
        given, n, layout = _Tensors(tensors, path), sizes[number], about["layout"]
        nodes = given.index("nodes", n, self.num_nodes)
        given.check("nodes", (nodes.diff() > 0).all(), "does not ascend")
        columns, dtype, outputs = about["num_features"], DTYPES[layout["x"]], about["num_outputs"]
        x = given.csr(n, columns, dtype) if layout["sparse"] else given.take("x", (n, columns), dtype)
        y = given.take("y", (n, *layout["columns"]), DTYPES[layout["y"]], finite=False)
        known = y.is_floating_point() or not y.numel() or -1 <= int(y.min()) <= int(y.max()) < outputs
        given.check("y", known, f"has classes outside -1 … {outputs - 1}")
        splits = tuple(given.split(i, name, n) for i, name in enumerate(about["splits"]))
        names = given.names(n)
        if about["num_edges"] is None:
            return Part(nodes, x, y, splits, names=names)
        halo_part = given.index("halo_part", None, len(sizes))
        halo_row = given.index("halo_row", halo_part.numel())
        inside = (halo_row < torch.tensor(sizes)[halo_part]).all()
        given.check("halo_row", inside, "has rows missing from the other parts")
        target = given.index("target", None, n)
        source = given.index("source", target.numel(), n + halo_part.numel())
        weight = given.take("edge_weight", (target.numel(),)) if layout["weighted"] else None
        return Part(nodes, x, y, splits, source, target, weight, halo_part, halo_row, names)

    def shard(self, ranks: Ranks) -> Shard:
        """What this rank trains on; all ranks must call it together."""
        edges = self.about["num_edges"] or 0
        return assemble(ranks, self.read, self.sizes, self.about["splits"], num_edges=edges)
