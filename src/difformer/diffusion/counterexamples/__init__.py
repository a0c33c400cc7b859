"""What the paper claims and is not so, each with the smallest example that shows it.

Every function returns a `Certificate` of the claim as the paper has it: its condition is met, its violation is not
rounding. What holds instead is in `difformer.diffusion.certificates`.
"""

from collections.abc import Callable

from difformer.diffusion.certificates.certificate import Certificate
from difformer.diffusion.counterexamples.attention import (
    coro_main_half_gradient,
    energy_graph_unscaled,
    prop_feattrans_at_input,
    prop_feattrans_relu,
    prop_trans_oversmooth_one_eta,
    softmax_slip,
    squared_distances_reach_four,
    thm_main_small_weight,
)
from difformer.diffusion.counterexamples.static import (
    cora_conv_two_points,
    example_gcn,
    example_gin,
    prop_bound_says_nothing,
    prop_convergence_has_no_limit,
    prop_convergence_rises,
    thm_gcn_small_weight,
)

__all__ = ["COUNTEREXAMPLES"]

COUNTEREXAMPLES: dict[str, Callable[[], Certificate]] = {
    example.__name__: example
    for example in (
        example_gcn,
        example_gin,
        thm_gcn_small_weight,
        prop_bound_says_nothing,
        cora_conv_two_points,
        prop_convergence_rises,
        prop_convergence_has_no_limit,
        squared_distances_reach_four,
        softmax_slip,
        coro_main_half_gradient,
        thm_main_small_weight,
        prop_feattrans_at_input,
        prop_feattrans_relu,
        prop_trans_oversmooth_one_eta,
        energy_graph_unscaled,
    )
}
