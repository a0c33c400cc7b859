"""Claims of the paper that do not hold: the condition is met, and the claim fails by far more than rounding."""

import pytest

from difformer.diffusion.counterexamples import COUNTEREXAMPLES


@pytest.mark.parametrize("name", COUNTEREXAMPLES)
def test_claim_of_the_paper_fails(name):
    certificate = COUNTEREXAMPLES[name]()
    assert certificate.condition_met
    assert certificate.verdict == "fails"
    assert certificate.violation > 1e-6
