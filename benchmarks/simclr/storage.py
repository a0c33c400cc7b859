"""Features and encoders on disk, each file whole or absent.

A feature file is an ``.npz`` with ``features [N, D]`` and ``metadata``, a JSON text that says how they were made, so
that features of different origin (``method``: simclr, pca, hog) cannot be taken for each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch

from benchmarks.simclr.resnet import ResNet18
from difformer.data.archives import read_npz
from difformer.files import atomic_write, write_whole


def save_features(
    path: str | Path,
    features: np.ndarray[Any, Any],
    *,
    method: str,
    labels: np.ndarray[Any, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Writes features and how they were made.

    Args:
        path: File to write, ending in ``.npz``.
        features: ``[N, D]``, a row an instance.
        method: What made them: ``"simclr"``, ``"pca"``, ``"hog"`` or the user's own word.
        labels: ``[N]`` classes to keep beside them.
        metadata: Anything else worth keeping that JSON can hold.

    Returns:
        The path.

    Raises:
        ValueError: If features are not two-dimensional or not finite, or labels are of another length.
    """
    features = np.asarray(features)
    if Path(path).suffix != ".npz":
        raise ValueError(f"path must end in .npz, got {path}")
    if features.ndim != 2:
        raise ValueError(f"features must have shape [N, D], got {features.shape}")
    if not np.isfinite(features).all():
        bad = int((~np.isfinite(features)).any(axis=1).sum())
        raise ValueError(f"features hold NaN or infinity in {bad} of {len(features)} rows; they are not written")
    arrays: dict[str, Any] = {"features": features}
    if labels is not None:
        if len(labels) != len(features):
            raise ValueError(f"labels has {len(labels)} entries but features has {len(features)} rows")
        arrays["labels"] = np.asarray(labels)
    text = json.dumps({**(metadata or {}), "method": method}, sort_keys=True)
    with atomic_write(path) as file:
        np.savez(file, **arrays, metadata=np.array(text))
    return Path(path)


def load_features(path: str | Path) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    """Reads what ``save_features`` wrote: the features, and how they were made."""
    file = read_npz(path)
    if "features" not in file:
        raise ValueError(f"{path} holds the arrays {sorted(file)} but no 'features'; is it a feature file?")
    metadata = json.loads(str(file["metadata"])) if "metadata" in file else {}
    return file["features"], metadata


def save_encoder(path: str | Path, encoder: ResNet18, *, metadata: Mapping[str, Any] | None = None) -> Path:
    """Writes an encoder as safetensors; the width and ``metadata`` stand in the header."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in encoder.state_dict().items()}
    header = {"width": str(encoder.width), "metadata": json.dumps(dict(metadata or {}), sort_keys=True)}
    write_whole(path, safetensors.torch.save(state, metadata=header))
    return Path(path)


def load_encoder(path: str | Path) -> ResNet18:
    """Reads what ``save_encoder`` wrote, in evaluation mode on the CPU."""
    with safetensors.safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
        if "width" not in header:
            raise ValueError(f"{path} has no 'width' in its header; it was not written by save_encoder")
        encoder = ResNet18(width=int(header["width"]))
        encoder.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118  not a dict
    return encoder.eval()
