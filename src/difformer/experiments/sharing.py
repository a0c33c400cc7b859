"""One run, many tables: what another experiment has trained already is taken over, not trained again.

A run's identity holds its data, settings, seed, split and measures. DIFFormer-s with the authors' settings on ten
random splits of Cora stands in the main table, among the forms of attention and, five splits of it, in the study of
depth: it is trained once. A line that was taken over says from where.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from difformer.experiments.catalogue import MODULES
from difformer.experiments.ledger import DONE, Ledger, Line
from difformer.experiments.performing import Ready, described
from difformer.experiments.plan import Data

TAKEN_FROM = "taken_from"


class Others:
    """Finished runs of other rows, of this experiment and of those beside it.

    Args:
        folder: Of this experiment; those of other experiments beside it are looked into when they are first needed.
        own: Lines of this experiment.
        quick: Whether quick runs are wanted, which are never mixed with full ones.
    """

    def __init__(self, folder: Path, own: Iterable[Line], quick: bool) -> None:
        self.folder, self.own, self.quick = folder, own, quick
        self._known: Mapping[str, Line] | None = None

    def line(self, what: Ready, seed: int, fingerprint: str) -> Line | None:
        """A finished run with the identity of this one, as a line of its cell; None where there is none.

        Args:
            what: The cell.
            seed: Which of its runs.
            fingerprint: Of the data; runs of other data are left where they are.
        """
        if not serves(what.cell.data):
            return None
        if self._known is None:
            self._known = self._read()
        found = self._known.get(what.run_id(seed))
        if found is None or found.get("fingerprint") != fingerprint:
            return None
        origin = found.get(TAKEN_FROM, found["experiment"])
        return {**found, **described(what, seed), TAKEN_FROM: origin}

    def _read(self) -> dict[str, Line]:
        lines = list(self.own)
        beside = [self.folder.parent / name for name in MODULES] if self.folder.name in MODULES else []
        for folder in beside:
            if folder != self.folder:
                with suppress(OSError, ValueError):  # what cannot be read there is said where it is asked for
                    lines += Ledger(folder).read()
        done = (line for line in lines if line["status"] == DONE and bool(line.get("quick")) == self.quick)
        return {line["id"]: line for line in done}


def serves(data: Data) -> bool:
    """Whether runs of a section may come from elsewhere: scores may; cost is measured side by side."""
    return data.mode == "score" and not data.alone
