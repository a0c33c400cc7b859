"""Tables from a summary: ``table.md`` and the one-page ``RESULTS.md``, by the templates in ``templates/``.

Every number is read from the ledger or from ``published.toml``; a page of results contains no typed figure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from difformer.errors import require
from difformer.experiments.analysis import LABELS, Row, Section, Summary, mean_of, pandas, published, read_summary
from difformer.experiments.cells import UNTUNED
from difformer.experiments.figures import attention_figure, draw, save
from difformer.experiments.spec import experiments
from difformer.files import write_whole

NONE = "–"
BELOW = 2.0  # points below the paper from which on a rival is named
ON_PAGE = ("citation", "heterophily", "large", "temporal", "unobserved", "particles")
_BY_LAYER = {
    "energy": "energy by layer",
    "rank": "effective rank by layer",
    "separation": "variance between classes by layer",
}


def score(row: Row, what: str = "test", *, count: bool = True) -> str:
    """``"82.38 ± 1.31 (10)"``; if runs are missing, of how many, and why."""
    mean, n, why = row.mean(what), len(row.values(what)), row.reason if what in ("test", "epoch_seconds") else ""
    if mean is None:
        return why or NONE
    factor = row.factor(what)
    digits = 2 if factor == 100 else 3 if abs(mean) >= 0.01 or mean == 0 else 6
    of_mean, of_spread = (".3g", ".2g") if what == "epoch_seconds" else (f".{digits}f",) * 2
    found = f"{factor * mean:{of_mean}}" + (f" ± {factor * row.std(what):{of_spread}}" if n > 1 else "")
    some = n < row.data.seeds
    said = f"{n} of {row.data.seeds}" if some else str(n)
    said += f"; {why}" if why and some and row.planned else ""
    return found + (f" ({said})" + " †" * (row.preset == UNTUNED and what == "test") if count else "")


def difference(row: Row, figure: str | None) -> str:
    """Ours minus the published figure, in the units of the table."""
    ours, published = row.mean(row.data.compare), mean_of(figure)
    if ours is None or published is None:
        return NONE
    return f"{row.scale * ours - published:+.{2 if row.scale == 100 else 3}f}"


def table(section: Section) -> Any:
    """The cells of a section as text: a frame with one row per row of the table; empty columns are left out."""
    columns: dict[str, Callable[[Row], str]] = {
        "system": lambda row: row.system.label,
        "settings": lambda row: row.settings,
        **(_cost_columns if section.data.mode == "cost" else _score_columns)(section),
    }
    if section.measured:
        peaks = {id(row): row.values("megabytes") for row in section.shown}
        columns["peak MB (median)"] = lambda row: f"{peaks[id(row)].median():,.0f}" if len(peaks[id(row)]) else NONE
        columns["paper, MB"] = lambda row: row.memory or NONE
        columns["device"] = lambda row: row.device or NONE
    found = pandas().DataFrame({name: [text(row) for row in section.shown] for name, text in columns.items()})
    return found[[name for name in found if name in list(columns)[:3] or (found[name] != NONE).any()]]


def _score_columns(section: Section) -> dict[str, Callable[[Row], str]]:
    first = next((row for row in section.rows if row.n), None)
    metric, percent = (first.metric, first.factor() == 100) if first else ("score", False)
    measures = [name for name in section.data.measures if name != metric]
    return {
        f"test {LABELS.get(metric, metric)}{' in %' * percent}, mean ± std (n)": score,
        **{LABELS.get(name, name): partial(score, what=name) for name in measures},
        "validation": partial(score, what="valid"),
        **{said: partial(_by_layer, name=name) for name, said in _BY_LAYER.items()},
        "paper": lambda row: row.paper or NONE,
        "Δ paper": lambda row: difference(row, row.paper),
        "authors' code": lambda row: row.authors or NONE,
        "Δ code": lambda row: difference(row, row.authors),
        "tuning (settings × runs)": lambda row: row.budget or NONE,
    }


def _cost_columns(section: Section) -> dict[str, Callable[[Row], str]]:
    gcn = [row for row in section.rows if row.system.key == "gcn"]
    base = next((row for row in gcn if row.n), None)
    published = next((mean_of(row.paper) for row in gcn if row.paper), None)

    def relative(row: Row) -> str:
        comparable = base is not None and row.device == base.device
        return _ratio(row.mean("epoch_seconds"), base.mean("epoch_seconds")) if base and comparable else NONE

    return {
        "seconds per epoch, mean ± std (n)": partial(score, what="epoch_seconds"),
        "× GCN": relative,
        "paper, seconds": lambda row: row.paper or NONE,
        "paper, × GCN": lambda row: _ratio(mean_of(row.paper), published),
        "authors' code on a CPU, seconds": lambda row: row.authors or NONE,
    }


def _ratio(mine: float | None, theirs: float | None) -> str:
    return f"{mine / theirs:.2f}" if mine and theirs else NONE


def _by_layer(row: Row, name: str) -> str:
    """Means over runs, layer by layer."""
    curves = [found for one in row.runs["measures"] if (found := one.get(name)) is not None]
    return " → ".join(f"{sum(v) / len(v):.3g}" for v in zip(*curves, strict=True)) or NONE


def below_paper(section: Section) -> tuple[int, list[str]]:
    """On the paper's own splits: how many rivals can be compared with it, and those far below, with their tuning."""
    best: dict[str, Row] = {}
    for row in section.rows if section.data.paper_protocol else ():
        if row.system.role == "rival" and len(row.values()):
            best[row.system.key] = max(best.get(row.system.key, row), row, key=lambda one: one.rank)
    gaps = [(row, float(difference(row, row.paper))) for row in best.values() if mean_of(row.paper)]
    said = []
    for row, gap in gaps:
        trials, _, runs = row.budget.partition(" × ")
        tried = f"{trials} settings" + (f" × {runs} runs" if runs else "") if trials else "untuned"
        said += [f"{row.system.label} {gap:+.2f} ({tried})"] if gap < -BELOW else []
    return len(gaps), said


