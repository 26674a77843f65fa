"""Tables: each a function of the collected results, as CSV, Markdown and LaTeX (booktabs).

    write(name, collected, out)     -> out/name.csv, out/name.md, out/name.tex
    caption(name, collected)        -> the note that stands under the table

The CSV has every number in full. Markdown and LaTeX show the same numbers, rounded by one rule
(`number`), and escaped after rounding, once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from blindspot.catalogue import TABLES
from blindspot.collected import Collected
from blindspot.errors import BlindspotError
from blindspot.files import atomic_path, write_text
from blindspot.stats import over_seeds
from blindspot.typeset import ABSENT, latex, markdown, number, spread


@dataclass
class Table:
    """`data` for the CSV; `shown` has the same numbers as text, one column a header. A rule is
    drawn where the value of its first column changes."""

    data: pd.DataFrame
    shown: pd.DataFrame
    note: str = ""


def write(name: str, collected: Path, out: Path) -> None:
    """Write table `name` of the folder that `collect` wrote in three formats."""
    if name not in MADE:
        raise BlindspotError(f"no table {name!r}; there are {', '.join(MADE)}")
    table = MADE[name](Collected(collected))
    note = " ".join(part for part in (caption(name, collected), table.note) if part)
    with atomic_path(out / f"{name}.csv") as temporary:
        table.data.to_csv(temporary, index=False, lineterminator="\n")
    write_text(out / f"{name}.md", markdown(table.shown, note))
    write_text(out / f"{name}.tex", latex(table.shown, note))


def caption(name: str, collected: Path) -> str:
    """What the table says; study, corpus, seeds, interval, protocol; what is missing."""
    item, c = TABLES[name], Collected(collected)
    timed = "throughput" in item.reads
    parts = [item.caption, c.about()]
    if timed:
        parts.append(c.machine())
    else:
        parts += [c.seeds(), f"Means over seeds. {c.interval()}", c.scored("exits" in item.reads)]
    parts.append(c.untimed() if timed else c.missing())
    return " ".join(part for part in parts if part)


# --- the tables ------------------------------------------------------------------------------


def _main(c: Collected) -> Table:
    e, n = c.frame("exits"), c.frame("norms")
    e = e[(e["split"] == "validation") & (e["protocol"] == "full") & (e["k"] == c.loops)]
    n = n[(n["split"] == "validation") & (n["k"] == c.loops)].rename(columns={"l2_mean": "norm"})
    keys = ["size", "cell"]
    both = over_seeds(e, keys, ["ppl"]).merge(
        over_seeds(n, keys, ["norm"]).drop(columns="seeds"), on=keys, validate="one_to_one"
    )
    # Every cell of the study has its row: one that failed or is not done must not just be absent.
    grid = pd.MultiIndex.from_product([[s["name"] for s in c.study["sizes"]], c.cells], names=keys)
    both = both.set_index(keys).reindex(grid).reset_index()
    raw = both[both["cell"] == "perloop-raw"].set_index("size")["norm"]
    data = pd.DataFrame(
        {
            "size": both["size"],
            "cell": both["cell"],
            "seeds": both["seeds"].fillna(0).astype(int),
            "protocol": "full",
            "ppl": both["ppl"],
            "ppl_ci": both["ppl_ci"],
            "norm": both["norm"],
            "norm_ci": both["norm_ci"],
            "norm_to_raw": both["norm"] / both["size"].map(raw),
        }
    )
    shown = pd.DataFrame(
        {
            "Size": data["size"],
            "Cell": data["cell"],
            "Seeds": data["seeds"].map(str),
            "PPL": [spread(*x) for x in zip(data["ppl"], data["ppl_ci"], strict=True)],
            "Norm": [spread(*x) for x in zip(data["norm"], data["norm_ci"], strict=True)],
            "Norm / raw": data["norm_to_raw"].map(number),
        }
    )
    return Table(data, shown)


def _depth(c: Collected) -> Table:
    values = ["ce", "ppl", "word_ppl", "bits_per_byte"]
    keys = ["size", "cell", "k", "split", "protocol"]
    mean = over_seeds(c.frame("exits"), keys, values)
    data = mean[[*keys, "seeds", *(f"{v}{end}" for v in values for end in ("", "_ci"))]]
    lead = ["size", "split", "protocol", "cell"]
    text = mean.assign(
        text=[spread(*x) for x in zip(mean["ppl"], mean["ppl_ci"], strict=True)],
        split=pd.Categorical(mean["split"], ["validation", "test"]),
        size=pd.Categorical(mean["size"], c.sizes),
        cell=pd.Categorical(mean["cell"], c.cells),
    )
    wide = text.pivot(index=lead, columns="k", values="text").sort_index().fillna(ABSENT)
    # A dagger on depths that no run was trained for: they are extrapolation (L-05).
    wide.columns = [f"k = {k}" + ("†" if k > c.loops else "") for k in wide.columns]
    shown = (
        wide.reset_index().astype(str).rename(columns={name: name.capitalize() for name in lead})
    )
    deeper = any("†" in name for name in wide.columns)
    note = f"† Deeper than the {c.loops} loops of training: extrapolation." if deeper else ""
    return Table(data, shown, note)


def _norms(c: Collected) -> Table:
    n = c.frame("norms")
    keys = ["size", "cell", "split", "k"]
    values = ["l2_mean", "l2_p50", "l2_p99", "l2_max", "rms_mean"]
    mean = over_seeds(n, keys, values)
    before = mean.groupby(keys[:3], sort=False)["l2_mean"].shift()
    data = mean[[*keys, "seeds", "l2_mean", "l2_mean_ci", *values[1:]]].assign(
        growth=mean["l2_mean"] - before
    )
    rows = []
    for (size, cell, split), part in data.groupby(keys[:3], sort=False):
        by_k = part.set_index("k")["l2_mean"]
        first, rest = by_k[1] - by_k[0], by_k[c.loops] - by_k[1]
        share = first / (first + rest) if min(first, rest) >= 0 and first + rest > 0 else np.nan
        rows.append(
            {"Size": size, "Cell": cell, "Split": split}
            | {f"H_{k}": number(by_k[k]) for k in range(c.loops + 1)}
            | {"Loop 1": number(first), f"Loops 2–{c.loops}": number(rest)}
            | {"Share of loop 1": ABSENT if np.isnan(share) else f"{100 * share:.0f}%"}
        )
    return Table(data, pd.DataFrame(rows), "Intervals are in the CSV.")


def _throughput(c: Collected) -> Table:
    t = c.frame("throughput")
    t = t.drop(columns="cell").drop_duplicates(["size", "architecture", "k"], ignore_index=True)
    last = t[t["k"] == c.loops].set_index(["size", "architecture"])["tokens_per_s"]
    full = pd.MultiIndex.from_frame(t[["size", "architecture"]]).map(last.to_dict())
    data = t.assign(speedup=t["tokens_per_s"] / np.asarray(full, dtype=float))
    shown = pd.DataFrame(
        {
            "Size": data["size"],
            "Architecture": data["architecture"],
            "k": data["k"].map(str),
            "Tokens/s": data["tokens_per_s"].map(number),
            "Quartiles": [
                f"{number(a)} – {number(b)}"
                for a, b in zip(data["tokens_per_s_q25"], data["tokens_per_s_q75"], strict=True)
            ],
            "Speed-up": [f"{number(x)}×" for x in data["speedup"]],
            "MFLOPs/token": (data["flops_per_token"] / 1e6).map(number),
        }
    )
    return Table(data, shown, _timing_note(t))


def _timing_note(t: pd.DataFrame) -> str:
    """How it was timed, and where architectures that do the same work differ beyond the noise."""
    if t.empty:
        return ""
    one = t.iloc[0]
    text = (
        f"Batch {one['batch']} x {one['context']} tokens, {one['repeats']} timings, "
        f"{one['threads']} CPU thread{'s' if one['threads'] > 1 else ''}."
    )
    odd = []
    for (size, k), group in t.groupby(["size", "k"], sort=False):
        if group["tokens_per_s_q25"].max() > group["tokens_per_s_q75"].min():
            gap = group["tokens_per_s"].max() / group["tokens_per_s"].min() - 1
            odd.append(f"{size} k = {k} ({gap:.1%})")
    if odd:
        text += f" Architectures differ by more than their quartiles at: {', '.join(odd)}."
    return text


MADE: dict[str, Callable[[Collected], Table]] = {
    "main": _main,
    "depth": _depth,
    "norms": _norms,
    "throughput": _throughput,
}
