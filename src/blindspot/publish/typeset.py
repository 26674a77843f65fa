"""Numbers and tables as text: one rule for rounding; Markdown and LaTeX (booktabs), each escaped
after rounding, once.
"""

import re
from importlib.resources import files
from math import exp

import jinja2
import numpy as np
import pandas as pd

ABSENT = "—"


def number(value: float, decimals: int = 2) -> str:
    """A number for reading. Missing is a dash, overflow is ∞.

    From 1,000 up no decimals, from 100 up at most one; from a million up, and where rounding
    would leave nothing of a value that is not zero, two digits and a power of ten (1.0e-9).
    """
    if np.isnan(value):
        return ABSENT
    if np.isinf(value):
        return "∞" if value > 0 else "-∞"
    size = abs(value)
    if size >= 1e6 or 0 < size < 0.5 * 10.0**-decimals:
        return re.sub(r"e([+-])0*(\d)", lambda m: f"e{m[1].strip('+')}{m[2]}", f"{value:.1e}")
    text = f"{value:,.{0 if size >= 1000 else min(decimals, 1) if size >= 100 else decimals}f}"
    return text.removeprefix("-") if float(text.replace(",", "")) == 0 else text


def spread(value: float, ci: float, decimals: int = 2) -> str:
    """`mean ± half-width`, both to the mean's decimals; the mean alone without an interval."""
    shown = number(value, decimals)
    if np.isnan(ci):
        return shown
    plain = "e" not in shown and "∞" not in shown
    same = len(shown.partition(".")[2]) if plain else decimals
    return f"{shown} ± {number(ci, same) if ci >= 1e6 or not plain else _fixed(ci, same)}"


def deciding(room: float, half: float, unit: str = "", log: bool = False) -> str:
    """Which half-width (`room`) would decide what an interval of half-width `half` does not; of
    logarithms it is a factor."""
    if log:
        return (
            f"at this mean decided by a factor of {exp(room):.3g} either way (here {exp(half):.3g})"
        )
    return f"at this mean decided by ± {room:.2g}{unit and ' '}{unit} (here {half:.2g})"


def interval(mean: float, low: float, high: float, decimals: int = 2) -> str:
    """`mean [low, high]`; the mean alone without an interval."""
    shown = number(mean, decimals)
    if np.isnan(low) or np.isnan(high):
        return shown
    return f"{shown} [{number(low, decimals)}, {number(high, decimals)}]"


def _fixed(ci: float, decimals: int) -> str:
    return f"{ci:,.{decimals}f}" if ci >= 0.5 * 10.0**-decimals or ci == 0 else number(ci, decimals)


_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\|*_`<"})


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is."""
    return text.translate(_MARKDOWN)


def escape_rst(text: str) -> str:
    """Text that reStructuredText shows as it is: |H_K| would be a substitution, H_K a link."""
    return re.sub(r"([\\*`|_])", r"\\\1", text)


def markdown(shown: pd.DataFrame, note: str) -> str:
    """A pipe table; columns of numbers are aligned right."""
    right = _numeric(shown)
    rows = [list(shown.columns), *shown.to_numpy().tolist()]
    lines = ["| " + " | ".join(str(x).translate(_MARKDOWN) for x in row) + " |" for row in rows]
    rule = "|" + "|".join(" ---: " if r else " --- " for r in right) + "|"
    return "\n".join([lines[0], rule, *lines[1:], "", note.translate(_MARKDOWN), ""])


def page(title: str, shown: pd.DataFrame, note: str) -> str:
    """The table as a web page of its own, which the report shows; nothing is loaded from outside.
    A rule is drawn where the value of the first column changes."""
    template = files("blindspot.publish").joinpath("typeset.html.j2").read_text("utf-8")
    return jinja2.Template(template, autoescape=True, trim_blocks=True, lstrip_blocks=True).render(
        title=title,
        note=note,
        columns=list(zip(shown.columns, _numeric(shown), strict=True)),
        rows=shown.to_numpy().tolist(),
    )


def latex(shown: pd.DataFrame, note: str) -> str:
    r"""A `tabular` with booktabs rules and the note below, to be `\input` into a table."""
    columns = "".join("r" if r else "l" for r in _numeric(shown))
    body = [" & ".join(map(escape, row)) + r" \\" for row in shown.to_numpy().tolist()]
    first = shown.iloc[:, 0].tolist()
    for i in range(len(body) - 1, 0, -1):
        if first[i] != first[i - 1]:
            body.insert(i, r"\midrule")
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(map(escape, shown.columns)) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\par\smallskip",
            rf"\parbox{{\linewidth}}{{\footnotesize {escape(note)}}}",
            "",
        ]
    )


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "±": r"$\pm$",
    "×": r"$\times$",
    "∞": r"$\infty$",
    "²": "$^2$",
    "·": r"$\cdot$",
    "−": "$-$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "§": r"\S{}",
    "—": "---",
    "–": "--",
}


def escape(text: str) -> str:
    """Text for LaTeX, each special character escaped in one pass, numbers set as numbers."""
    text = "".join(_LATEX.get(c, c) for c in str(text))
    text = re.sub(r"(?<![\w.])(-?)(\d+\.\d+)e(-?\d+)\b", r"$\1\2\\times10^{\3}$", text)
    text = re.sub(r"\\textbar{}H\\_(\w+)\\textbar{}", r"$|H_\1|$", text)
    text = re.sub(r"\bH\\_(\w+)", r"$H_\1$", text)
    return re.sub(r"(?<![\w$.{-])-(?=[\d$])", "$-$", text)


def _numeric(shown: pd.DataFrame) -> list[bool]:
    pattern = re.compile(r"[-\d.,e+×±()–%\s∞—\[\]†‡§]*")
    return [all(pattern.fullmatch(str(x)) for x in shown[c]) for c in shown.columns]
