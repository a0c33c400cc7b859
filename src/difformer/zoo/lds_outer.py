"""The outer step of `difformer.zoo.lds`: edge probabilities move along a gradient through the inner training."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.nn.protocol import Features
from difformer.sparse import SparseMatrix
from difformer.zoo.lds_network import Network, Weights, network_states


class OuterStep(nn.Module):
    """The inner network w, which half of the labels trains it, and how θ is moved.

    Its weights are buffers: the training loop saves them and leaves them alone.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state.
        out_channels: Classes.
        num_layers: Convolutions, the output's included.
        rate: η.
        inner_steps: τ.
        inner_rate: γ.
        restart_every: Steps after which w begins anew, with other halves.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        rate: float,
        inner_steps: int,
        inner_rate: float,
        restart_every: int,
    ) -> None:
        super().__init__()
        self.rate, self.inner_steps, self.inner_rate, self.restart_every = rate, inner_steps, inner_rate, restart_every
        self.sizes = (in_channels, hidden_channels, num_layers, out_channels)
        self.names: list[str] = []
        for k, tensor in enumerate(self._fresh()):
            self.names.append(f"w{k}")
            self.register_buffer(self.names[-1], tensor)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("halves_seed", torch.zeros((), dtype=torch.long))
        self.steps: Tensor
        self.halves_seed: Tensor

    def _fresh(self) -> list[Tensor]:
        in_channels, hidden, layers, out_channels = self.sizes
        network = Network(in_channels, hidden, layers)
        last = nn.init.xavier_uniform_(torch.empty(hidden, out_channels)), torch.zeros(out_channels)
        return [part.detach() for pair in [*network.weights(), last] for part in pair]

    def step(self, theta: Tensor, x: Features, index: Tensor, labels: Tensor) -> None:
        """Moves θ, in place.

        Args:
            theta: ``[N, N]`` symmetric probabilities.
            x: Features ``[N, F]``.
            index: Labelled nodes.
            labels: Their classes.
        """
        if int(self.steps) % self.restart_every == 0:
            self._restart()
        self.steps += 1
        inner, outer = self.halves(labels)
        if isinstance(x, Tensor) and x.layout != torch.strided:
            x = SparseMatrix.from_tensor(x)
        flat: list[Tensor] = [getattr(self, name) for name in self.names]
        with torch.inference_mode(False), torch.enable_grad():
            flat = [tensor.detach().requires_grad_() for tensor in flat]
            graphs = []
            for _ in range(self.inner_steps):
                graphs.append(_drawn(theta))
                loss = self._loss(flat, x, graphs[-1], index[inner], labels[inner])
                slopes = torch.autograd.grad(loss, flat, create_graph=True)
                flat = [w - self.inner_rate * slope for w, slope in zip(flat, slopes, strict=True)]
            graphs.append(_drawn(theta))
            reached = self._loss(flat, x, graphs[-1], index[outer], labels[outer])
            slopes = torch.autograd.grad(reached, graphs)
        total = torch.zeros_like(theta)
        for slope in slopes:
            total.add_(slope)
        total = total.T.contiguous().add_(total).fill_diagonal_(0.0)
        theta.sub_(total, alpha=self.rate).clamp_(0.0, 1.0)
        for name, w in zip(self.names, flat, strict=True):
            getattr(self, name).copy_(w.detach())

    def halves(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of the labels of L and of F: of every class one half each, the odd one to L."""
        generator = torch.Generator().manual_seed(int(self.halves_seed))
        order = torch.randperm(labels.numel(), generator=generator).to(labels.device)
        by_class = order[torch.argsort(labels[order], stable=True)]
        return by_class[::2], by_class[1::2]

    def _restart(self) -> None:
        self.halves_seed.fill_(int(torch.randint(2**31, ())))
        for name, tensor in zip(self.names, self._fresh(), strict=True):
            getattr(self, name).copy_(tensor)

    def _loss(self, flat: list[Tensor], x: Features, adjacency: Tensor, index: Tensor, labels: Tensor) -> Tensor:
        weights: Weights = list(zip(flat[::2], flat[1::2], strict=True))
        states = network_states(weights[:-1], x, adjacency)
        last, bias = weights[-1]
        return functional.cross_entropy(states[index] @ last + bias, labels)


def _drawn(theta: Tensor) -> Tensor:
    """A graph that is differentiated as if it were θ itself: straight through the drawing."""
    from difformer.zoo.lds import draw

    return draw(theta).requires_grad_()
