"""Tables from a summary: ``table.md`` and the one-page ``RESULTS.md``.

Every number is read from the ledger or from ``published.toml``; a page of results contains no typed figure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from difformer.experiments.analysis import (
    AUTHORS,
    NOT_YET,
    PAPER,
    Comparison,
    Figure,
    Row,
    Section,
    Summary,
    is_percent,
    pandas,
    published,
    read_summary,
)
from difformer.experiments.cells import UNTUNED
from difformer.experiments.spec import experiments
from difformer.files import write_whole

NONE = "–"
LABELS = {
    "rocauc": "AUROC",
    "mse": "MSE",
    "broadcast-mse": "broadcast MSE",
    "period-mse": "MSE in units of the period",
    "batch-rocauc": "mean AUROC per batch",
}
DAGGER = "† untuned: customary values, the same for all such rows; tuning may improve it."
QUICK_NOTE = "**Quick form**: small data and few epochs, to check that everything works. The numbers mean nothing."
BELOW = 2.0  # points below the paper from which on a rival is named
_BY_LAYER = {
    "energy": "energy by layer",
    "rank": "effective rank by layer",
    "within": "attention within classes by layer",
    "uniform": "uniform attention",
    "entropy": "entropy by layer (1: uniform)",
    "separation": "variance between classes by layer",
}


def score(row: Row, what: str = "test", *, count: bool = True) -> str:
    """``"82.38 ± 1.31 (10)"``; if runs are missing, of how many, and why."""
    values = row.values(what)
    if not len(values):
        return (row.reason if what == "test" else "") or NONE
    mean = float(values.mean())
    factor, digits = (100, 2) if is_percent(row.metric, what) else (1, 3 if abs(mean) >= 0.01 or mean == 0 else 6)
    spread = f" ± {factor * row.std(what):.{digits}f}" if len(values) > 1 else ""
    return f"{factor * mean:.{digits}f}{spread}" + (_count(row, len(values), what == "test") if count else "")


def _count(row: Row, n: int, why: bool) -> str:
    of = str(n) if n >= row.data.seeds else f"{n} of {row.data.seeds}"
    return f" ({of}{row.missing if why else ''})" + (" †" if row.preset == UNTUNED and why else "")


def difference(row: Row, found: Figure | None) -> str:
    """Ours minus the published figure, in the units of the table."""
    mean = row.mean(row.data.compare)
    if found is None or found.mean is None or mean is None:
        return NONE
    return f"{row.scale * mean - found.mean:+.{2 if row.scale == 100 else 3}f}"


def devices(section: Section) -> dict[str, str]:
    """A letter for each device of the section; empty if there is only one."""
    found = section.runs["place"].unique() if len(section.runs) else ()
    return dict(zip(found, ascii_uppercase, strict=False)) if len(found) > 1 else {}


def letters(row: Row, known: Mapping[str, str]) -> str:
    """The letters of a row's devices."""
    return "/".join(known[place] for place in row.runs["place"].unique()) if known and row.n else ""


def _median(row: Row, what: str, known: Mapping[str, str], form: str) -> str:
    """Medians by device; ``~`` marks the share of a run that was trained in a stack."""
    said = []
    for place, runs in row.runs.groupby("place", sort=False) if row.n else ():
        values = runs[what].dropna()
        if len(values):
            share = "~" if "stacked" in runs and (runs["stacked"] > 1).any() else ""
            said.append(f"{share}{float(values.median()):{form}} {known.get(place, '')}".rstrip())
    return ", ".join(said) or NONE


def table(section: Section) -> Any:
    """The cells of a section as text: a frame with one row per row of the table; empty columns are left out."""
    rows, known = section.shown, devices(section)
    columns = _cost_columns(section, known) if section.data.mode == "cost" else _score_columns(section, known)
    found = pandas().DataFrame({name: [text(row) for row in rows] for name, text in columns.items()})
    fixed = list(columns)[:3]
    return found[[name for name in found if name in fixed or (found[name] != NONE).any()]]


