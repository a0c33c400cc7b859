"""``table.md``: every section with its rows, and under them what has to be said of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from difformer.experiments.choosing import SAID, UNTUNED
from difformer.experiments.devices import letters, megabytes, seconds
from difformer.experiments.measures import LABELS
from difformer.experiments.published import AUTHORS, PAPER, Figure, source_of
from difformer.experiments.summary import NOT_YET, Row, Section, Summary, is_percent
from difformer.experiments.under import published, shown, under

NONE = "–"


def score(row: Row, what: str = "test") -> str:
    """Mean ± deviation (n), of one value the value alone; where some are missing, of how many, and why."""
    values = row.values(what)
    if not values:
        return row.reason or NONE
    percent = is_percent(row.metric if what in ("test", "valid", "train") else what)
    count = str(len(values)) if len(values) >= row.data.seeds else f"{len(values)} of {row.data.seeds}"
    mean = row.mean(what)
    assert mean is not None
    mark = " †" if row.preset == UNTUNED and what == "test" else ""
    factor, digits = (100, 2) if percent else (1, 3 if abs(mean) >= 0.01 or mean == 0 else 6)
    spread = f" ± {factor * row.deviation(what):.{digits}f}" if len(values) > 1 else ""
    missing = row.missing if what == "test" else ""
    return f"{factor * mean:.{digits}f}{spread} ({count}{missing}){mark}"


def difference(row: Row, found: Figure | None) -> str:
    """Ours less theirs, in the units of the table."""
    mean = row.mean(row.data.compare)
    if found is None or found.mean is None or mean is None:
        return NONE
    percent = is_percent(row.metric if row.data.compare == "test" else row.data.compare)
    gap = (100 * mean if percent else mean) - found.mean
    return f"{gap:+.2f}" if percent else f"{gap:+.3f}"


Column = tuple[str, Callable[[Row], str]]


def columns(section: Section) -> list[Column]:
    """Headings with what stands below them; empty ones are left out."""
    if section.data.mode == "cost":
        from difformer.experiments.costs import cost_columns

        return cost_columns(section)
    metric = next((row.metric for row in section.rows if row.lines), "score")
    unit = f"{LABELS.get(metric, metric)} in %" if is_percent(metric) else LABELS.get(metric, metric)
    found: list[Column] = [
        ("system", lambda row: row.system.label),
        ("settings", lambda row: row.settings),
        (f"test {unit}, mean ± std (n)", score),
    ]
    found += [(LABELS.get(name, name), _measure(name)) for name in section.data.measures if name != metric]
    found.append(("validation", lambda row: score(row, "valid") if row.lines else NONE))
    by_layer = [(said, _by_layer(name)) for name, said in _BY_LAYER.get(section.data.mode, {}).items()]
    found += [(said, text) for said, text in by_layer if any(text(row) != NONE for row in section.rows)]
    if any(row.paper is not None for row in section.rows):
        found += [("paper", lambda row: published(row.paper)), ("Δ paper", lambda row: difference(row, row.paper))]
    if any(row.authors is not None for row in section.rows):
        found.append(("authors' code", lambda row: published(row.authors)))
        found.append(("Δ code", lambda row: difference(row, row.authors)))
    devices = letters(section)
    found.append(("seconds a run (median)", lambda row: seconds(row, devices)))
    found.append(("peak MB (median)", lambda row: megabytes(row, devices)))
    if any(row.memory is not None for row in section.rows):
        found.append(("paper, MB", lambda row: published(row.memory)))
    return found


_BY_LAYER = {
    "energy": {
        "energy": "energy by layer",
        "rank": "effective rank by layer",
        "separation": "variance between classes by layer",
    },
    "visualise": {
        "within": "attention within classes by layer",
        "uniform": "uniform attention",
        "entropy": "entropy by layer (1: uniform)",
        "separation": "variance between classes by layer",
    },
}


def _by_layer(name: str) -> Callable[[Row], str]:
    """Means over runs, layer after layer."""

    def text(row: Row) -> str:
        curves = [found for line in row.lines if (found := line["measures"].get(name)) is not None]
        curves = [curve if isinstance(curve, list) else [curve] for curve in curves]
        if not curves:
            return NONE
        return " → ".join(f"{sum(values) / len(values):.3g}" for values in zip(*curves, strict=True))

    return text


def _measure(name: str) -> Callable[[Row], str]:
    return lambda row: score(row, name) if row.lines else NONE


def protocol(section: Section) -> str:
    """The protocol of what was run; why nothing was, where it was not."""
    lines = section.lines
    if not lines:
        refused = any(row.reason not in ("", NOT_YET) for row in section.rows)
        return section.reason or ("Nothing could be run." if refused else "Nothing was run yet.")
    return f"Protocol: {' | '.join(dict.fromkeys(str(line['protocol']) for line in lines))}."


def circumstances(section: Section) -> str:
    """Splits, seeds and the device of what was run; empty where nothing was."""
    lines = section.lines
    if not lines:
        return ""
    splits = list(dict.fromkeys(str(line["split"]) for line in lines))
    seeds = sorted({int(line["seed"]) for line in lines})
    named = ", ".join(splits) if len(splits) <= 3 else f"{splits[0]} … {splits[-1]}, {len(splits)} in all"
    chosen = "" if section.data.mode == "cost" else " The epoch is chosen on validation."
    if len(seeds) == 1:
        over = "one run a row, hence no ±" if len(splits) == 1 else "± is over splits"
    elif len(splits) > 1:
        over = "± is over splits and initialisations"
    else:
        over = "one split: ± is over initialisations alone"
    # Where there are several, they are named under the table, each with its letter.
    device = "" if letters(section) else f" Device: {lines[0]['device']}."
    return f"Splits: {named}. Seeds: {_ranges(seeds)}; {over}.{chosen}{device}"


def _ranges(numbers: Sequence[int]) -> str:
    whole = list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]}–{numbers[-1]}" if whole and len(numbers) > 2 else ", ".join(map(str, numbers))


def remarks(summary: Summary) -> list[str]:
    """What has to be said once for a table."""
    name = summary.experiment.name
    if summary.quick:
        return ["**Quick form**: small data, few epochs, to see that everything works; no figure here means anything."]
    said = [f"Published figures: {text}." for kind in (PAPER, AUTHORS) if (text := source_of(name, kind))]
    if any(row.preset in SAID and row.lines for section in summary.sections for row in section.rows):
        said.append(
            "Settings called paper's grid (the preset `paper`) were tuned here, over the grid of the paper's "
            "Appendix E, in most searches with one customary setting beside it; the paper's own figures stand under "
            "paper."
        )
    return [*said, *summary.experiment.notes]


def markdown(summary: Summary, *, level: int = 1, brief: bool = False) -> str:
    """The whole table.

    Args:
        summary: Of an experiment.
        level: Of its heading.
        brief: One sentence in place of the rows of a data set on which nothing was run.
    """
    experiment = summary.experiment
    parts = [f"{'#' * level} {experiment.title}", f"{experiment.source}. {summary.counted}."]
    parts += remarks(summary)
    for section in summary.sections:
        parts.append(f"{'#' * (level + 1)} {section.data.label}")
        if brief and not section.lines:
            parts.append(f"**Not run** ({len(section.rows)} rows): {section.reason or 'not begun yet'}.")
            continue
        parts.append(" ".join(filter(None, [protocol(section), circumstances(section), section.data.note])))
        if (visible := shown(section)).rows:
            columned = columns(visible)
            lines = [_md([heading for heading, _ in columned]), _md(["---"] * len(columned))]
            lines += [_md([text(row) for _, text in columned]) for row in visible.rows]
            parts.append("\n".join(lines))
        parts += under(experiment.name, section)
    return "\n\n".join(parts) + "\n"


def _md(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
