"""The collected frames as the ledger's quantities ask for them (quantities.py): of one split and
protocol, at trained loops, by size and cell."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from blindspot.collect.bootstrap import Blocks
from blindspot.collect.collected import Collected
from blindspot.publish.matched import points_of_training
from blindspot.publish.speeds import pool

#: One number a seed.
Values = dict[int, float]


def without_eps(c: Collected) -> pd.DataFrame:
    """`cos_abs_mean` of each run and normalized depth with the readout's eps at 0: over tokens, as
    gradients.csv has it with eps. gradient_eps.csv has it by bucket of the norm.

    `eps_share`, of RMSNorm readouts: mean over tokens of eps / (v + eps), v = |H|^2 / d. That part
    of a raw readout's radial gradient is left by eps. No v of single tokens is kept: it is that of
    the middle of each bucket, half a decade of norms wide, so at most a factor of sqrt(10) from a
    token's own, and so is the share."""
    # Of raw readouts alone the file has no rows, and so no types.
    numbers = ["eps", "norm_low", "norm_high", "tokens", "cos_abs_mean_eps0"]
    eps = c.frame("gradient_eps").astype(dict.fromkeys(numbers, "float64"))
    keys = ["size", "cell", "seed", "k"]
    width = c.frame("gradients").groupby("size")["width"].first()
    v = eps["norm_low"] * eps["norm_high"] / eps["size"].map(width).astype("float64")
    layernorm = {cell["name"] for cell in c.study["cells"] if cell["readout"] == "layernorm"}
    share = (eps["eps"] / (v + eps["eps"])).mask(eps["cell"].isin(layernorm))
    weighted = eps[keys].assign(
        cos_abs_mean=eps["cos_abs_mean_eps0"] * eps["tokens"], eps_share=share * eps["tokens"]
    )
    total = weighted.groupby(keys)[["cos_abs_mean", "eps_share"]].sum(min_count=1)
    return total.div(eps.groupby(keys)["tokens"].sum(), axis=0).reset_index()


