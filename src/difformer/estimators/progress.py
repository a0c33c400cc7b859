"""What an estimator that was asked to be `verbose` prints while it fits.

One line for each of the two sides that ``graph="auto"`` compares, and about ten for every model:

    [DIFFormerClassifier] 178 rows of 13 features, 17 of them labelled
    [DIFFormerClassifier] model 1 of 3, step 20 of 200, loss 0.4113, 0.3 s
"""

from __future__ import annotations

from difformer.training import EpochEvent

LINES = 10  # of a model


class Progress:
    """Told of epochs, it prints some of them.

    Args:
        speaker: The estimator's name.
        seeds: Of the runs, in their order.
        unit: What an epoch is: a step, or several of them where training goes by mini-batches.
    """

    def __init__(self, speaker: str, seeds: list[int], unit: str) -> None:
        self.speaker, self.seeds, self.unit = speaker, seeds, unit
        self.printed: dict[int, int] = {}

    def on_epoch(self, event: EpochEvent) -> None:
        """Prints the first evaluated epoch of every tenth of a run."""
        tenth = event.epoch * LINES // event.epochs
        if tenth <= self.printed.get(event.seed, 0):
            return
        self.printed[event.seed] = tenth
        held_out = "" if event.valid_metric != event.valid_metric else f", held out {event.valid_metric:.4f}"
        say(
            self.speaker,
            f"model {self.seeds.index(event.seed) + 1} of {len(self.seeds)}, {self.unit} {event.epoch} of "
            f"{event.epochs}, loss {event.loss:.4f}{held_out}, {event.seconds:.1f} s",
        )


def say(speaker: str | None, line: str) -> None:
    """Prints a line under an estimator's name; without a name nothing."""
    if speaker is not None:
        print(f"[{speaker}] {line}", flush=True)