def _fill(template: str, **context: Any) -> str:
    """A template with its context; paragraphs are separated by one empty line."""
    jinja2 = require("jinja2", extra="figures", purpose="making tables of results")
    loader = jinja2.FileSystemLoader(Path(__file__).with_name("templates"))
    environment = jinja2.Environment(
        loader=loader, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["markdown"] = _markdown
    return re.sub(r"\n{3,}", "\n\n", environment.get_template(template).render(context)).strip() + "\n"


def _markdown(cells: Any) -> str:
    """A frame of strings as a table."""
    rows = [list(cells), ["---"] * len(cells.columns), *cells.values.tolist()]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in row) + " |" for row in rows)


def markdown(summary: Summary) -> str:
    """The complete table in Markdown."""
    helpers = {"table": table, "below_paper": below_paper, "limit": BELOW}
    return _fill("table.md", summary=summary, published=published(), **helpers)


def write_files(summary: Summary, folder: Path) -> list[Path]:
    """Write the table and the figure of a summary, each file atomically."""
    write_whole(folder / "table.md", markdown(summary).encode())
    drawn = draw(summary)
    return [folder / "table.md", *(save(drawn, folder) if drawn is not None else ())]


def write_results(folder: Path, path: Path) -> None:
    """Write the page of results and its figure, each atomically, from whatever was run."""
    if not folder.is_dir():
        raise FileNotFoundError(f"--out: there is no folder {folder}; run `difformer reproduce NAME` first")
    links = Path(os.path.relpath(folder.resolve(), path.resolve().parent)).as_posix()
    found = [read_summary(one, folder / one.name) for one in experiments()]
    tables = [one for one in found if one.made and not one.quick and one.experiment.name in ON_PAGE]
    sections = [(one, section) for one in tables for section in one.sections if section.comparisons]
    gains = {what: _gains(sections, what) for what in ("attention off", "the best rival")}
    if len(gains["attention off"]):
        save(attention_figure([section for _, section in sections]), folder, "attention")
    others = []  # rivals with the best test score that were not chosen on validation
    for _, section in sections:
        chosen, best = section.comparison("the best rival"), section.strongest
        if chosen and best and best.system != chosen.other.system:
            others.append((_label(section), best))
    given = {"found": found, "sections": sections, "gains": gains, "others": others, "links": links}
    write_whole(path, _fill("results.md", **given, altered=_altered(found), top=_top, score=score).encode())


def _altered(found: Sequence[Summary]) -> list[list[str]]:
    """What attention adds with fewer labels and edges: per data set its name and a cell per alteration."""
    rows: dict[str, list[str]] = {}
    sections = [one.sections for one in found if one.experiment.name == "robustness" and not one.quick]
    for section in chain.from_iterable(sections):
        compared, cell = section.comparison("attention off"), NONE
        if compared is not None and min(compared.ours.n, compared.other.n) >= section.data.seeds:
            cell = f"**{compared.gain:+.1f}**" if compared.significant else f"{compared.gain:+.1f}"
        rows.setdefault(section.data.label.rpartition(", ")[0], []).append(cell)
    return [[name, *cells] for name, cells in rows.items() if set(cells) != {NONE}]


def _top(section: Section, source: str) -> str:
    """The best figure of ours in a source."""
    figures = [getattr(row, source) for row in section.rows if row.system.role == "ours"]
    known = {mean: figure for figure in figures if (mean := mean_of(figure)) is not None}
    best = max if section.comparisons[0].ours.sign > 0 else min
    return known[best(known)] if known and section.data.compare == "test" else NONE


def _label(section: Section) -> str:
    """The label of a section's data, without the splits where there are several."""
    return section.data.label.partition(", ten ")[0].partition(", five ")[0]


def _gains(sections: Sequence[tuple[Summary, Section]], what: str) -> Any:
    """Ours against another row: a frame with one row per section that has both."""
    rows = []
    for summary, section in sections:
        if one := section.comparison(what):
            row = {
                "task": summary.experiment.title,
                "data": _label(section),
                "other": one.other.system.label,
                "metric": one.ours.metric,
                "gain": one.gain,
                "sign": (1 if one.gain > 0 else -1) if one.significant else 0,
                "points": one.ours.scale == 100,
            }
            rows.append(row)
    return pandas().DataFrame(rows)
