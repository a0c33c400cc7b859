"""Latent structure, energy and the sentences about them, against plain formulas."""

from __future__ import annotations

import pytest
import torch

from difformer import DIFFormer
from difformer.diffusion import penalty
from difformer.report.gather import Scene, draw, sample_note
from difformer.report.layers import LayerEnergies, chance, latent_layers, layer_energies
from difformer.report.maps import GRID, project
from difformer.report.page import verdict
from difformer.training.feeds import Inputs, graph_of


def scene_of(model, x, edges=None):
    graph = None if edges is None else graph_of(edges, None, len(x), torch.device("cpu"))
    model.eval()
    return Scene(model, Inputs(x, graph), None, model.trajectory(x, graph).detach())


@torch.no_grad()
def test_pairs_and_shares_against_the_dense_matrix():
    torch.manual_seed(0)
    x, classes = torch.randn(40, 5), torch.arange(40) % 3
    classes[::7] = -1
    model = DIFFormer(5, 6, 3, diffusivity="sigmoid", num_heads=2)
    scene = scene_of(model, x)
    shown = torch.arange(0, 40, 2)
    found = latent_layers(scene, shown, classes)
    assert len(found) == 2
    for k, layer in enumerate(model.layers):
        z = scene.states[k]
        q, key = layer.queries_and_keys(z)
        matrix = torch.einsum("nhd,mhd->hnm", q, key).sigmoid()
        matrix = (matrix / matrix.sum(-1, keepdim=True)).mean(0)
        rows = matrix[shown]
        same = (classes[shown].unsqueeze(1) == classes) & (classes >= 0)
        share = (rows * same).sum(1) / (rows * (classes >= 0)).sum(1)
        assert found[k].within == pytest.approx(float(share[classes[shown] >= 0].mean().detach()), abs=1e-5)
        among = 40 * rows[:, shown].fill_diagonal_(-1)
        assert found[k].weight[0] == pytest.approx(float(among.max()), rel=1e-3)
        s, t = found[k].source[0], found[k].target[0]
        assert float(among[t, s]) == pytest.approx(float(among.max()), rel=1e-3)
        assert 0.9 < found[k].entropy <= 1 + 1e-6
    counts = torch.bincount(classes[classes >= 0])
    own = classes[shown][classes[shown] >= 0]
    assert chance(classes, shown) == pytest.approx(float((counts[own] / counts.sum()).mean()))


def test_energies_are_those_of_the_model_and_the_theorem_falls():
    torch.manual_seed(1)
    x, edges = torch.randn(30, 4), torch.randint(0, 30, (2, 60))
    model = DIFFormer(4, 5, 2, num_layers=4, diffusivity="sigmoid")
    scene = scene_of(model, x, edges)
    found = layer_energies(scene, torch.arange(30) % 2)
    profile = model.energy(x, scene.graph)
    assert found.energy == pytest.approx(profile.energy.tolist(), abs=1e-5)
    assert found.edges == pytest.approx(profile.dirichlet.tolist(), abs=1e-5)
    assert found.rank == pytest.approx(profile.effective_rank.tolist(), rel=1e-4)
    assert len(found.theorem) == 5
    assert all(after < before for before, after in zip(found.theorem, found.theorem[1:], strict=False))
    unit = torch.nn.functional.normalize(scene.states[2], dim=1)
    assert found.spread[2] == pytest.approx(float(torch.cdist(unit, unit).square().mean()), abs=1e-4)
    groups = [unit[i::2] for i in range(2)]
    inside = sum(float((g - g.mean(0)).square().sum()) for g in groups)
    assert found.separation[2] == pytest.approx(1 - inside / float((unit - unit.mean(0)).square().sum()), abs=1e-4)


