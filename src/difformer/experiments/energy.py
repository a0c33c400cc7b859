r"""The energy-form figure, and what energy trained models really spend, layer by layer.

For a diffusivity f = δ', the state z of one instance among others z_j feels

    v(z) = Σ_j f(||z - z_j||²) (z_j - z)     and has the energy     E(z) = Σ_j δ(||z - z_j||²),     v = -½ ∇E.

Drawn for ten random instances in the plane, within the disc of radius one where f is non-negative.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.experiments.plan import Data, Experiment
from difformer.experiments.sections import CUSTOMARY, citation_graphs
from difformer.experiments.systems import DIFFORMER_A, DIFFORMER_S, OFF

if TYPE_CHECKING:
    from difformer.experiments.summary import Summary

FORMS = {"simple": "DIFFormer-s: f = 2 - z²/2", "sigmoid": "DIFFormer-a: f = σ(1 - z²/2)"}

EXPERIMENT = Experiment(
    name="energy",
    title="Energy: forms, fields, and what trained models spend",
    about="δ and f curves, divergence field, energy field; measured energy per layer of trained models (figure)",
    source="The paper's Figure of energy forms (fig-endiff-vis, appendix)",
    data=citation_graphs("the authors' split", "authors", 3, mode="energy")[:2],
    systems=(DIFFORMER_S, DIFFORMER_A, OFF),
    untuned=CUSTOMARY,
    quick_data=(
        Data("karate-quick", "karate", "Zachary's karate club", options={"num_splits": 1}, seeds=1, mode="energy"),
    ),
    quick_settings={"epochs": 4, "hidden_channels": 8, "num_layers": 3},
    figure="difformer.experiments.energy:draw",
    one_preset=True,
    notes=(
        "Energy is the mean of δ(||z_i - z_j||²) over pairs of unit states, as `difformer energy` shows it. No theorem "
        "covers a trained network whose exchange is inferred by queries and keys, so it may rise; it is measured.",
        "Each system has the δ of its own diffusivity, of which only differences matter; with attention off δ(u) = u.",
    ),
)


def draw(summary: Summary, folder: Path) -> Any:
    """A row a form: curves, divergence field, energy field; below, energy and effective rank of trained models."""
    from difformer.experiments.drawing import head, panels

    trained = [section for section in summary.sections if section.lines]
    fig, axes = panels(6 + 3 * len(trained), width=3.5, height=2.9, across=3)
    for place, name in enumerate(FORMS):
        _form(axes[3 * place : 3 * place + 3], name)
    for place, section in enumerate(trained):
        _measured(axes[6 + 3 * place : 9 + 3 * place], section)
    head(fig, summary)
    return fig


def _form(axes: Any, name: str) -> None:
    import torch

    from difformer.diffusion import as_diffusivity
    from difformer.experiments.drawing import BLUE, ORANGE, RED, pyplot

    form = as_diffusivity(name)
    curves, field, energy = axes
    z = torch.linspace(-2, 2, 201, dtype=torch.float64)
    curves.plot(z, form.delta(z.square()), color=BLUE, label="δ(z²)")
    curves.plot(z, form.f(z.square()), color=ORANGE, ls="--", label="f(z²)")
    curves.set(xlabel="z", title=FORMS[name])
    curves.legend()
    generator = torch.Generator().manual_seed(7)
    angle = 2 * torch.pi * torch.rand(10, generator=generator, dtype=torch.float64)
    radius = 0.9 * torch.rand(10, generator=generator, dtype=torch.float64).sqrt()
    stars = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    place, u = _grid(17, stars)
    push = (form.f(u).unsqueeze(-1) * (stars - place.unsqueeze(-2))).sum(-2)
    field.quiver(place[..., 0], place[..., 1], push[..., 0], push[..., 1], color=BLUE, width=0.005)
    place, u = _grid(101, stars)
    height = form.delta(u).sum(-1)
    drawn = energy.contourf(place[..., 0], place[..., 1], height, levels=20, cmap="cividis")
    pyplot().colorbar(drawn, ax=energy, label="Σⱼ δ(||z - zⱼ||²)")
    for ax, said in ((field, "divergence field"), (energy, "energy of one instance")):
        ax.plot(stars[:, 0], stars[:, 1], "*", color=RED, mec="white", mew=0.5, ms=9)
        ax.set(title=said, xlim=(-1, 1), ylim=(-1, 1), aspect="equal", xticks=(-1, 0, 1), yticks=(-1, 0, 1))
        ax.grid(False)


def _grid(count: int, stars: Any) -> tuple[Any, Any]:
    """Places of a square grid ``[n, n, 2]`` and their squared distances to the instances ``[n, n, 10]``."""
    import torch

    side = torch.linspace(-1, 1, count, dtype=torch.float64)
    place = torch.stack(torch.meshgrid(side, side, indexing="xy"), -1)
    # Beyond the disc distances can exceed two, where f is not defined by the theory; they are drawn as at two.
    return place, (place.unsqueeze(-2) - stars).square().sum(-1).clamp_max(4.0)


def _measured(axes: Any, section: Any) -> None:
    from difformer.experiments.drawing import CYCLE, LINES, MARKERS

    titles = {"energy": "mean δ over pairs", "rank": "effective rank", "separation": "variance between classes"}
    for ax, (what, said) in zip(axes, titles.items(), strict=True):
        for number, row in enumerate(row for row in section.rows if row.lines):
            curves = [line["measures"][what] for line in row.lines if line["measures"].get(what)]
            if not curves:
                continue
            mean = [sum(values) / len(values) for values in zip(*curves, strict=True)]
            ax.plot(
                range(len(mean)), mean, color=CYCLE[number], ls=LINES[number], marker=MARKERS[number], ms=4,
                label=row.system.label,
            )  # fmt: skip
        ax.set_xlabel("layer")
        ax.set_title(f"{section.data.label}: {said}\n{section.counted}", loc="left", fontsize=8)
        ax.xaxis.get_major_locator().set_params(integer=True)
    axes[0].legend()
