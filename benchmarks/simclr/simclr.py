"""SimCLR on a set of images, and the features it gives.

Every step draws B images, makes two random views of each, and descends the contrastive loss of their 2B projections by
SGD with Nesterov momentum.

All images live on the device as uint8 and views are made there: the host has nothing to do but to launch kernels. All
randomness is a function of (seed, what for, epoch or step) and of nothing drawn before: a run that is taken up from a
checkpoint draws the same numbers as one that was never interrupted.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.simclr.augment import ViewConfig, random_views
from benchmarks.simclr.checkpoint import Checkpoint, fingerprint
from benchmarks.simclr.config import SimCLRConfig, learning_rate_at
from benchmarks.simclr.contrast import Contrast, nt_xent
from benchmarks.simclr.encoding import (
    Precision,
    autocast,
    autocast_type,
    check_images,
    normalise,
    resolve_device,
    to_device,
)
from benchmarks.simclr.progress import EpochBar
from benchmarks.simclr.resnet import ResNet18

Array = np.ndarray[Any, Any]

INITIALISATION, ORDER, VIEWS = range(3)  # what a stream of random numbers is for


@dataclass(frozen=True)
class SimCLRResult:
    """A trained encoder and how it came about.

    Args:
        encoder: In evaluation mode, on the device it was trained on.
        config: What decided it.
        losses: Mean contrastive loss of every epoch.
        seconds: Time spent in this call; epochs that came from a checkpoint are not in it.
        images_per_second: Views through the encoder, forward and backward, in a second of this call (0.0 where every
            epoch came from a checkpoint).
    """

    encoder: ResNet18
    config: SimCLRConfig
    losses: tuple[float, ...]
    seconds: float
    images_per_second: float

    def metadata(self) -> dict[str, Any]:
        """What ``save_features`` should keep beside the features."""
        return {"config": asdict(self.config), "last_loss": self.losses[-1], "seconds": self.seconds}


def train_simclr(
    images: Array,
    *,
    epochs: int = 200,
    batch_size: int = 500,
    temperature: float = 0.2,
    learning_rate: float = 0.5,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    warmup_epochs: float = 10.0,
    width: int = 64,
    projection_dim: int = 128,
    views: ViewConfig | None = None,
    seed: int = 0,
    device: str | torch.device = "auto",
    precision: Precision = "auto",
    compile: bool = False,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 10,
    progress: bool = True,
    on_epoch: Callable[[int, float], None] | None = None,
) -> SimCLRResult:
    """Trains a ResNet-18 without labels.

    Args:
        images: ``[N, H, W, 3]`` uint8.
        epochs: Passes over the images.
        batch_size: Images a step, two views each; at most N. What is left over of an epoch is dropped.
        temperature: τ of the loss.
        learning_rate: η, the highest rate.
        momentum: Of SGD.
        weight_decay: On matrices and kernels; scales and shifts have none.
        warmup_epochs: How long the rate rises; at most a tenth of all epochs is used.
        width: Channels of the first stage; features have eight times as many columns.
        projection_dim: Columns that the loss compares.
        views: How far views stray from their image.
        seed: Decides the initial weights, the order of images and every view.
        device: ``"auto"`` takes a GPU if there is one.
        precision: ``"auto"`` is bfloat16 on CUDA (weights stay float32) and float32 elsewhere.
        compile: Pass the network through ``torch.compile``: faster steps after about a minute's wait.
        checkpoint: File to write every ``checkpoint_every`` epochs and to take an interrupted run up from.
        checkpoint_every: Epochs between two checkpoints; the last epoch always writes one.
        progress: Show a bar.
        on_epoch: Called with epoch (from 1) and its mean loss, after the checkpoint is written.

    Returns:
        The encoder, every epoch's loss, and the time it took.

    Raises:
        ValueError: If an option is out of its range, or the checkpoint is of another run.
        FloatingPointError: If the loss is no longer finite.
    """
    check_images(images)
    config = SimCLRConfig(
        epochs=epochs,
        batch_size=min(batch_size, len(images)),
        temperature=temperature,
        learning_rate=learning_rate,
        momentum=momentum,
        weight_decay=weight_decay,
        warmup_epochs=warmup_epochs,
        width=width,
        projection_dim=projection_dim,
        views=views or ViewConfig(),
        seed=seed,
    )
    if checkpoint_every < 1:
        raise ValueError(f"checkpoint_every must be at least 1, got {checkpoint_every}")
    started = time.perf_counter()
    place = resolve_device(device)
    trainer = _Trainer(images, config, place, autocast_type(precision, place), compile=compile)
    losses: list[float] = []
    store = Checkpoint(checkpoint, asdict(config), fingerprint(images)) if checkpoint is not None else None
    if store is not None:
        losses = store.load(trainer.model, trainer.optimizer)
    done = len(losses)
    with EpochBar("SimCLR", total=epochs, done=done, shown=progress) as bar, _fast_convolutions(place):
        for epoch in range(done, epochs):
            loss = trainer.epoch(epoch)
            if not math.isfinite(loss):
                raise FloatingPointError(
                    f"the contrastive loss is {loss} in epoch {epoch + 1}; "
                    f"lower learning_rate (now {learning_rate}) or lengthen warmup_epochs (now {warmup_epochs})"
                )
            losses.append(loss)
            if store is not None and ((epoch + 1) % checkpoint_every == 0 or epoch + 1 == epochs):
                store.save(trainer.model, trainer.optimizer, losses)
            bar.advance(loss)
            if on_epoch is not None:
                on_epoch(epoch + 1, loss)
    seconds = time.perf_counter() - started
    seen = 2 * config.batch_size * trainer.steps_per_epoch * (epochs - done)
    encoder = trainer.model.encoder
    assert isinstance(encoder, ResNet18)
    return SimCLRResult(encoder.eval(), config, tuple(losses), seconds, seen / seconds)


class _Trainer:
    """Network, optimiser and images on one device; ``epoch`` makes one pass."""

    def __init__(
        self, images: Array, config: SimCLRConfig, device: torch.device, cast: torch.dtype | None, *, compile: bool
    ) -> None:
        self.config, self.device, self.cast = config, device, cast
        self.images = to_device(images, device)
        self.steps_per_epoch = len(images) // config.batch_size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(config.seed, INITIALISATION, 0))
            encoder = ResNet18(width=config.width)
            model = Contrast(encoder, encoder.feature_dim, projection_dim=config.projection_dim)
        self.model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network: Callable[[Tensor], Tensor] = torch.compile(self.model) if compile else self.model
        self.optimizer = _optimizer(self.model, config, fused=device.type == "cuda")
        self.generator = torch.Generator(device)

    def epoch(self, epoch: int) -> float:
        """One pass over the images; returns the mean loss."""
        config = self.config
        shuffle = torch.Generator().manual_seed(stream_seed(config.seed, ORDER, epoch))
        order = torch.randperm(len(self.images), generator=shuffle).to(self.device)
        self.model.train()
        total = torch.zeros((), device=self.device)
        for batch in range(self.steps_per_epoch):
            step = epoch * self.steps_per_epoch + batch
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate_at(step, self.steps_per_epoch, config)
            rows = order[batch * config.batch_size : (batch + 1) * config.batch_size]
            # Read on the host once an epoch: asking for every step's loss would make the host wait for the device.
            total += self._step(rows, step)
        return float(total) / self.steps_per_epoch

    def _step(self, rows: Tensor, step: int) -> Tensor:
        self.generator.manual_seed(stream_seed(self.config.seed, VIEWS, step))
        batch = self.images[rows.repeat(2)].float().div_(255)
        batch = normalise(random_views(batch, self.config.views, generator=self.generator))
        with autocast(self.device, self.cast):
            projections = self.network(batch.contiguous(memory_format=torch.channels_last))
        loss = nt_xent(projections, temperature=self.config.temperature)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def stream_seed(seed: int, stream: int, counter: int) -> int:
    """A seed for each purpose and moment: neighbouring ones give unrelated numbers."""
    return int(np.random.SeedSequence((seed, stream, counter)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _optimizer(model: nn.Module, config: SimCLRConfig, *, fused: bool) -> torch.optim.SGD:
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": weights, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    nesterov = config.momentum > 0
    return torch.optim.SGD(groups, lr=config.learning_rate, momentum=config.momentum, nesterov=nesterov, fused=fused)


@contextlib.contextmanager
def _fast_convolutions(device: torch.device) -> Iterator[None]:
    """Lets cuDNN time its kernels once, as every batch has the same shape; leaves the process as it was."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = device.type == "cuda" or before
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
