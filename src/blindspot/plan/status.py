"""`blindspot status`: every run of a study, while it runs or later. Locks and writes nothing."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from blindspot.config.study import Study
from blindspot.plan import show
from blindspot.plan.progress import Progress, progress
from blindspot.plan.show import duration

#: States that are shown one line a (size, cell); of the others every run has its own.
TOGETHER = {"waiting", "finished"}
STYLES = {
    "running": "green",
    "interrupted": "yellow",
    "trained": "yellow",
    "failed": "red",
    "waiting": "dim",
    "finished": "bold",
}


def status(study: Study) -> RenderableType:
    """A line of counts, and a table of all runs in the order of the config."""
    found = progress(study)
    return Group(headline(study, found), table(found))


def headline(study: Study, found: Sequence[Progress]) -> Text:
    """How many runs are in which state."""
    counts = Counter(p.state for p in found)
    parts = [f"{counts[state]} {state}" for state in STYLES if counts[state]]
    measured = sum(p.measured for p in found)
    return Text(
        f"Study {study.config.study}: {len(found)} runs: {', '.join(parts)}; {measured} measured. "
        f"Results in {study.results}, state in {study.work}."
    )


def table(found: Sequence[Progress]) -> Table:
    """The table; runs of one size and cell that wait or are finished share a line."""
    numbers = ("Step", "CE", "Norm", "Tokens/s", "Left")
    shown = show.table(("Size", "Cell", "Seed", "State", *numbers, "Note"), numbers, ("Note",))
    for group in _groups(found):
        first = group[0]
        seeds = ", ".join(str(p.run.seed) for p in group)
        state = Text(first.state, style=STYLES[first.state])
        shown.add_row(first.run.size, first.run.cell, seeds, state, *_numbers(group), _note(group))
    return shown


def _groups(found: Sequence[Progress]) -> list[list[Progress]]:
    groups: dict[object, list[Progress]] = {}
    for p in found:
        together = p.state in TOGETHER and not p.error
        key = (p.run.size, p.run.cell, p.state, p.measured) if together else p.run.name
        groups.setdefault(key, []).append(p)
    return list(groups.values())


def _numbers(group: Sequence[Progress]) -> list[str]:
    p = group[0]
    if p.state in TOGETHER:
        return [f"{p.steps:,}" if p.steps else "", "", "", "", ""]
    running = p.state == "running"
    return [
        f"{p.step or 0:,}/{p.steps:,}" if p.steps else "",
        "" if p.ce is None else f"{p.ce:.3f}",
        "" if p.norm is None else f"{p.norm:,.1f}",
        f"{p.tokens_per_s:,.0f}" if running and p.tokens_per_s else "",
        duration(p.left) if running and p.left is not None else "",
    ]


def _note(group: Sequence[Progress]) -> str:
    p, parts = group[0], []
    if p.state == "finished":
        parts.append("measured" if p.measured else "not measured")
    if p.state == "running":
        parts.append(str(p.holder))
        if p.step is None:
            parts.append("no step logged yet")
        elif p.age is not None and p.age > 60:
            parts.append(f"last log line {duration(p.age)} ago")
    if p.state == "interrupted":
        parts.append("goes on from its last checkpoint")
        if p.holder:
            parts.append(f"was on {p.holder}")
    if p.state == "trained":
        parts.append("weights are there, results not yet written")
    if p.resumes:
        parts.append(f"taken up again {p.resumes}x")
    if p.error and p.state != "running":
        parts.append(p.error)
    return "; ".join(parts)
