"""``table.md`` and ``table.tex``: the same rows, for reading and for a paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from difformer.experiments.choosing import UNTUNED
from difformer.experiments.goals import judged
from difformer.experiments.measures import LABELS
from difformer.experiments.published import AUTHORS, PAPER, Figure, source_of
from difformer.experiments.summary import Row, Section, Summary, is_percent
from difformer.experiments.verdicts import verdict

NONE = "–"
_TEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"}
_TEX |= {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "…": r"\dots{}",
    "Å": r"\AA{}",
    "†": r"$\dagger$",
}
_TEX |= {"±": r"$\pm$", "×": r"$\times$", "→": r"$\to$", "²": "$^2$", "τ": r"$\tau$", "β": r"$\beta$", "δ": r"$\delta$"}
_TEX |= {"|": r"\textbar{}", "<": r"\textless{}", ">": r"\textgreater{}", '"': "''"}
_TEX |= {"Δ": r"$\Delta$", "σ": r"$\sigma$", "λ": r"$\lambda$", "μ": r"$\mu$"}


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


def published(found: Figure | None) -> str:
    """A published figure as its source prints it."""
    if found is None:
        return NONE
    if found.mean is None:
        return found.text
    given = [value for value in (found.mean, found.deviation) if value is not None]
    return " ± ".join(f"{value:.{found.digits}f}" for value in given)


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
        ("settings", lambda row: row.preset),
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
    found.append(("seconds a run (median)", lambda row: NONE if not row.lines else f"{row.median('seconds') or 0:.1f}"))
    found.append(("peak MB (median)", megabytes))
    if any(row.memory is not None for row in section.rows):
        found.append(("paper, MB", lambda row: published(row.memory)))
    return found


def megabytes(row: Row) -> str:
    """Median of the peaks of memory; of runs that were trained as one, an equal share each, which is said."""
    known = [line for line in row.lines if line["peak_memory"] is not None]
    if not known:
        return NONE
    usual = median(line["peak_memory"] / line.get("stacked", 1) for line in known)
    return f"{'~' if any(line.get('stacked', 1) > 1 for line in known) else ''}{usual / 1e6:,.0f}"


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
    """Protocol, splits, seeds and devices of what was run."""
    lines = section.lines
    if not lines:
        return section.reason or "Nothing was run yet."
    splits = list(dict.fromkeys(str(line["split"]) for line in lines))
    seeds = sorted({int(line["seed"]) for line in lines})
    named = ", ".join(splits) if len(splits) <= 3 else f"{splits[0]} … {splits[-1]}, {len(splits)} in all"
    chosen = "" if section.data.mode == "cost" else "The epoch is chosen on validation. "
    if len(seeds) == 1:
        over = "one run a row, hence no ±" if len(splits) == 1 else "± is over splits"
    elif len(splits) > 1:
        over = "± is over splits and initialisations"
    else:
        over = "one split: ± is over initialisations alone"
    return (
        f"Protocol: {' | '.join(dict.fromkeys(str(line['protocol']) for line in lines))}. Splits: {named}. "
        f"Seeds: {_ranges(seeds)}; {over}. {chosen}"
        f"Device: {' | '.join(dict.fromkeys(str(line['device']) for line in lines))}."
    )


def _ranges(numbers: Sequence[int]) -> str:
    whole = list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]}–{numbers[-1]}" if whole and len(numbers) > 2 else ", ".join(map(str, numbers))


def remarks(summary: Summary) -> list[str]:
    """What has to be said once for a table."""
    name = summary.experiment.name
    if summary.quick:
        return ["**Quick form**: small data, few epochs, to see that everything works; no figure here means anything."]
    said = [f"Published figures: {text}." for kind in (PAPER, AUTHORS) if (text := source_of(name, kind))]
    if any(row.preset == UNTUNED for section in summary.sections for row in section.rows):
        said.append(
            "† untuned: no preset was tuned for this system here; it ran with one set of customary values, so its "
            "figure says little about the system."
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
    parts = [f"{'#' * level} {experiment.title}", f"{experiment.source}. {summary.made} of {summary.wanted} runs."]
    parts += remarks(summary)
    for section in summary.sections:
        parts.append(f"{'#' * (level + 1)} {section.data.label}")
        if brief and not section.lines:
            parts.append(f"**Not run** ({len(section.rows)} rows): {section.reason or 'not begun yet'}.")
            continue
        parts.append(" ".join(filter(None, [protocol(section), section.data.note])))
        shown = columns(section)
        lines = [_md([heading for heading, _ in shown]), _md(["---"] * len(shown))]
        lines += [_md([text(row) for _, text in shown]) for row in section.rows]
        parts.append("\n".join(lines))
        parts += [*verdict(section), *judged(summary.experiment.name, section)]
    return "\n\n".join(parts) + "\n"


def _md(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def latex(summary: Summary) -> str:
    """The same rows as LaTeX, one table a section; needs booktabs, and graphicx to bring all columns onto a page."""
    blocks = [f"% {summary.experiment.title}: written by `difformer reproduce {summary.experiment.name}`"]
    for section in summary.sections:
        shown = columns(section)
        rows = [" & ".join(tex(text(row)) for _, text in shown) + r" \\" for row in section.rows]
        said = [protocol(section), *verdict(section), *judged(summary.experiment.name, section)]
        blocks.append(
            "\n".join(
                [
                    r"\begin{table}[t]\centering\small",
                    rf"\caption{{{tex(summary.experiment.title)}: {tex(section.data.label)}. {tex(' '.join(said))}}}",
                    r"\resizebox{\textwidth}{!}{%",
                    rf"\begin{{tabular}}{{ll{'r' * (len(shown) - 2)}}}",
                    r"\toprule",
                    " & ".join(tex(heading) for heading, _ in shown) + r" \\",
                    r"\midrule",
                    *rows,
                    r"\bottomrule",
                    r"\end{tabular}}",
                    r"\end{table}",
                ]
            )
        )
    return "\n\n".join(blocks) + "\n"


def tex(text: str) -> str:
    """Text as LaTeX takes it."""
    plain = text.replace("**", "").replace("`", "'")
    return "".join(_TEX.get(letter, letter) for letter in plain)