def _score_columns(section: Section, known: Mapping[str, str]) -> dict[str, Callable[[Row], str]]:
    metric = next((row.metric for row in section.rows if row.n), "score")
    unit = f"{LABELS.get(metric, metric)}{' in %' if is_percent(metric) else ''}"
    measures = [name for name in section.data.measures if name != metric]
    return {
        "system": lambda row: row.system.label,
        "settings": lambda row: row.settings,
        f"test {unit}, mean ± std (n)": score,
        **{LABELS.get(name, name): partial(score, what=name) for name in measures},
        "validation": partial(score, what="valid"),
        **{said: partial(_by_layer, name=name) for name, said in _BY_LAYER.items()},
        "paper": lambda row: str(row.paper or NONE),
        "Δ paper": lambda row: difference(row, row.paper),
        "authors' code": lambda row: str(row.authors or NONE),
        "Δ code": lambda row: difference(row, row.authors),
        "tuning (settings × runs)": lambda row: row.budget or NONE,
        "seconds per run (median)": lambda row: _median(row, "seconds", known, ".1f"),
        "peak MB (median)": lambda row: _median(row, "megabytes", known, ",.0f"),
        "paper, MB": lambda row: str(row.memory or NONE),
    }


def _cost_columns(section: Section, known: Mapping[str, str]) -> dict[str, Callable[[Row], str]]:
    gcn = [row for row in section.rows if row.system.key == "gcn"]
    base = next((row for row in gcn if row.n), None)

    def seconds(row: Row) -> str:
        mean = row.mean("epoch_seconds")
        if mean is None:
            return row.reason or NONE
        spread = f" ± {row.std('epoch_seconds'):.2g}" if row.n > 1 else ""
        return f"{mean:.3g}{spread}{_count(row, row.n, True).removesuffix(' †')} {letters(row, known)}".rstrip()

    def relative(row: Row, of: Callable[[Row], float | None]) -> str:
        mine, theirs = of(row), next(filter(None, map(of, gcn)), None)
        return f"{mine / theirs:.2f}" if mine and theirs else NONE

    def measured(row: Row) -> float | None:
        return row.mean("epoch_seconds") if base and letters(row, known) == letters(base, known) else None

    return {
        "system": lambda row: row.system.label,
        "settings": lambda row: row.settings,
        "seconds per epoch, mean ± std (n)": seconds,
        "× GCN": partial(relative, of=measured),
        "peak MB (median)": lambda row: _median(row, "megabytes", known, ",.0f"),
        "paper, seconds": lambda row: str(row.paper or NONE),
        "paper, × GCN": partial(relative, of=lambda row: row.paper.mean if row.paper else None),
        "paper, MB": lambda row: str(row.memory or NONE),
        "authors' code on a CPU, seconds": lambda row: str(row.authors or NONE),
    }


def _by_layer(row: Row, name: str) -> str:
    """Means over runs, layer by layer."""
    curves = [found for one in row.runs.get("measures", ()) if (found := one.get(name)) is not None]
    curves = [curve if isinstance(curve, list) else [curve] for curve in curves]
    return " → ".join(f"{sum(v) / len(v):.3g}" for v in zip(*curves, strict=True)) or NONE


def heading(section: Section) -> str:
    """Protocol, splits, seeds and device of what was run; otherwise why nothing was."""
    runs = section.runs
    if not len(runs):
        refused = any(row.reason not in ("", NOT_YET) for row in section.rows)
        return section.reason or ("Nothing could be run." if refused else "Nothing was run yet.")
    splits, seeds = list(runs["split"].unique()), sorted(runs["seed"].unique())
    named = ", ".join(splits) if len(splits) <= 3 else f"{splits[0]} … {splits[-1]} ({len(splits)})"
    over = "splits and initialisations" if len(splits) > 1 else "initialisations on one split"
    over = f"± is over {over}" if len(seeds) > 1 else "one run per row, hence no ±"
    device = "" if devices(section) else f" Device: {runs['device'].iloc[0]}."
    protocol = " | ".join(runs["protocol"].unique())
    return f"Protocol: {protocol}. Splits: {named}. Seeds: {', '.join(map(str, seeds))}; {over}.{device}"


