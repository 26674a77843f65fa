"""Figures: each a function of the collected results, drawn to PDF and PNG.

    draw(name, collected, out)      -> out/name.pdf, out/name.png; out/name.csv has what is drawn
    caption(name, collected)        -> what is drawn, from what, and what is missing

Nothing is typed in: a number that is drawn was measured.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from blindspot.collect.collected import Collected
from blindspot.errors import BlindspotError
from blindspot.files import atomic_path
from blindspot.publish import style, sweeps
from blindspot.publish.catalogue import FIGURES, item
from blindspot.publish.figures.drawn import drawn
from blindspot.publish.figures.panels import Panels
from blindspot.publish.figures.sweep import figure as sweep_figure
from blindspot.publish.item import Functions, Item

#: Name to the function that draws it, as the catalogue has it.
DRAWN: Mapping[str, Callable[[Collected], Panels]] = Functions(__name__, FIGURES)

#: Cells that can be told apart in one picture.
LEGIBLE = 16


def draw(name: str, collected: Path, out: Path) -> None:
    """Draw figure `name` of the folder that `collect` wrote to `out/name.pdf` and `.png`,
    and what it shows as numbers to `.csv` (drawn.py).

    Equal inputs give equal bytes, whatever the user's matplotlib settings.
    """
    sweep = sweeps.named(name)
    if sweep is None and name not in DRAWN:
        raise BlindspotError(f"no figure {name!r}; there are {', '.join(DRAWN)}")
    c, _ = _legible(item(FIGURES, name), Collected(collected))
    with style.theme():
        made = DRAWN[name](c) if sweep is None else sweep_figure(c, sweep)
        style.save(made.figure, out, name)
    with atomic_path(out / f"{name}.csv") as temporary:
        drawn(made.figure).to_csv(temporary, index=False, float_format="%.8g", lineterminator="\n")


def caption(name: str, collected: Path) -> str:
    """One paragraph: what is drawn; study, corpus, seeds, interval; what is not shown."""
    of = item(FIGURES, name)
    c, left_out = _legible(of, Collected(collected))
    parts = [of.caption, left_out, c.about(), c.seeds()]
    parts += [c.rates()] if of.two_initializations else []
    parts += c.scored(of.reads)
    if of.spread == "runs":
        parts.append("One curve a run.")
    elif of.spread == "range":
        kinds = "of logarithms for what is positive and spreads by factors"
        parts.append(f"Lines are means over seeds ({kinds}), bands all seeds.")
    else:
        parts += ["Lines are means over seeds.", c.interval()]
    parts += [c.machine(), c.untimed()] if "throughput" in of.reads else []
    parts += c.apart()
    return " ".join(part for part in parts if part)


def _legible(of: Item, c: Collected) -> tuple[Collected, str]:
    """What a figure of all cells draws, and a sentence on what it leaves out: of too many cells
    those that sweeps have made, which have figures of their own."""
    if sweeps.named(of.name) or of.asks or len(c.cells) <= LEGIBLE:
        return c, ""
    if of.two_initializations:  # which draws no other cells than these
        pairs = {cell for group in c.initializations.values() for cell in group.values()}
        return Collected(c.folder, pairs), ""
    every = [point for name in c.study.get("sweeps", {}) for point in sweeps.points(c, name)]
    made = {point["cell"] for point in every if not point["own"]}
    if not made:
        return c, ""
    kept = [cell for cell in c.cells if cell not in made]
    return Collected(c.folder, kept), (
        f"Drawn are {len(kept)} of {len(c.cells)} cells; those of sweeps have figures of their own."
    )
