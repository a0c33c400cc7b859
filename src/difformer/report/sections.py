"""The parts of the page about the run as a whole: what was run, how good it is, what it cost, how it is used."""

from __future__ import annotations

import shlex
from typing import Any

from difformer.report.cost import costs
from difformer.report.gathering import Material
from difformer.report.html import code, escape, paragraph, plot, section, table

NAVIGATION = (
    ("run", "Run"), ("results", "Results"), ("predictions", "Predictions"), ("map", "Map"), ("within", "Attention"),
    ("energy", "Energy"), ("explanations", "Explanations"), ("cost", "Cost"), ("use", "Use"),
)  # fmt: skip


def header(material: Material) -> str:
    """Title, result and navigation."""
    folder, summary = material.folder, material.folder.summary()
    about, runs = folder.about["data"], len(summary.results)
    splits = len({result["split"] for result in summary.results})
    over = (
        f"mean ± standard deviation over {runs} seeds on {splits} split{'s' * (splits > 1)}" if runs > 1 else "one seed"
    )
    if runs > 1 and splits == 1:
        over += ": ± is over initialisations alone"
    part = material.part
    value = f"{summary.mean(part):.4f} ± {summary.std(part):.4f}" if runs > 1 else f"{summary.mean(part):.4f}"
    links = "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title in NAVIGATION)
    return (
        f"<header><h1>{escape(folder.config.model)} on {escape(about['task'])}</h1>"
        f'<p class="headline">{part} {escape(summary.metric)} <strong>{value}</strong> ({escape(over)})</p>'
        f'<nav>{links}<button id="theme" type="button">light / dark</button></nav></header>'
    )


def what_was_run(material: Material) -> str:
    folder, task = material.folder, material.task
    run, versions = folder.about["run"], folder.about["versions"]
    named = {**task.facts(), "metric": folder.summary().metric}  # the run's own, which may differ from the task's
    facts = [(key, f"{value:,}" if isinstance(value, int) else value) for key, value in named.items()]
    made = [
        ("folder", folder.path),
        ("created", run["created"]),
        ("seeds", ", ".join(map(str, folder.seeds))),
        ("versions", ", ".join(f"{key} {value}" for key, value in versions.items())),
    ]
    options = folder.about["model"].get("options", {})
    settings = [(key, _shown(value)) for key, value in {**options, **folder.about["training"]}.items()]
    notes = "".join(paragraph(f"Note: {note}") for note in task.notes)
    return section(
        "run",
        "What was run",
        table(["", ""], [*facts, *made]),
        notes,
        f"<details><summary>All settings</summary>{table(['setting', 'value'], settings)}</details>",
    )


def _shown(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def results(material: Material, curves: dict[str, Any]) -> str:
    parts = ("train", "valid", "test")
    rows = [
        [
            r["seed"],
            r["split"],
            f"{r['best_epoch']}/{r['epochs']}",
            *(_number(r[p]) for p in parts),
            f"{r['seconds']:.1f} s",
            r["status"],
        ]
        for r in material.folder.results()
    ]
    thinned = "Of long runs not every epoch is drawn." if curves["thinned"] else ""
    return section(
        "results",
        "Results and learning curves",
        table(["seed", "split", "best epoch", *parts, "time", "ended"], rows, right=(0, 2, 3, 4, 5, 6)),
        plot("curves"),
        paragraph(
            f"One line a seed; a dot marks the epoch that was best on validation, which is the one kept. {thinned}"
        ),
    )


def predictions(material: Material, found: dict[str, Any]) -> str:
    seeds = f"{found['seeds']} seed{'s' * (found['seeds'] > 1)}"
    where = f"On the {material.part} part, {seeds}"
    if found["kind"] == "classes":
        columns = ["precision", "recall", "f1", *(["auc"] if found["table"] and "auc" in found["table"][0] else [])]
        rows = [
            [r["name"], f"{r['number']:,.0f}", *(_spread(r[c]) for c in columns), f"{r['predicted_in']} of {seeds}"]
            for r in found["table"]
        ]
        hidden = (
            f"The matrix shows the most frequent classes; {found['hidden']} are left out." if found["hidden"] else ""
        )
        return section(
            "predictions",
            "Confusion matrix and classes",
            paragraph(f"{where}: rows are true classes, columns predicted ones; counts of all seeds. {hidden}"),
            plot("confusion"),
            table(["class", "number", *columns, "predicted in"], rows, right=range(1, 3 + len(columns))),
        )  # fmt: skip
    rows = [[r["name"], *(_spread(r[c]) for c in ("mse", "mae", "r2"))] for r in found["table"]]
    if found["scatter"] is None:
        return section(
            "predictions", "Residuals", paragraph(f"{where}: no target is known, so there are no residuals.")
        )
    return section(
        "predictions",
        "Residuals",
        paragraph(
            f"{where}: prediction less target has mean {found['mean']:.4g}. The scatter is of seed {material.seed}."
        ),
        plot("residuals"),
        plot("over-time") if found.get("over_time") else "",
        table(["", "MSE", "MAE", "R²"], rows, right=(1, 2, 3)),
    )


def cost_section(material: Material) -> str:
    return section("cost", "Cost", table(["", ""], costs(material.folder, material.loaded)))


def use_section(material: Material) -> str:
    path, own = str(material.folder.path), material.folder.source is not None
    task, word = "" if own else ", task=task", shlex.quote(path)
    python = (
        "from difformer.training import load_run, predict\n\n"
        f"predictions = predict({path!r}{task})  # of the run's own instances\n"
        "headings, rows = predictions.table()\n"
        f"loaded = load_run({path!r}{task}, seed={material.seed})  # loaded.model, loaded.task, loaded.split"
    )
    shell = f"difformer predict {word} --out predictions.csv\ndifformer evaluate {word}"
    if material.task.kind == "nodes":
        shell += f"\ndifformer predict {word} --features new.csv --out predictions.csv"
    text = "" if own else "The run was made from a task object, which Python has to be given again."
    return section("use", "Load it and predict", paragraph(text), code(python), code(shell) if own else "")


def _number(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.4f}"


def _spread(value: tuple[float, float | None] | None) -> str:
    if value is None:
        return "–"
    return f"{value[0]:.3f}" if value[1] is None else f"{value[0]:.3f} ± {value[1]:.3f}"
