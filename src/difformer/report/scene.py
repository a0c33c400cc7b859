"""A scene: one graph's worth of instances that exchange with each other, and their states layer by layer.

Of a task on nodes the scene is everything; of a series it is one snapshot, of many graphs one graph. What is said of
latent structure is said of a scene, because instances of different snapshots and graphs never exchange.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from difformer.graph import Graph
from difformer.nn import DIFFormer, GraphLevel
from difformer.training.feeding import Inputs
from difformer.training.using import Loaded


@dataclass(frozen=True)
class Scene:
    """Instances that exchange with each other.

    Args:
        encoder: The model that makes states, in evaluation mode.
        inputs: Its arguments; one graph, hence no batch.
        number: Which snapshot or graph of the task; None where the scene is the whole task.
        states: ``[L + 1, n, d]`` of a DIFFormer, on the CPU; None of any other model.
    """

    encoder: nn.Module
    inputs: Inputs
    number: int | None
    states: Tensor | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        return self.inputs.x.shape[0]

    @property
    def graph(self) -> Graph | None:
        """Observed edges; None where there are none at all."""
        graph = self.inputs.graph
        return graph if graph is not None and graph.num_edges else None

    @property
    def difformer(self) -> DIFFormer:
        """The encoder as what it is.

        Raises:
            TypeError: If it is another model.
        """
        if not isinstance(self.encoder, DIFFormer):
            raise TypeError(f"{type(self.encoder).__name__} is no DIFFormer")
        return self.encoder


def encoder_of(model: nn.Module) -> nn.Module:
    """The model of nodes, also where it is wrapped for graphs."""
    return model.encoder if isinstance(model, GraphLevel) else model  # type: ignore[return-value]


def is_diffusion(model: nn.Module) -> bool:
    """Whether layers are diffusion steps that can be looked into."""
    return isinstance(encoder_of(model), DIFFormer)


def usual_number(loaded: Loaded) -> int | None:
    """The snapshot or graph that is shown: the last test snapshot, the first test graph."""
    if loaded.task.kind == "nodes":
        return None
    part = next((part for part in (loaded.split.test, loaded.split.valid, loaded.split.train) if part.numel()), None)
    if part is None:
        return loaded.task.num_instances - 1 if loaded.task.kind == "series" else 0
    return int(part.max()) if loaded.task.kind == "series" else int(part[0])


def make_scene(loaded: Loaded, number: int | None = None, *, with_states: bool = True) -> Scene:
    """The scene of a task, or of one of its snapshots or graphs.

    Args:
        loaded: A run.
        number: Which snapshot or graph; left out, `usual_number`.
        with_states: Whether the states of a DIFFormer are worked out.

    Raises:
        ValueError: If there is no such snapshot or graph.
    """
    kind, count = loaded.task.kind, loaded.task.num_instances
    if kind == "nodes":
        inputs, number = loaded.feed.passes()[0], None
    else:
        number = usual_number(loaded) if number is None else number
        assert number is not None
        if not 0 <= number < count:
            what = "snapshot" if kind == "series" else "graph"
            raise ValueError(f"{what} {number} is not in {loaded.task.name!r}, which has {what}s 0 to {count - 1}")
        inputs = _one_graph(loaded.feed.passes(), number)
    encoder = encoder_of(loaded.model)
    states = None
    if with_states and isinstance(encoder, DIFFormer):
        with torch.no_grad():
            states = encoder.trajectory(inputs.x, inputs.graph).float().cpu()
    return Scene(encoder, inputs, number, states)


def _one_graph(passes: list[Inputs], number: int) -> Inputs:
    """The rows and edges of graph `number`, counted over all passes."""
    for inputs in passes:
        held = 1 if inputs.batch is None else inputs.batch.num_graphs
        if number < held:
            break
        number -= held
    if inputs.batch is None:
        return inputs
    assert isinstance(inputs.x, Tensor)
    rows = (inputs.batch.batch == number).nonzero().squeeze(1)
    graph = None
    if inputs.graph is not None:
        place = torch.full((inputs.x.shape[0],), -1, device=rows.device)
        place[rows] = torch.arange(rows.numel(), device=rows.device)
        edges = place[inputs.graph.edge_index]
        inside = edges[1] >= 0
        weight = inputs.graph.edge_weight
        graph = Graph(edges[:, inside], rows.numel(), None if weight is None else weight[inside])
    return Inputs(inputs.x[rows], graph)
