"""Full-batch epochs as CUDA graphs: a small model is otherwise launch-bound, waiting for its many small kernels.

The forward and backward pass of an epoch are recorded once and replayed; so is the pass of an evaluation. Between two
replays nothing changes but the parameters, which the optimiser updates in place, and the key of the dropout masks,
which is copied into its place. The recording contains the kernels that would have been launched, so results are the
same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from difformer.nn.dropout import dropout_key, dropout_keys
from difformer.training.config import TrainConfig
from difformer.training.devices import precision
from difformer.training.feeds import NodesFeed
from difformer.training.losses import Loss

LARGEST = 1 << 19  # nodes; a pass over more of them takes longer than its launches
WARM_UP = 3  # passes before recording, so that caches are filled and libraries loaded


class NotRecordableError(RuntimeError):
    """Work that cannot be recorded as a CUDA graph, such as waiting for a value; the message gives the reason."""

    def __init__(self, cause: RuntimeError) -> None:
        first = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        super().__init__(f"epochs could not be recorded as a CUDA graph, so training is slower: {first}")


# The stream of a device that everything is recorded on: libraries of linear algebra keep a workspace for each stream.
side_stream = cache(torch.cuda.Stream)


class Recorder:
    """Records work to be replayed, in memory that all pieces share: no piece may read what another has left there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None  # memory is shared on one stream only

    def record(self, work: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """The work, recorded but not executed; it must have been done before, so that no cache is filled now."""
        # The stream that torch chooses by itself belongs to the first device that anything was recorded on: work on
        # other devices would be done at once, and be missing from the graph. If recording fails, torch stays on its
        # stream; the outer context returns to the current one.
        graph, stream = torch.cuda.CUDAGraph(), side_stream(self._device)
        current = torch.cuda.stream(torch.cuda.current_stream(stream.device))
        try:
            with current, torch.cuda.graph(graph, self._pool, stream):
                work()
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise NotRecordableError(error) from error
        self._pool = graph.pool()
        return graph


class RecordedEpoch:
    """Recorded passes of one model on one feed: forward and backward of an epoch, and forward of an evaluation.

    Parameters and buffers are afterwards what they were before; the gradients are those that replays write.
    """

    def __init__(self, model: nn.Module, feed: NodesFeed, loss: Loss, seed: int, config: TrainConfig) -> None:
        device = next(model.parameters()).device
        kept = {name: value.detach().clone() for name, value in model.state_dict().items()}
        (step,) = feed.steps(1)
        self.seed, self._key = seed, torch.zeros(2, dtype=torch.int32, device=device)

        def train() -> None:
            model.zero_grad(set_to_none=True)  # new ones in the graph's own memory, overwritten by every replay
            model.train()
            with dropout_key(self._key), precision(device, config.precision):
                outputs = step.inputs.outputs(model)
            found = loss(step.select(outputs).float(), step.targets)
            found.backward()
            self._outputs, self.loss = outputs.detach(), found.detach()

        def evaluate() -> None:
            model.eval()
            with torch.no_grad(), precision(device, config.precision):
                self._evaluated = feed.outputs(model)

        try:
            side, recorder = side_stream(device), Recorder(device)
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    train()
                    evaluate()
            torch.cuda.current_stream(device).wait_stream(side)
            self._training, self._evaluation = recorder.record(train), recorder.record(evaluate)
        except NotRecordableError:
            model.zero_grad(set_to_none=True)
            raise
        finally:
            model.load_state_dict(kept)

    def train(self, epoch: int) -> Tensor:
        """Outputs of an epoch; leaves its gradients, and its loss in `loss`."""
        self._key.copy_(dropout_keys([self.seed], [epoch])[0, 0])
        self._training.replay()
        return self._outputs

    def evaluate(self) -> Tensor:
        """Outputs of an evaluation."""
        self._evaluation.replay()
        return self._evaluated
