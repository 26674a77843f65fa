"""What all tables share: their two faces, rows for every cell, and cells of text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.collect.stats import over_seeds
from blindspot.publish.typeset import ABSENT, interval, spread

KEYS = ["size", "cell"]


@dataclass
class Table:
    """`data` for the CSV; `shown` has the same numbers as text, one column a header. A rule is
    drawn where the value of its first column changes."""

    data: pd.DataFrame
    shown: pd.DataFrame
    note: str = ""


def means(
    frame: pd.DataFrame, by: Sequence[str], linear: Sequence[str], log: Sequence[str] = ()
) -> pd.DataFrame:
    """Means over seeds as tables have them: `by`, `seeds`, and of each value its mean with, of the
    `linear` ones, `<value>_ci` (half-width of the interval), and of those averaged as logarithms,
    `<value>_low` and `<value>_high`."""
    mean = over_seeds(frame, by, [*log, *linear], log)
    kept = [f"{v}{end}" for v in log for end in ("", "_low", "_high")]
    kept += [f"{v}{end}" for v in linear for end in ("", "_ci")]
    return mean[[*by, "seeds", *kept]]


def every_cell(c: Collected, frame: pd.DataFrame, more: Sequence[str] = ()) -> pd.DataFrame:
    """`frame`, one row a size and cell (and `more` keys), with empty rows for what is not there:
    a cell that failed or is not done must not just be absent. In the order of the config; cells
    that are not planned at a size have no row of it."""
    keys = [*KEYS, *more]
    planned = [(s["name"], cell) for s in c.study["sizes"] for cell in c.cells_at(s["name"])]
    levels = [list(dict.fromkeys(frame[name])) for name in more]
    rows = [(*pair, *values) for pair in planned for values in product(*levels)]
    grid = pd.MultiIndex.from_tuples(rows, names=keys)
    return frame.set_index(keys).reindex(grid).reset_index()


def counted(c: Collected, size: str, cell: str, seeds: float) -> str:
    """How many seeds, and how many runs failed or ended far from the others: `2 (1 failed)`."""
    n = 0 if pd.isna(seeds) else int(seeds)
    special = {"failed": c.failures, "outlier": c.outliers}
    counts = [f"{len(of[size, cell])} {name}" for name, of in special.items() if (size, cell) in of]
    return f"{n} ({', '.join(counts)})" if counts else str(n)


def lead(c: Collected, frame: pd.DataFrame) -> dict[str, list[str]]:
    """The columns that tables begin with, from rows with size, cell, seeds."""
    rows = list(zip(frame["size"], frame["cell"], frame["seeds"], strict=True))
    return {
        "Size": [size for size, _, _ in rows],
        "Cell": [cell for _, cell, _ in rows],
        # Where each cell has its own K, "the last loop" is another one in each row.
        **({"K": [str(c.loops_of[cell]) for _, cell, _ in rows]} if c.depth == "K" else {}),
        "Seeds": [counted(c, *row) for row in rows],
    }


def spreads(frame: pd.DataFrame, value: str, decimals: int = 2) -> list[str]:
    """A value of `means` as text: `mean ± half-width`, or `mean [low, high]` of logarithms."""
    if f"{value}_low" in frame:
        ends = zip(frame[value], frame[f"{value}_low"], frame[f"{value}_high"], strict=True)
        return [interval(mean, low, high, decimals) for mean, low, high in ends]
    pairs = zip(frame[value], frame[f"{value}_ci"], strict=True)
    return [spread(mean, ci, decimals) for mean, ci in pairs]


#: Behind what a model of token frequencies does as well.
WEAK = "‡"


def weak(
    c: Collected, texts: Sequence[str], ce: Sequence[float], splits: Sequence[str]
) -> list[str]:
    """`texts`, with a mark behind those whose CE is no better than a unigram model's of that split:
    such an exit predicts nothing from its context, and comparing it says nothing of depth."""
    limits = {split: c.baseline("unigram", split) for split in set(splits)}
    rows = zip(texts, ce, splits, strict=True)
    return [f"{text} {WEAK}" if value >= limits[split] else text for text, value, split in rows]


def weak_note(texts: Iterable[str]) -> str:
    """What the mark of `weak` means, if some text has it."""
    there = any(WEAK in str(text) for text in texts)
    return f"{WEAK} No better than a unigram model." if there else ""


#: Behind numbers of a protocol that other rows of the table do not share.
OTHER = "§"


def of_protocol(texts: Sequence[str], protocols: Sequence[str]) -> list[str]:
    """`texts`, with a mark behind those that are of another protocol than `full`."""
    rows = zip(texts, protocols, strict=True)
    return [text if name == "full" or text == ABSENT else f"{text} {OTHER}" for text, name in rows]


def protocol_note(protocols: Iterable[str]) -> str:
    """What the mark of `of_protocol` means, if some row has it."""
    others = sorted(set(protocols) - {"full"})
    return (
        f"{OTHER} Of {' and '.join(others)}: other targets, with other context, so comparable with "
        f"rows of the same protocol alone."
        if others
        else ""
    )


def contexts(c: Collected) -> dict[str, str]:
    """How many tokens before it a target of each protocol is predicted from."""
    length = c.study["windows"]["length"]
    least = c.study["measurement"]["min_context"]
    windows = f"1 to {length}"
    return {"full": f"{least} to {length}", "paper": windows, "release-figure": windows}


def wide(frame: pd.DataFrame, text: str, column: str, keys: Sequence[str]) -> pd.DataFrame:
    """One row a combination of `keys` in order of appearance, one column a value of `column`."""
    table = frame.pivot(index=list(keys), columns=column, values=text)
    order = pd.MultiIndex.from_frame(frame[list(keys)].drop_duplicates())
    return table.reindex(order).fillna(ABSENT)


def _said(key: str, value: object) -> str:
    """A setting for reading: `carry 0.9`, `inject`."""
    word = key.replace("_", " ")
    return word if value is True else f"{word} {value}"


def controls(c: Collected) -> dict[str, tuple[str, str, str]]:
    """Loss placement, readout and further controls of each cell, for reading."""
    shared = c.study["model"].get("init_std")
    found = {}
    for cell in c.study["cells"]:
        extra = []
        if penalty := cell.get("penalty"):
            target = f" to {penalty['target']:g}" if penalty.get("target") else ""
            extra.append(f"penalty {penalty['weight']:g}{target}")
        if (norm := cell.get("interloop", "none")) != "none":
            reset = f"reset to {cell.get('interloop_scale') or 0:g}"
            rules = {"rms-gain": "inter-loop norm with a gain", "reset": reset}
            extra.append(rules.get(norm, "inter-loop norm"))
        extra += [_said(key, value) for key, value in cell.get("model", {}).items()]
        extra += [_said(key, cell[key]) for key in ("weights", "z_loss", "random_loops")
                  if cell.get(key)]  # fmt: skip
        if (std := cell.get("init_std") or shared) is not None:
            extra.append(f"init {std}")
        exponent = f" {cell['alpha']:g}" if cell.get("alpha") is not None else ""
        exponent += ", learned" if cell.get("learned_alpha") else ""
        found[cell["name"]] = (cell["loss"], cell["readout"] + exponent, ", ".join(extra) or ABSENT)
    return found
