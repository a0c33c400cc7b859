import subprocess
import sys

import pytest

import difformer.diffusion as diffusion


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def test_every_public_name_can_be_imported():
    for name in diffusion.__all__:
        assert getattr(diffusion, name) is not None
    assert set(diffusion.__all__) <= set(dir(diffusion))
    with pytest.raises(AttributeError, match="has no attribute 'difuse'"):
        _ = diffusion.difuse


@pytest.mark.parametrize("first", ["difformer.attention", "difformer.diffusion.coupling"])
def test_attention_and_diffusion_import_in_any_order_and_no_solver_before_it_is_needed(first):
    code = f"import sys, {first}, difformer.diffusion as d; d.solve, d.certify; print('torchdiffeq' in sys.modules)"
    result = python(code)
    assert result.stdout.strip() == "False", result.stderr


def test_subpackages_are_imported_lazily():
    code = "import sys, difformer; print('torch' in sys.modules); print(difformer.diffusion.models.gcn.__name__)"
    result = python(code + "; print(difformer.diffusion.diffuse.__name__, difformer.data.load.__name__)")
    assert result.stdout.split() == ["False", "gcn", "diffuse", "load"], result.stderr
    assert {"as_coupling", "nonnegative", "normalised_dirichlet_energy", "COUNTEREXAMPLES"} <= set(diffusion.__all__)