@pytest.mark.parametrize("weight", [None, 0.8])
def test_a_network_that_is_the_diffusion_has_the_energy_of_the_theorem(weight):
    plain = {"transform": False, "norm": False, "tied_qk": True, "source_weight": 0.0, "graph_weight": weight}
    model = DIFFormer(4, 4, 2, num_layers=1, step_size=0.4, **plain)
    for linear in (model.input, *(layer.query for layer in model.layers)):
        linear.weight.data.copy_(torch.eye(4))
        linear.bias.data.zero_()
    x = torch.nn.functional.normalize(torch.rand(20, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    scene = scene_of(model, x)
    found = layer_energies(scene)
    own = [float(penalty("simple")(z.double())) / 400 for z in scene.states]
    assert found.theorem == pytest.approx(own, abs=1e-5)
    assert found.separation is None


def energies(spread, rank=None, separation=None):
    n = len(spread)
    return LayerEnergies([1.0] * n, None, rank or [8.0] * n, spread, separation, None, None)


def test_verdict_names_over_smoothed_layers_and_remedies():
    smooth = energies([1.0] * 9 + [0.001] * 8)
    assert verdict(smooth, 0.0).startswith("Layers 9–16 are over-smoothed")
    assert "try source_weight=1" in verdict(smooth, 0.0)
    assert "source_weight is 2 already" in verdict(smooth, 2.0)
    assert "or fewer layers" in verdict(smooth, 0.0)
    assert verdict(energies([1.0, 1.0], rank=[5.0, 1.05]), 0.0).startswith("Layer 1 is over-smoothed")
    assert verdict(energies([1.0] * 3, separation=[0.2, 0.4, 0.5]), 0).startswith(
        "Deeper layers still separate classes"
    )
    assert "try num_layers=1" in verdict(energies([1.0] * 3, separation=[0.2, 0.6, 0.3]), 0)
    assert "does not separate" in verdict(energies([1.0] * 3, separation=[0.6, 0.5, 0.3]), 0)
    assert verdict(energies([1.0] * 3, separation=[0.02, 0.03, 0.03]), 0).startswith("Depth changes little")
    # Less apart at the end than at the start: that is no separation, however little was lost since the best layer.
    assert "try num_layers=1" in verdict(energies([1.0] * 3, separation=[0.30, 0.33, 0.28]), 0)
    assert verdict(energies([0.001, 0.001]), 0).startswith("States are alike before anything is diffused")
    one_channel = energies([1.0, 1.0], rank=[1.0, 1.0])
    assert verdict(one_channel, 0).startswith("States stay apart")
    assert verdict(energies([1.0, 0.5]), 0).startswith("States stay apart")
    closer = verdict(energies([0.59, 0.12]), 0)
    assert closer.startswith("States move closer together, but are not over-smoothed yet (that is below 0.02)")
    assert "from 0.59 to 0.12 of at most 2" in closer
    assert "no diffusion layers" in verdict(energies([1.0]), 0)


def test_samples_hold_every_class_and_what_is_asked_for():
    classes = torch.zeros(1000, dtype=torch.long)
    classes[17] = 1
    kept = draw(1000, 50, classes, always=[3])
    assert kept.numel() == 50
    assert {3, 17} <= set(kept.tolist())
    assert torch.equal(kept, draw(1000, 50, classes, always=[3]))
    assert torch.equal(draw(5, 50), torch.arange(5))
    assert sample_note(50, 1000, "nodes") == "50 of 1,000 nodes are shown, drawn at random (seed 0)."
    assert sample_note(5, 5, "nodes") == ""


def test_maps_keep_distances_and_follow_each_other():
    torch.manual_seed(0)
    flat = torch.randn(30, 2)
    turned = torch.cat([flat @ torch.tensor([[0.0, 1.0], [-1.0, 0.0]]), torch.zeros(30, 3)], 1)
    first, second = project([flat, turned])
    assert first.explained == pytest.approx(1)
    points = torch.tensor([first.x, first.y]).T.double()
    ratio = torch.cdist(points, points) / torch.cdist(flat, flat).double()
    assert ratio[~torch.eye(30, dtype=torch.bool)].std() < 0.01 * ratio.nanmean()
    assert (torch.tensor(first.x) - torch.tensor(second.x)).abs().max() <= 2  # the turn is undone
    assert max(first.x + first.y) <= GRID
    alike, line = project([torch.ones(4, 3), torch.arange(4.0).unsqueeze(1)])
    assert len(set(alike.x)) == 1
    assert line.x in ([0, 3333, 6666, 9999], [9999, 6666, 3333, 0])
