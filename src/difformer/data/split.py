"""Splits: which instances are trained on, which choose the model, and which are only ever reported.

A split is an object with a name, so that two runs can be told to have used the same one. Instances in none of the three
parts (unlabelled nodes, nodes without features) take part in propagation but in no loss and no metric.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Three disjoint sets of instance indices.

    Args:
        name: How the split is called in reports, for example ``"random/seed=3"``.
        train: Indices whose targets are trained on.
        valid: Indices whose targets choose epoch and hyper-parameters.
        test: Indices whose targets are only reported.

    Raises:
        ValueError: If an index is negative, stands twice in a part, or stands in two parts.
    """

    name: str
    train: Tensor
    valid: Tensor
    test: Tensor

    def __post_init__(self) -> None:
        parts = {"train": self.train, "valid": self.valid, "test": self.test}
        for part, index in parts.items():
            if index.dtype != torch.long or index.dim() != 1:
                raise ValueError(
                    f"split {self.name!r}: {part} must be a one-dimensional tensor of int64 indices, "
                    f"got {index.dtype} of shape {tuple(index.shape)}"
                )
            if index.numel() and int(index.min()) < 0:
                raise ValueError(f"split {self.name!r}: {part} holds the negative index {int(index.min())}")
            if index.unique().numel() != index.numel():
                raise ValueError(f"split {self.name!r}: {part} holds an index twice")
        for first, second in (("train", "valid"), ("train", "test"), ("valid", "test")):
            both = parts[first][torch.isin(parts[first], parts[second])]
            if both.numel():
                raise ValueError(
                    f"split {self.name!r}: {both.numel()} indices stand in both {first} and {second}, "
                    f"for example {int(both[0])}; the parts must be disjoint"
                )

    def sizes(self) -> tuple[int, int, int]:
        """How many instances each part holds: train, valid, test."""
        return self.train.numel(), self.valid.numel(), self.test.numel()