def sentence(one: Comparison) -> str:
    """A comparison in words."""
    other = one.other.label if one.what == one.other.system.label else f"{one.what}, {one.other.label}"
    start = f"{one.ours.label} against {other}: "
    test = one.test
    if test is None:
        return f"{start}no seed and split in common, so nothing can be tested."
    unit = " points" if one.ours.scale == 100 else ""
    who = "equal" if one.gain == 0 else f"{abs(one.gain):.3g}{unit} {'better' if one.gain > 0 else 'worse'}"
    ties = len(one.ours.scores().items() & one.other.scores().items())
    wins = f"better in {test.wins} of {test.pairs} pairs" + (f", equal in {ties}" if ties else "")
    if one.p is None:
        return f"{start}{who} ({wins}); one pair cannot be tested."
    only = "" if len({split for _, split in one.ours.scores()}) > 1 else " on this split"
    verdict = f"{'' if one.significant else 'not '}significant{only}"
    return f"{start}{who} ({wins}), p = {one.p:.2g}: {verdict}."


def under(section: Section) -> list[str]:
    """The sentences under a table."""
    runs, known, rows = section.runs, devices(section), section.shown
    said = [DAGGER] if any(row.preset == UNTUNED and len(row.values()) for row in rows) else []
    if known:
        named = "; ".join(f"{letter} {place}" for place, letter in known.items())
        said.append(f"Seconds and megabytes of different devices are not comparable: {named}.")
    if "stacked" in runs and (runs["stacked"] > 1).any():
        said.append("~ runs trained as one stack: an equal share of its time and memory, not what one run takes alone.")
    if old := [row.label for row in section.rows if row.n and not row.planned]:
        said.append(f"Run with earlier presets and no longer repeated: {', '.join(old)}.")
    low = [(row, int(row.runs["place"].str.endswith(" in bf16").sum())) for row in rows if row.n]
    if any(count for _, count in low):
        named = "; ".join(f"{row.label}, {count} of {row.n}" for row, count in low if count)
        said.append(f"Runs in mixed precision (bf16), all others in float32: {named}.")
    marks: Any = runs["fingerprint"].dropna().value_counts() if "fingerprint" in runs else ()
    if len(marks) > 1:
        told = ", ".join(f"{mark[:8]} ({count} run{'' if count == 1 else 's'})" for mark, count in marks.items())
        said.append(f"Not all runs used bit-identical data; the fingerprints start with {told}.")
    absent = (row for row in section.rows if row.system not in [one.system for one in rows])
    if left := {
        row.system.key: row.system.label + (f" (published {row.paper})" if row.paper else "") for row in absent
    }:
        said.append(f"Not run yet: {', '.join(left.values())}.")
    return [*said, *map(sentence, section.comparisons), *_below_paper(section)]


def _below_paper(section: Section) -> list[str]:
    """Rivals more than two points below the paper on the paper's own splits, with what was tried for them."""
    if not section.data.paper_protocol:
        return []
    best: dict[str, Row] = {}
    for row in (row for row in section.rows if row.system.role == "rival" and len(row.values())):
        best[row.system.key] = max(best.get(row.system.key, row), row, key=lambda one: one.rank)
    gaps = [(row, float(difference(row, row.paper))) for row in best.values() if row.paper and row.paper.mean]
    said = []
    for row, gap in gaps:
        trials, _, runs = row.budget.partition(" × ")
        tried = f"{trials} settings" + (f" × {runs} runs" if runs else "") if trials else "untuned"
        said += [f"{row.system.label} {gap:+.2f} ({tried})"] if gap < -BELOW else []
    if said:
        tried = "`results/NOTES.md` says what was tried"
        return [f"More than {BELOW:g} points below the paper: {', '.join(said)}. {tried}."]
    return [f"No rival is more than {BELOW:g} points below the paper."] if gaps else []


def remarks(summary: Summary) -> list[str]:
    """Sentences that hold for a whole table."""
    if summary.quick:
        return [QUICK_NOTE]
    tables = published().get(summary.experiment.name, {})
    sources = {"paper": PAPER, "authors' code": AUTHORS}
    said = [f"Column {name}: {text}." for name, kind in sources.items() if (text := tables.get(f"{kind}-source"))]
    if any(row.preset == "paper" and row.n for row in summary.rows):
        said.append("Settings called paper's grid were tuned here over the grid of the paper's Appendix E.")
    said.append(
        "The epoch of a run, the settings of a tuned row and the best row of a kind are chosen on validation. Rows are "
        "compared by a paired t-test corrected for overlapping splits, with Holm's correction within a section."
    )
    return [*said, *summary.experiment.notes]


