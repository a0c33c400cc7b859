"""What the paper claims and is not so: its condition is met, and it fails by far more than rounding."""

import pytest

from difformer.diffusion.counterexamples import COUNTEREXAMPLES


@pytest.mark.parametrize("name", COUNTEREXAMPLES)
def test_the_paper_s_claim_fails(name):
    certificate = COUNTEREXAMPLES[name]()
    assert certificate.condition_met
    assert certificate.verdict == "fails"
    assert certificate.violation > 1e-6


@pytest.mark.parametrize("name", COUNTEREXAMPLES)
def test_it_is_documented(name):
    assert len(COUNTEREXAMPLES[name].__doc__) > 60
