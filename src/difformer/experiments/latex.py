"""``table.tex``: the rows of ``table.md`` for a paper, one table a section.

Needs booktabs, and graphicx to bring all columns onto a page. The caption says what the table is; all else stands in
small print under the rows.
"""

from __future__ import annotations

from difformer.experiments.summary import Section, Summary
from difformer.experiments.tables import circumstances, columns, protocol
from difformer.experiments.under import shown, under

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


def latex(summary: Summary) -> str:
    """Every section as a table; one of which nothing was run as a comment."""
    experiment = summary.experiment
    blocks = [f"% {experiment.title}: written by `difformer reproduce {experiment.name}`"]
    return "\n\n".join([*blocks, *(_block(summary, section) for section in summary.sections)]) + "\n"


def _block(summary: Summary, section: Section) -> str:
    experiment, visible = summary.experiment, shown(section)
    said = under(experiment.name, section)
    if not visible.rows:
        # A comment ends with its line.
        return "\n".join("% " + " ".join(one.split()) for one in [f"{section.data.label}: {protocol(section)}", *said])
    columned = columns(visible)
    notes = [text for text in (circumstances(section), section.data.note, *said) if text]
    return "\n".join(
        [
            r"\begin{table}[t]\centering\small",
            rf"\caption{{{tex(f'{experiment.title}: {section.data.label}. {protocol(section)}')}}}",
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{ll{'r' * (len(columned) - 2)}}}",
            r"\toprule",
            " & ".join(tex(heading) for heading, _ in columned) + r" \\",
            r"\midrule",
            *(" & ".join(tex(text(row)) for _, text in columned) + r" \\" for row in visible.rows),
            r"\bottomrule",
            r"\end{tabular}}",
            r"\par\smallskip",
            r"\begin{minipage}{\textwidth}\footnotesize\raggedright",
            "\n\n".join(tex(text) for text in notes),
            r"\end{minipage}",
            r"\end{table}",
        ]
    )


def tex(text: str) -> str:
    """Text as LaTeX takes it."""
    plain = text.replace("**", "").replace("`", "'")
    return "".join(_TEX.get(letter, letter) for letter in plain)
