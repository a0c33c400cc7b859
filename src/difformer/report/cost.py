"""What a run cost: time from its folder; parameters, the memory of a training pass and the operator, measured here."""

from __future__ import annotations

import time

import torch

from difformer.attention import explain
from difformer.nn import DIFFormer, DIFFormerConv
from difformer.report.scene import encoder_of
from difformer.training.run_folder import RunFolder
from difformer.training.saved import saved_bytes
from difformer.training.using import Loaded

MIB = 2**20


def costs(folder: RunFolder, loaded: Loaded) -> list[tuple[str, str]]:
    """Names and values, for a table."""
    results = folder.results()
    seconds, epochs = sum(r["seconds"] for r in results), sum(r["epochs"] for r in results)
    run = folder.about["run"]
    each = 1000 * seconds / max(epochs, 1)
    how = "seeds as one model" if run["stacked"] else "one seed after the other"
    found = [
        (
            "training",
            f"{seconds:.1f} s, {len(results)} seeds, {epochs:,} epochs: {each:.1f} ms each, evaluation included",
        ),
        (
            "trained on",
            f"{run.get('device_name', run['device'])} ({run['device']}), {run.get('threads', '?')} threads, {how}",
        ),
        ("parameters", _parameters(loaded)),
        *_forward_pass(loaded),
        ("all pairs by", _backend(loaded)),
    ]
    return [(name, value) for name, value in found if value]


def _parameters(loaded: Loaded) -> str:
    held = list(loaded.model.parameters())
    return f"{sum(p.numel() for p in held):,} ({sum(p.numel() * p.element_size() for p in held) / MIB:.2f} MiB)"


def _forward_pass(loaded: Loaded) -> list[tuple[str, str]]:
    """Time of a pass over some or all instances, and what it keeps for its backward pass."""
    inputs = loaded.feed.passes()[0]
    model, rows = loaded.model, inputs.x.shape[0]
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with torch.no_grad():
        inputs.outputs(model)  # graphs are sorted at their first use
        _wait(device)
        begun = time.perf_counter()
        inputs.outputs(model)
        _wait(device)
    taken = time.perf_counter() - begun
    with torch.enable_grad():
        size = saved_bytes(lambda: inputs.outputs(model), besides=model.parameters())
    whole = "all instances" if len(loaded.feed.passes()) == 1 else f"a batch of {rows:,} rows"
    return [
        ("a forward pass here", f"{1000 * taken:.1f} ms for {whole} on {device}"),
        (
            "memory of a training pass",
            f"{size / MIB:.1f} MiB are kept for the backward pass of {whole}" if size else "",
        ),
    ]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _backend(loaded: Loaded) -> str:
    """The operator for all pairs and why it was chosen."""
    encoder = encoder_of(loaded.model)
    if not isinstance(encoder, DIFFormer) or not len(encoder.layers):
        return ""
    layer: DIFFormerConv = encoder.layers[0]  # type: ignore[assignment]
    if layer.diffusivity is None:
        return "no latent pairs: observed edges alone"
    if layer.backend != "auto":
        return f"{layer.backend}: asked for by the setting backend={layer.backend}"
    inputs = loaded.feed.passes()[0]
    rows = inputs.x.shape[0] if inputs.batch is None else inputs.batch.largest
    if layer.form == "simple" and layer.qk_norm != "row" and inputs.batch is None:
        return "linear: simple is a sum; with this norm of queries and keys the states' Gram matrix is all it needs"
    device = next(encoder.parameters()).device
    return str(explain(rows, layer.out_channels, diffusivity=layer.diffusivity, heads=layer.num_heads, device=device))
