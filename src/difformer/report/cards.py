"""What a point of the map says of its instance: a picture, the first words of a text, a name, or its strongest columns.

Pictures go into one PNG, side by side, as large as `SPRITE_BYTES` allow; a page then holds one picture, not thousands.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data import Task
from difformer.data.sparse import take_rows
from difformer.training.source import TaskSource

SPRITE_BYTES = 1_750_000
SPRITE_COLUMNS = 50
TEXT_LENGTH = 160
TITLE_LENGTH = 80
TOP_COLUMNS = 4
TOO_MANY_ROWS = 50_000_000  # entries of a dense matrix beyond which columns are not compared
IMAGES = ("digits", "cifar10", "stl10")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Cards:
    """Of the shown instances, in their order.

    Args:
        titles: One short line each: a name, or kind and number.
        texts: More of each, or empty.
        sprite: PNG of all pictures, or None.
        side: Width and height of one picture.
        note: What could not be shown, and why; empty where nothing is missing.
    """

    titles: list[str]
    texts: list[str]
    sprite: bytes | None = None
    side: int = 0
    note: str = ""


def instance_titles(task: Task, rows: Tensor, what: str) -> list[str]:
    """Names where there are some, numbers otherwise; long names are cut, thousands of them would fill a page."""
    names = task.instance_names
    return [shortened(names[i], TITLE_LENGTH) if i < len(names) else f"{what} {i}" for i in rows.tolist()]


def shortened(text: str, length: int) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(text[: 4 * length].split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def node_cards(task: Task, source: TaskSource | None, rows: Tensor) -> Cards:
    """Of some nodes of a task on nodes."""
    titles = instance_titles(task, rows, "instance")
    name = None if source is None else source.name
    root = None if source is None else source.root
    if name in IMAGES:
        pictures = _pictures(name, root, task.num_instances)
        if pictures is not None:
            sprite, side = make_sprite(pictures[rows.numpy()])
            return Cards(titles, [""] * len(titles), sprite, side)
        return Cards(titles, [""] * len(titles), note=f"The images of {name} are not on disk, so none are shown.")
    if name == "20news":
        texts = _posts(root, task.num_instances)
        if texts is not None:
            return Cards(titles, [shortened(texts[i], TEXT_LENGTH) for i in rows.tolist()])
    return Cards(titles, _strong_columns(task, rows))


def _pictures(name: str | None, root: str | None, count: int) -> Array | None:
    """Images ``[N, H, W, C]`` uint8 in the order of the task; None where they are not on disk."""
    if name == "digits":
        from sklearn.datasets import load_digits

        grey = np.asarray(load_digits().images) * (255 / 16)
        found = grey.astype(np.uint8)[..., None]
    else:
        from difformer.data.datasets.images import load_images
        from difformer.data.lookup import find

        if find(str(name), root) is None:
            return None
        found = load_images(str(name), root)[0]
    return found if len(found) == count else None


def _posts(root: str | None, count: int) -> list[str] | None:
    from difformer.data.lookup import find

    found = find("20news", root, forms=("text",))
    if found is None:
        return None
    with gzip.open(Path(found.path), "rt", encoding="utf-8") as stream:
        texts = [str(json.loads(line)["text"]) for line in stream]
    return texts if len(texts) == count else None


def _strong_columns(task: Task, rows: Tensor) -> list[str]:
    """The columns in which an instance stands out most, where columns have names."""
    if not task.feature_names or task.kind != "nodes":
        return [""] * rows.numel()
    x = take_rows(task.x, rows)
    dense = (x.to_dense() if x.layout != torch.strided else x).float()
    if task.x.layout == torch.strided and task.x.numel() <= TOO_MANY_ROWS:
        spread = task.x.float().std(0)
        score = (dense - task.x.float().mean(0)) / torch.where(spread > 0, spread, 1.0)
    else:
        score = dense
    top = score.abs().topk(min(TOP_COLUMNS, dense.shape[1]), dim=1).indices
    return [
        ", ".join(f"{shortened(task.feature_names[c], TITLE_LENGTH)} {dense[i, c]:.3g}" for c in columns)
        for i, columns in enumerate(top.tolist())
    ]


def make_sprite(pictures: Array) -> tuple[bytes, int]:
    """All pictures ``[n, H, W, C]`` in rows of `SPRITE_COLUMNS`, shrunk until they fit; and the side of one."""
    side = int(pictures.shape[1])
    while side > 8 and len(pictures) * side * side * pictures.shape[3] > SPRITE_BYTES:
        side -= 4
    if side < pictures.shape[1]:
        # Means over areas: pixels of the small picture are means of those they cover.
        edges = np.linspace(0, pictures.shape[1], side + 1).round().astype(int)
        rows = np.add.reduceat(pictures.astype(np.float32), edges[:-1], axis=1)
        both = np.add.reduceat(rows, edges[:-1], axis=2)
        area = np.diff(edges)
        pictures = (both / (area[:, None] * area)[None, ..., None]).round().astype(np.uint8)
    lines = -(-len(pictures) // SPRITE_COLUMNS)
    padding = np.zeros((lines * SPRITE_COLUMNS - len(pictures), *pictures.shape[1:]), dtype=np.uint8)
    grid = np.concatenate([pictures, padding]).reshape(lines, SPRITE_COLUMNS, side, side, -1)
    return png(grid.transpose(0, 2, 1, 3, 4).reshape(lines * side, SPRITE_COLUMNS * side, -1)), side


def png(pixels: Array) -> bytes:
    """A PNG of ``[H, W, 1 or 3]`` uint8: signature, header, one block of compressed rows, end."""
    height, width, channels = pixels.shape
    # Each row begins with its filter: 1 stores the difference to the pixel at its left, which compresses better.
    left = np.concatenate([np.zeros_like(pixels[:, :1]), pixels[:, :-1]], axis=1)
    filtered = (pixels.astype(np.int16) - left).astype(np.uint8).reshape(height, -1)
    rows = np.concatenate([np.ones((height, 1), dtype=np.uint8), filtered], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
