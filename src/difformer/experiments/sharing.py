"""One run, many tables: what another experiment has trained already is taken over, not trained again.

A run's identity holds its data, settings, seed, split and measures. DIFFormer-s with the authors' settings on ten
random splits of Cora stands in the main table and, five splits of it, in the study of depth: it is trained once. A line
that was taken over says from where, and is not taken over in turn: whoever removes a run and makes it anew does not get
it back from a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from difformer.experiments.catalogue import MODULES
from difformer.experiments.choosing import Cell
from difformer.experiments.ledger import DONE, Ledger, Line
from difformer.experiments.performing import Ready, described

TAKEN_FROM = "taken_from"


class Others:
    """Finished runs of other rows, of this experiment and of those beside it.

    Args:
        folder: Of this experiment; those of other experiments beside it are looked into once, when they are needed.
        own: Lines of this experiment.
        quick: Whether quick runs are wanted, which are never mixed with full ones.
        say: Takes what cannot be read beside it.
    """

    def __init__(self, folder: Path, own: Iterable[Line], quick: bool, say: Callable[[str], None]) -> None:
        self.folder, self.quick, self.say = folder, quick, say
        self._known: dict[tuple[str, str], Line] = {}
        self._looked = False
        self.add(own)

    def add(self, lines: Iterable[Line]) -> None:
        """Lines that others may take over from now on; what is no finished run, or a copy of one, is left out."""
        for line in lines:
            whole = line["status"] == DONE and line.keys() >= {"id", "fingerprint", "experiment"}
            if whole and TAKEN_FROM not in line and bool(line.get("quick")) == self.quick:
                self._known.setdefault((line["id"], line["fingerprint"]), line)

    def line(self, what: Ready, seed: int, fingerprint: str) -> Line | None:
        """A finished run with the identity of this one, as a line of its cell; None where there is none.

        Args:
            what: The cell.
            seed: Which of its runs.
            fingerprint: Of the data; runs of other data are left where they are.
        """
        if not serves(what.cell):
            return None
        if not self._looked:
            self._look()
        found = self._known.get((what.run_id(seed), fingerprint))
        if found is None:
            return None
        # Its settings are those of the cell but for the precision, which is the one it was made in.
        own = {TAKEN_FROM: found["experiment"], "settings": found.get("settings", what.settings)}
        return {**found, **described(what, seed), **own}

    def _look(self) -> None:
        self._looked = True
        beside = [self.folder.parent / name for name in MODULES] if self.folder.name in MODULES else []
        for folder in beside:
            if folder != self.folder:
                try:
                    self.add(Ledger(folder).read())
                except (OSError, ValueError) as error:
                    self.say(f"{self.folder.name}: no run is taken over from {folder}: {error}")


def serves(cell: Cell) -> bool:
    """Whether runs of a cell may come from elsewhere.

    Scores may; cost is measured side by side. A baseline is worked out at once, and its identity leaves its metric out.
    """
    return cell.data.mode == "score" and not cell.data.alone and not cell.system.baseline
