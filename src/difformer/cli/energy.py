"""``difformer energy``: how the states of a trained model come together, layer by layer."""

from __future__ import annotations

from difformer.cli.command import command
from difformer.cli.options import Device, Json, Run, Seed
from difformer.cli.output import Output


@command
def energy(run: Run, seed: Seed = None, device: Device = "auto", as_json: Json = False) -> None:
    """Show energy and effective rank of every layer.

    Energy that falls to 0 and rank that falls to 1 mean that all states have become alike (over-smoothing); a source
    term (`--set source_weight=0.5`) or fewer layers hold against it.
    """
    from difformer.training.trained_run import energy as measure

    output = Output(as_json)
    profile = measure(run, seed=seed, device=device)
    energies, ranks = profile.energy.tolist(), profile.effective_rank.tolist()
    edges = None if profile.dirichlet is None else profile.dirichlet.tolist()
    output.json({"run": run, "energy": energies, "dirichlet": edges, "effective_rank": ranks})
    output.records(
        {
            "layer": lambda layer: layer or "input",
            "energy, all pairs": lambda layer: f"{energies[layer]:.6f}",
            **({} if edges is None else {"energy, edges": lambda layer: f"{edges[layer]:.6f}"}),
            "effective rank": lambda layer: f"{ranks[layer]:.2f}",
        },
        range(len(energies)),
    )
    output.say(
        "energies are means over pairs, on states of unit length: measured, not proved, since queries and keys differ."
    )
