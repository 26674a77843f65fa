"""audit.html: the report on one page, in one file that asks nothing of a network."""

import jinja2

from blindspot.audit.report import Estimate, Report
from blindspot.audit.wording import number

CAPTIONS = {
    "boundaries": (
        "The state between two loops is multiplied by a factor. Left: how far the prediction read "
        "there moves (dashed: what counts as visible). Middle: how much of the factor is left "
        "after the next loop (dashed: all of it; dotted: none). Right: what it does to the loss "
        "after the last loop."
    ),
    "norms": (
        "The state's norm, the angle by which each loop turns it, and how many directions the "
        "tokens of a window span. Shaded: more loops than the model was trained with."
    ),
    "exits": (
        "The loss when the model is read after each loop, how far the prediction moves from one "
        "exit to the next, and what happens to the loss when the norm is held at loop 1's."
    ),
}
COLORS = {"yes": "bad", "partly": "fair", "no": "good"}


def render(report: Report, figures: dict[str, str]) -> str:
    """The page, from a report and SVG by figure name."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("blindspot.audit", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )

    def shown(x: Estimate | None) -> str:
        return "" if x is None else number(x)

    environment.filters["number"] = shown
    return environment.get_template("page.html.j2").render(
        report=report,
        verdict=report.verdict,
        model=report.model,
        figures=[(name, CAPTIONS[name], figures[name]) for name in CAPTIONS],
        colors=COLORS,
    )
