"""``checkpoint=True``: layers are computed again in the backward pass, with the same result."""

import pytest
import torch

from difformer import DIFFormer
from difformer.nn.dropout import dropout_key

N = 200


def training_step(checkpoint, key, **options):
    torch.manual_seed(0)
    model = DIFFormer(8, 64, 3, num_layers=4, dropout=0.3, checkpoint=checkpoint, **options)
    x, index = torch.randn(N, 8), torch.randint(0, N, (2, 500))
    saved = []

    def keep(tensor):
        saved.append(tensor.numel())
        return tensor

    torch.manual_seed(1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        if key is None:
            out = model(x, index)
        else:
            with dropout_key(key):
                out = model(x, index)
    out.square().sum().backward()
    return out, [parameter.grad for parameter in model.parameters()], sum(saved)


@pytest.mark.parametrize("key", [None, 7])
@pytest.mark.parametrize(
    "options",
    [{}, {"diffusivity": "sigmoid"}, {"num_heads": 2, "activation": "elu"}, {"qk_norm": "global", "transform": False}],
    ids=str,
)
def test_outputs_and_gradients_are_those_without_it_and_less_is_kept(options, key):
    out, grads, kept = training_step(False, key, **options)
    again, grads_again, kept_again = training_step(True, key, **options)
    torch.testing.assert_close(again, out, rtol=0, atol=0)
    for a, b in zip(grads_again, grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert kept_again < kept


def test_a_graph_kept_for_two_backward_passes_has_the_same_masks_in_both():
    torch.manual_seed(0)
    model = DIFFormer(8, 16, 3, dropout=0.5, checkpoint=True)
    with dropout_key(7):
        loss = model(torch.randn(N, 8)).square().sum()
    first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(model.parameters()))
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_checkpointed_model_can_be_compiled():
    torch.manual_seed(0)
    model, x = DIFFormer(8, 16, 3, checkpoint=True), torch.randn(N, 8)
    out = torch.compile(model, backend="aot_eager")(x)
    torch.testing.assert_close(out, model(x))
    out.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_checkpointing_is_not_saved_with_a_model(tmp_path):
    model = DIFFormer(8, 16, 3, checkpoint=True)
    model.save_pretrained(tmp_path)
    loaded = DIFFormer.from_pretrained(tmp_path)
    assert not loaded.checkpoint
    assert "checkpoint" not in loaded.config
