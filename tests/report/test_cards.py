"""Pictures: a PNG that is what it was made from."""

from __future__ import annotations

import dataclasses
import struct
import zlib

import numpy as np
import torch

from difformer.data import load
from difformer.report.gather import shortened
from difformer.report.maps import SPRITE_COLUMNS, make_sprite, node_cards, png
from difformer.training.run_folder import TaskSource


def read(content):
    """Decodes what `png` writes: one block, every row with filter 1."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, depth, colour = struct.unpack(">IIBB", content[16:26])
    assert depth == 8
    start = content.index(b"IDAT")
    (length,) = struct.unpack(">I", content[start - 4 : start])
    body = content[start + 4 : start + 4 + length]
    assert zlib.crc32(b"IDAT" + body) == struct.unpack(">I", content[start + 4 + length : start + 8 + length])[0]
    channels = 1 if colour == 0 else 3
    rows = np.frombuffer(zlib.decompress(body), dtype=np.uint8).reshape(height, 1 + width * channels)
    assert (rows[:, 0] == 1).all()
    return np.cumsum(rows[:, 1:].reshape(height, width, channels).astype(np.int64), axis=1).astype(np.uint8)


def test_png_round_trips():
    for channels in (1, 3):
        pixels = np.random.default_rng(0).integers(0, 256, (5, 7, channels), dtype=np.uint8)
        assert np.array_equal(read(png(pixels)), pixels)


def test_sprites_shrink_and_keep_their_places():
    pictures = np.zeros((70, 32, 32, 3), dtype=np.uint8) + np.arange(70, dtype=np.uint8)[:, None, None, None]
    sprite, side = make_sprite(pictures)
    sheet = read(sprite)
    assert side == 32
    i = 60
    row, column = divmod(i, SPRITE_COLUMNS)
    assert (sheet[row * side : (row + 1) * side, column * side : (column + 1) * side] == i).all()
    many, small = make_sprite(np.repeat(pictures, 20, axis=0))
    assert small < 32
    assert len(many) < 1_000_000
    assert (read(many)[:small, small : 2 * small] == 0).all()  # the first twenty are picture 0


def test_digits_show_their_images():
    task = load("digits", num_splits=1)
    cards = node_cards(task, TaskSource("digits"), torch.tensor([0, 5]))
    assert cards.side == 8
    assert read(cards.sprite).shape == (8, 8 * SPRITE_COLUMNS, 1)
    assert cards.titles == ["instance 0", "instance 5"]


def test_long_names_are_cut():
    task = dataclasses.replace(load("wine"), instance_names=tuple("x" * 5000 for _ in range(178)))
    assert node_cards(task, None, torch.tensor([0])).titles == ["x" * 79 + "…"]
    assert shortened("a\n  b " + "c" * 90, 6) == "a b c…"


def test_missing_images_are_reported_in_a_note(monkeypatch, tmp_path):
    monkeypatch.setenv("DIFFORMER_DATA", str(tmp_path))
    monkeypatch.setenv("DIFFORMER_CACHE", str(tmp_path))
    cards = node_cards(load("wine"), TaskSource("cifar10"), torch.tensor([0]))
    assert "images of cifar10 are not on disk" in cards.note


def test_texts_show_their_first_words(monkeypatch, tmp_path):
    import gzip
    import json

    monkeypatch.setenv("DIFFORMER_DATA", str(tmp_path))
    (tmp_path / "20news").mkdir()
    with gzip.open(tmp_path / "20news" / "20news10.jsonl.gz", "wt", encoding="utf-8") as stream:
        for i in range(178):
            stream.write(json.dumps({"text": f"Post {i}\n says <b>hello</b>", "label": 0}) + "\n")
    cards = node_cards(load("wine"), TaskSource("20news"), torch.tensor([3]))
    assert cards.texts == ["Post 3 says <b>hello</b>"]