def markdown(summary: Summary) -> str:
    """The whole table in Markdown."""
    experiment = summary.experiment
    parts = [f"# {experiment.title}", f"{experiment.source}. {summary.counted}.", *remarks(summary)]
    for section in summary.sections:
        parts.append(f"## {section.data.label}")
        parts.append(" ".join(filter(None, [heading(section), section.data.note])))
        if section.shown:
            parts.append(_md(table(section)))
        parts += under(section)
    return "\n\n".join(parts) + "\n"


def _md(cells: Any) -> str:
    rows = [list(cells), ["---"] * len(cells.columns), *cells.values.tolist()]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in row) + " |" for row in rows)


def write_files(summary: Summary, folder: Path) -> list[Path]:
    """Write the table and the figure of a summary, each file atomically."""
    from difformer.experiments.figures import draw, save

    write_whole(folder / "table.md", markdown(summary).encode())
    return [folder / "table.md", *save(draw(summary), folder)]


# The page of results.

ON_PAGE = ("citation", "heterophily", "large", "temporal", "unobserved", "particles")
_OPENING = """# Results

`difformer reproduce --results docs/RESULTS.md` writes this page from the ledgers in `results/*/runs.jsonl`. Every \
number is read from a ledger, or is a published figure of the paper or of the authors' code. [Reproducing the \
paper](reproduce.md) explains the protocol."""
_HOW_TO_READ = """Test accuracy or AUROC in % (series: mean squared error, lower is better), mean ± standard \
deviation over seeds and splits. *Ours* is the best DIFFormer and *rival* the best other model, both chosen on \
validation. *Off* is our encoder without attention. *Trials* counts the settings compared for ours, the rival and off \
(0: customary or published settings, *: the settings of DIFFormer-s). p-values are of paired t-tests with ours, \
corrected for overlapping splits (Nadeau and Bengio) and for the comparisons of a section (Holm). **Bold** marks the \
better of ours and the rival if p < 0.05. With few training labels the correction is severe: a difference that is not \
significant is not shown to be zero."""


def write_results(folder: Path, path: Path) -> None:
    """Write the page of results and its figure, each atomically, from whatever was run.

    Raises:
        FileNotFoundError: If the folder of results does not exist.
    """
    from difformer.experiments.figures import attention_figure, save

    if not folder.is_dir():
        raise FileNotFoundError(f"--out: there is no folder {folder}; run `difformer reproduce NAME` first")
    links = Path(os.path.relpath(folder.resolve(), path.resolve().parent)).as_posix()
    found = [read_summary(one, folder / one.name) for one in experiments()]
    full = [one for one in found if one.made and not one.quick]
    tables = [one for one in full if one.experiment.name in ON_PAGE]
    sections = [(one, section) for one in tables for section in one.sections if section.comparisons]
    if not full:
        only = any(one.quick for one in found)
        why = "only the quick form was run, which measures nothing" if only else "nothing was run"
        parts = [_OPENING, f"No results yet: {why}."]
    else:
        parts = [_OPENING, "## Does all-pair attention help, and where?", *_attention(sections)]
        if any(section.comparison("attention off") for _, section in sections):
            save(attention_figure([section for _, section in sections]), folder, "attention")
            parts.append(f"![What all-pair attention adds, by data set]({links}/attention.png)")
        parts += ["## One row per data set", _HOW_TO_READ]
        parts.append(_md(pandas().DataFrame([_page_row(one, section, links) for one, section in sections])))
        parts += ["## Where rivals win", _losses(sections), "## All tables", _list_of_tables(found, links)]
    write_whole(path, ("\n\n".join(parts) + "\n").encode())


