"""``difformer energy``: energy and effective rank of every layer of a run."""

from __future__ import annotations

from pathlib import Path

from difformer import training
from difformer.cli.command import DEVICE, RUN, SEED, command
from difformer.cli.output import Output


@command("difformer energy runs/my-run")
def energy(output: Output, run: Path = RUN, seed: int | None = SEED, device: str = DEVICE) -> None:
    """Show energy and effective rank of every layer.

    Energy that falls to 0 and rank that falls to 1 mean that all states have become alike (over-smoothing); a source
    term (`--set source_weight=0.5`) or fewer layers prevent it.
    """
    profile = training.energy(run, seed=seed, device=device)
    energies, ranks = profile.energy.tolist(), profile.effective_rank.tolist()
    edges = None if profile.dirichlet is None else profile.dirichlet.tolist()
    output.json({"run": run, "energy": energies, "dirichlet": edges, "effective_rank": ranks})
    columns = {"energy, all pairs": energies, "energy, edges": edges or []}
    rows = [
        [k or "input", *(f"{values[k]:.6f}" for values in columns.values() if values), f"{ranks[k]:.2f}"]
        for k in range(len(energies))
    ]
    output.table(["layer", *(name for name, values in columns.items() if values), "effective rank"], rows)
    output.say(
        "energies are means over pairs, on states of unit length: measured, not proved, since queries and keys differ."
    )