class Frames:
    """The collected frames, narrowed to what quantities ask for; exits are of one protocol."""

    def __init__(self, collected: Collected, protocol: str = "full") -> None:
        self.collected = collected
        self.protocol = protocol
        #: What `of` has given: a hundred claims ask for the same dozen cells.
        self._found: dict[tuple[str, ...], pd.DataFrame] = {}

    def loops(self, cells: Sequence[str]) -> int:
        """The K of the first of the cells; of the study where it has no such cell."""
        return self.collected.loops_of.get(cells[0], self.collected.deepest)

    def study(self, cells: Sequence[str]) -> dict[str, Any]:
        """What study.json says, with the K of these cells."""
        return self.collected.study | {"loops": self.loops(cells)}

    @cached_property
    def exits(self) -> pd.DataFrame:
        return self._exits("validation")

    @cached_property
    def test_exits(self) -> pd.DataFrame:
        return self._exits("test")

    def _exits(self, split: str) -> pd.DataFrame:
        e = self.collected.frame("exits")
        chosen = (e["split"] == split) & (e["protocol"] == self.protocol)
        return self.collected.trained(e[chosen]).set_index(["size", "cell"]).sort_index()

    @cached_property
    def norms(self) -> pd.DataFrame:
        n = self.collected.frame("norms")
        n = self.collected.trained(n[n["split"] == "validation"])
        return n.set_index(["size", "cell"]).sort_index()

    @cached_property
    def gradients(self) -> pd.DataFrame:
        """|cos| of the immediate CE at trained exits, in float64."""
        g = self.collected.frame("gradients")
        chosen = (g["source"] == "ce") & (g["path"] == "immediate") & (g["dtype"] == "float64")
        g = g[chosen & (g["trained"] == 1)]
        return g.set_index(["size", "cell"]).sort_index()

    @cached_property
    def without_eps(self) -> pd.DataFrame:
        """|cos| as in `gradients`, of readouts that normalize, with their eps set to 0."""
        return without_eps(self.collected).set_index(["size", "cell"]).sort_index()

    @cached_property
    def updates(self) -> pd.DataFrame:
        """Of loops 2 to K."""
        u = self.collected.frame("updates")
        u = u[(u["k"] >= 1) & (u["k"] < self.collected.own(u))]
        return u.set_index(["size", "cell"]).sort_index()

    @cached_property
    def clamp(self) -> pd.DataFrame:
        c = self.collected.frame("clamp")
        c = self.collected.last(c[c["intervention"] == "norm"])
        return c.set_index(["size", "cell"]).sort_index()

    @cached_property
    def halting(self) -> pd.DataFrame:
        h = self.collected.frame("halting")
        h = h[(h["score"] == "margin") & (h["variant"] == "oracle")]
        return h.set_index(["size", "cell"]).sort_index()

    @cached_property
    def collapse(self) -> pd.DataFrame:
        c = self.collected.frame("collapse")
        c = self.collected.last(c[c["split"] == "validation"])
        return c.set_index(["size", "cell"]).sort_index()

    @cached_property
    def validation(self) -> pd.DataFrame:
        """The training log's validation points, at each run's own K."""
        t = points_of_training(self.collected)
        return t.set_index(["size", "cell"]).sort_index()

    @cached_property
    def log_spread(self) -> pd.DataFrame:
        """`sd`, standard deviation over tokens of ln |H_K|, of each run: from the counts of
        norm_hist.csv at the middles of its bins, which are 4.6 % wide; tokens of norm 0 apart."""
        h = self.collected.frame("norm_hist")
        h = self.collected.last(h[(h["split"] == "validation") & (h["low"] > 0)])
        keys = ["size", "cell", "seed"]
        x = (np.log(h["low"]) + np.log(h["high"])) / 2
        h = h.assign(n=h["count"], x=x * h["count"], xx=x**2 * h["count"])
        total = h.groupby(keys, sort=False)[["n", "x", "xx"]].sum()
        mean = total["x"] / total["n"]
        variance = (total["xx"] / total["n"] - mean**2).clip(lower=0)
        sd = np.sqrt(variance * total["n"] / (total["n"] - 1).clip(lower=1))
        return sd.rename("sd").reset_index().set_index(["size", "cell"]).sort_index()

    @cached_property
    def scale_response(self) -> pd.DataFrame:
        r = self.collected.last(self.collected.frame("scale_response"))
        return r.set_index(["size", "cell"]).sort_index()

    @cached_property
    def lemma2_update(self) -> pd.DataFrame:
        u = self.collected.last(self.collected.frame("lemma2_update"))
        return u.set_index(["size", "cell"]).sort_index()

    @cached_property
    def lemma2_slope(self) -> pd.DataFrame:
        u = self.collected.last(self.collected.frame("lemma2_slope"))
        return u.set_index(["size", "cell"]).sort_index()

    def blocks(self, size: str, cell: str, k: int) -> dict[int, Blocks]:
        """Blocks of windows of the test split at exit k, by seed."""
        rows = self._rows("windows", size, cell)
        return {int(str(seed)): Blocks.of(own, k) for seed, own in rows.groupby("seed")}

    @cached_property
    def windows(self) -> pd.DataFrame:
        return self.collected.frame("windows").set_index(["size", "cell"]).sort_index()

    def throughput(self, size: str, cells: Sequence[str]) -> pd.DataFrame:
        """Speeds of these cells at a size, pooled over their own architectures alone: what another
        cell was timed at moves none of them."""
        t = self.collected.frame("throughput")
        t = t[(t["size"] == size) & t["cell"].isin(list(cells))]
        return self.collected.trained(pool(t)) if len(t) else t

    def _rows(self, name: str, size: str, cell: str) -> pd.DataFrame:
        """Those of a frame; none where it has none."""
        frame: pd.DataFrame = getattr(self, name)
        if (size, cell) not in frame.index:
            return pd.DataFrame()
        return frame.loc[(size, cell) : (size, cell)]

    def of(self, name: str, size: str, cell: str, value: str) -> pd.DataFrame:
        """`value` with one row a seed and one column a k; no rows where there is nothing."""
        asked = (name, size, cell, value)
        if asked not in self._found:
            rows = self._rows(name, size, cell)
            empty = rows.empty
            self._found[asked] = (
                rows if empty else rows.pivot(index="seed", columns="k", values=value)
            )
        return self._found[asked]

    def single(self, name: str, size: str, cell: str, value: str) -> Values:
        """`value` by seed, of a frame with one row a seed."""
        rows = self._rows(name, size, cell)
        if rows.empty:
            return {}
        rows = rows.dropna(subset=[value])
        return {int(s): float(v) for s, v in zip(rows["seed"], rows[value], strict=True)}


def by_seed(series: pd.Series) -> Values:
    """A series indexed by seed, without what is missing."""
    return {int(str(seed)): float(value) for seed, value in series.dropna().items()}


def pick(chosen: Callable[..., float], *parts: Values) -> Values:
    """By seed, `chosen` (min, say) of the parts' values, where all parts have that seed."""
    common = set.intersection(*(set(part) for part in parts))
    return {seed: chosen(part[seed] for part in parts) for seed in sorted(common)}


def minus(a: Values, b: Values) -> Values:
    """Differences of the seeds that both have."""
    return {seed: a[seed] - b[seed] for seed in sorted(set(a) & set(b))}


def over(a: Values, b: Values) -> Values:
    """Ratios of the seeds that both have."""
    return {seed: a[seed] / b[seed] for seed in sorted(set(a) & set(b))}