def _page_row(summary: Summary, section: Section, links: str) -> dict[str, str]:
    rival, off = section.comparison("the best rival"), section.comparison("attention off")
    ours, published_rows = section.comparisons[0].ours, [row for row in section.rows if row.system.role == "ours"]

    def top(source: str) -> str:
        """The best figure of a source."""
        known = [one for row in published_rows if (one := getattr(row, source)) is not None and one.mean is not None]
        best = min if any(one.mean < 2 for one in known) else max  # errors of series: lower is better
        return str(best(known, key=lambda one: one.mean)) if known and section.data.compare == "test" else NONE

    def result(row: Row, *, bold: bool) -> str:
        mark = "**" if bold and rival is not None and rival.significant else ""
        return f"{mark}{score(row, count=False)}{mark} ({row.system.label})"

    budgets = [ours.budget, *(one.other.budget if one else NONE for one in (rival, off))]
    found = {
        "data": f"[{section.data.label}]({links}/{summary.experiment.name}/table.md)",
        "paper": top("paper"),
        "authors' code": top("authors"),
        "ours": result(ours, bold=rival is not None and rival.gain > 0),
        "best rival": result(rival.other, bold=rival.gain <= 0) if rival else NONE,
        "off": score(off.other, count=False) if off else NONE,
        "splits": str(len({split for _, split in ours.scores()})),
        "trials": "/".join({"": "0", "borrowed": "*"}.get(one, one.partition(" × ")[0]) for one in budgets),
        "p, rival": _p(rival),
        "p, off": _p(off),
    }
    return {key: value.replace(" ± ", "±") for key, value in found.items()}


def _p(one: Comparison | None) -> str:
    return NONE if one is None or one.p is None else f"{one.p:.2g}"


def _gains(sections: Sequence[tuple[Summary, Section]], what: str) -> Any:
    """Ours against another row: a frame with one row per section that has both."""
    return pandas().DataFrame(
        {
            "task": summary.experiment.title,
            "data": section.data.label.partition(", ten ")[0].partition(", five ")[0],  # without the splits
            "other": one.other.system.label,
            "metric": one.ours.metric,
            "gain": one.gain,
            "sign": (1 if one.gain > 0 else -1) if one.significant else 0,
            "points": one.ours.scale == 100,
        }
        for summary, section in sections
        if (one := section.comparison(what))
    )


def _attention(sections: Sequence[tuple[Summary, Section]]) -> list[str]:
    """Where attention helps and where it does not, from the comparisons with attention off, by kind of task."""
    compared = _gains(sections, "attention off")
    found = compared if compared.empty else compared[compared["metric"] != "broadcast-mse"]
    if found.empty:
        return ["Nothing was compared with attention off yet."]
    rows = []
    for title, part in found.groupby("task", sort=False):
        gains, unit = part["gain"], " points" if part["points"].iloc[0] else " (MSE)"
        row = {"kind of task": title, "attention ahead": f"{(gains > 0).sum()} of {len(gains)}"}
        row["gain, median (range)"] = f"{gains.median():+.2g} ({gains.min():+.2g} to {gains.max():+.2g}){unit}"
        for sign, said in ((1, "better"), (-1, "worse")):
            row[f"significantly {said}"] = "; ".join(part["data"][part["sign"] == sign]) or NONE
        rows.append(row)
    better, worse, other = ((found["sign"] == sign).sum() for sign in (1, -1, 0))
    left_out = len(compared) - len(found)
    without = f" The {left_out} rows with the broadcast metric are not counted: a lower value of it is not a better"
    return [
        f"Of the {len(sections)} rows below, {len(found)} compare our best model with the same encoder without "
        f"attention.{f'{without} forecast.' if left_out else ''} Attention is significantly better on {better}, "
        f"significantly worse on {worse}, and on the other {other} no difference is shown. A positive gain means that "
        "attention is better: points gained, or mean squared error saved.",
        _md(pandas().DataFrame(rows)),
        "Compare on your own data. Unless attention is ahead on validation, switch it off (`--model difformer-off`).",
    ]


def _losses(sections: Sequence[tuple[Summary, Section]]) -> str:
    found = _gains(sections, "the best rival")
    lost = [one for one in found.itertuples() if one.gain < 0]
    named = "; ".join(
        f"{one.data}: {one.other} by {-one.gain:.2g}{' points' * one.points}{' (significant)' * abs(one.sign)}"
        for one in lost
    )
    if not lost:
        return "On every data set ours is ahead of the best rival."
    return f"The best rival is ahead of ours on {len(lost)} of {len(found)}. {named}."


def _list_of_tables(found: Sequence[Summary], links: str) -> str:
    lines = []
    for one in found:
        name, run = one.experiment.name, one.made and not one.quick
        title = f"[{name}]({links}/{name}/table.md)" if run else name
        lines.append(f"- {title}: {one.experiment.about}. {one.counted if run else 'Not run'}.")
    return "\n".join(lines)
