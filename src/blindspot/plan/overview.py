"""A study in a few lines, for the terminal: what is ahead, by cell, and how far it is meanwhile.

Imports neither torch nor pandas.
"""

import threading
import time
from collections.abc import Callable, Sequence

from rich.console import Console

from blindspot.config.study import Study
from blindspot.plan import show
from blindspot.plan.forecast import Forecast, Row
from blindspot.plan.progress import Progress, progress

#: Cells that get a row; the paper's two sizes of seven are 14.
ROWS = 14
#: What is counted in a row.
COUNTED = {"cached": "finished", "measure": "to measure", "train": "to train"}
#: A look at a study takes this share of a core's time at most.
SHARE = 0.02
#: Seconds between plain lines, at least.
PLAIN = 60.0


def ahead(study: Study, cores: int, status: str = "status") -> str:
    """A row for each cell with something to do, the hours in all, where logs are, and the target
    that tells how far each run is."""
    forecast = Forecast(study, cores)
    forecast.reasons = False
    rows = forecast.rows()
    todo = [row for row in rows if row.count("train") + row.count("measure")]
    lines = _table(todo, f"{forecast.unit}-hours") if todo else []
    lines.append(forecast.total(rows))
    lines.append(f"Logs are in {study.work / 'logs'}/. How far each run is: snakemake -c1 {status}")
    return "\n".join(lines)


def _table(rows: Sequence[Row], hours: str) -> list[str]:
    counted = {a: name for a, name in COUNTED.items() if any(row.count(a) for row in rows)}
    names = [*counted.values(), hours]
    table = show.table(("size", "cell", *names), names)
    for row in rows[:ROWS]:
        counts = [str(row.count(a) or "") for a in counted]
        table.add_row(row.size, row.cell, *counts, show.hours(row.seconds))
    console = Console(width=120, force_terminal=False)
    with console.capture() as captured:
        console.print(table)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    return lines + ([f"and {len(rows) - ROWS} more cells"] if rows[ROWS:] else [])


def so_far(study: Study, cores: int) -> tuple[str, tuple[int, ...]]:
    """How far a study is, in one line; and its counts, which tell whether that is news."""
    found = progress(study)
    counts = {s: sum(p.state == s for p in found) for s in ("finished", "running", "failed")}
    measured = sum(p.measured for p in found)
    parts = [f"{counts['finished']} of {len(found)} runs trained", f"{measured} measured"]
    parts += [f"{counts[state]} {state}" for state in ("running", "failed") if counts[state]]
    if not (study.tokens / "tokens.json").exists():
        now = "corpus and tokens"
    elif measured == len(found):
        now = "tables and figures"
    else:
        now = f"{_left(study, cores)}{_furthest(found)}"
    news = (counts["finished"], measured, counts["failed"])
    return f"{study.config.study}: {', '.join(parts)}; {now}", news


def _furthest(found: Sequence[Progress]) -> str:
    steps = [
        (p.step / p.steps, p.run.cell, p.run.seed)
        for p in found
        if p.state == "running" and p.step and p.steps
    ]
    if not steps:
        return ""
    share, cell, seed = max(steps)
    return f", {cell} seed {seed} at {share:.0%}"


def _left(study: Study, cores: int) -> str:
    """The time until all is done where that is known, else the time of devices that it takes."""
    forecast = Forecast(study, cores)
    forecast.reasons = False
    rows = forecast.rows()
    if forecast.unit == "core":
        wall = forecast.wall(rows, cores)
        return f"about {show.duration(wall)} left" if wall else "time left unknown"
    seconds = forecast.seconds(rows)
    return f"about {show.hours(seconds)} GPU-hours left" if seconds else "time left unknown"


class Watch(threading.Thread):
    """Says how far a study is, until `stop`: on one line that changes where there is one to `show`
    it on, else `tell` gets a plain line where runs were finished or have failed."""

    def __init__(
        self,
        study: Study,
        cores: int,
        tell: Callable[[str], object],
        show: Callable[[str], object] | None,
        every: float,
    ) -> None:
        super().__init__(name="watch", daemon=True)
        self.study, self.cores, self.every = study, cores, every
        self._tell, self._show = tell, show
        self._stopped = threading.Event()

    def run(self) -> None:
        known: tuple[int, ...] | None = None
        told, pause = time.monotonic(), 0.0
        while not self._stopped.wait(pause):
            began = time.monotonic()
            try:
                line, news = so_far(self.study, self.cores)
            except OSError:
                # Of a file that vanished while it was looked at. There is a next time.
                line, news = "", known or ()
            if self._show and line and not self._stopped.is_set():
                self._show(line)
            elif known is None:
                known = news  # what was there at the start is no news
            elif news != known and began - told >= PLAIN:
                self._tell(f"{time.strftime('%H:%M')} {line}")
                known, told = news, began
            pause = max(self.every, (time.monotonic() - began) / SHARE)

    def stop(self) -> None:
        """Say no more."""
        self._stopped.set()
        if self._show:
            self._show("")
