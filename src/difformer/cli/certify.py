"""``difformer certify``: the theorems, measured on real data."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import typer

import difformer.data
from difformer.cli.command import CHECK_FAILED, command, option
from difformer.cli.inputs import Data, load
from difformer.cli.output import Output

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_DATASET = "sbm"


@command("difformer certify cora --diffusivity sigmoid")
def certify(
    data: Data,
    output: Output,
    diffusivity: str = option("simple, sigmoid, softmax, gaussian, constant …, or package.module:name.", "simple"),
    step_size: float = option("Step size of the diffusion.", 0.5),
    steps: int = option("Number of steps.", 6, low=1),
    source_weight: float = option("Weight of the source term.", 0.1),
    nodes: int = option("Maximum number of nodes; larger graphs are sampled.", 500, low=2),
) -> None:
    """Check the theorems on data.

    The table shows what each theorem states, under which condition, and the largest violation measured. Proven and
    measured statements are counted separately. Exit code 1 if a statement fails and its condition is met.
    """
    if data.dataset is None and data.features is None:
        data = replace(data, dataset=DEFAULT_DATASET)
    states, graph, said = _states(load(data.source()), nodes)
    output.say(said)
    chosen: dict[str, Any] = {"diffusivity": diffusivity, "step_size": step_size, "source_weight": source_weight}
    found = difformer.diffusion.certify(states, graph, steps=steps, **chosen)
    rows = [{**asdict(one), "holds": one.holds, "verdict": one.verdict, "details": dict(one.details)} for one in found]
    summary = difformer.diffusion.certificates.certificate_summary(found)
    output.json({"data": said, "diffusivity": diffusivity, "summary": summary, "certificates": rows})
    output.table(
        ["certificate", "verdict", "violation", "condition", "claim"],
        [[one.name, one.verdict, f"{one.violation:.1e}", one.condition, one.claim] for one in found],
    )
    output.say(summary)
    if graph is None:
        output.say("There is no graph in these data, so the claims about graphs were left out.")
    if failed := [one.name for one in found if one.verdict == "fails"]:
        output.remark(f"violated: {', '.join(failed)}")
        raise typer.Exit(CHECK_FAILED)


def _states(task: difformer.data.Task, limit: int) -> tuple[Tensor, difformer.Graph | None, str]:
    """Features of one graph as states, and its edges; of many graphs or snapshots the first."""
    import torch

    from difformer.report.gather import draw

    x, which = task.x, task.name
    edges, weight = (one[0] if isinstance(one, tuple) else one for one in (task.edge_index, task.edge_weight))
    if task.kind == "series":
        x, which = x[0], f"{which}, first snapshot"
    keep = torch.arange(x.shape[0])
    if task.node_ptr is not None:
        keep, which = torch.arange(int(task.node_ptr[0]), int(task.node_ptr[1])), f"{which}, first graph"
    if keep.numel() > limit:
        keep, which = keep[draw(keep.numel(), limit)], f"{which}, {limit} of {keep.numel():,} nodes"
    states = (x.to_dense() if x.layout != torch.strided else x)[keep]
    graph, said = None, f"{which}: {len(states)} states of length {states.shape[1]}"
    if edges is not None:
        edges, weight = difformer.data.induced_subgraph(keep, edges, weight, num_nodes=x.shape[0])
        graph = difformer.Graph(edges, keep.numel(), weight)
    return states, graph, f"{said}, no graph" if graph is None else f"{said}, {graph.num_edges:,} edges"
