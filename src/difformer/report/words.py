"""What the numbers of the layers mean, in plain sentences."""

from __future__ import annotations

from difformer.report.energy import LayerEnergies

# Below these all states are as good as one: cosines above 0.99, or singular values of which one is left.
ALIKE = 0.02
ONE_DIRECTION = 1.2
MUCH_CLOSER = 0.5  # of the distance before diffusion; less than that is not "apart" any more
LOSS_OF_SEPARATION = 0.05
LITTLE = 0.02


def smoothed_layers(measured: LayerEnergies) -> list[int]:
    """Layers, counted from 1, whose states have become alike."""
    pairs = enumerate(zip(measured.spread, measured.rank, strict=True))
    # With one channel, or one feature, there is one direction from the start.
    several = measured.rank[0] >= ONE_DIRECTION
    return [k for k, (spread, rank) in pairs if k > 0 and (spread < ALIKE or (several and rank < ONE_DIRECTION))]


def verdict(measured: LayerEnergies, source_weight: float) -> str:
    """One or two sentences about depth."""
    last = len(measured.spread) - 1
    if last == 0:
        return "There are no diffusion layers, so nothing can be smoothed."
    if measured.spread[0] < ALIKE:
        return (
            f"States are alike before anything is diffused (mean squared distance {measured.spread[0]:.3f} of at most "
            "2): see whether the features differ from instance to instance, and whether they are scaled."
        )
    smoothed = smoothed_layers(measured)
    if smoothed:
        advice = "try source_weight=1" if source_weight < 1 else f"source_weight is {source_weight:g} already"
        tail = ", or fewer layers" if smoothed[0] > 1 else ""
        return (
            f"{_span(smoothed).capitalize()} over-smoothed: their states point almost the same way (mean squared "
            f"distance {measured.spread[smoothed[-1]]:.3f} of at most 2, effective rank "
            f"{measured.rank[smoothed[-1]]:.1f}): {advice}{tail}."
        )
    if measured.separation is None:
        apart, together = measured.spread[0], measured.spread[last]
        begins = "States stay apart"
        if together < MUCH_CLOSER * apart:
            begins = f"States move closer together, but are not over-smoothed yet (that is below {ALIKE:g})"
        return (
            f"{begins}: the mean squared distance of unit states goes from {apart:.2f} to {together:.2f} of at most 2, "
            f"the effective rank from {measured.rank[0]:.1f} to {measured.rank[last]:.1f}."
        )
    best = max(range(last + 1), key=lambda k: measured.separation[k])  # type: ignore[index]
    first, top, end = (100 * measured.separation[k] for k in (0, best, last))
    if top - end <= 100 * LITTLE and abs(end - first) <= 100 * LITTLE:
        return (
            f"Depth changes little: {first:.0f} % of the variance of the states lies between classes after the input "
            f"layer, {end:.0f} % after the last one. Train longer, or compare with fewer layers."
        )
    if top - end <= 100 * LOSS_OF_SEPARATION and end > first:
        return (
            f"Deeper layers still separate classes: {first:.0f} % of the variance of the states lies between classes "
            f"after the input layer, {end:.0f} % after the last one."
        )
    if best == 0:
        return (
            f"Diffusion does not separate classes further: {first:.0f} % of the variance lies between classes after "
            f"the input layer, {end:.0f} % after the last one. Compare with fewer layers, or with an MLP."
        )
    return (
        f"Classes are farthest apart after layer {best} ({top:.0f} % of the variance lies between them); at the end it "
        f"is {end:.0f} %: try num_layers={best}, or a larger source_weight."
    )


def _span(layers: list[int]) -> str:
    if len(layers) == 1:
        return f"layer {layers[0]} is"
    if layers == list(range(layers[0], layers[-1] + 1)):
        return f"layers {layers[0]}–{layers[-1]} are"
    return f"layers {', '.join(map(str, layers))} are"
