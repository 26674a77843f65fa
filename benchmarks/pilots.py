"""Which learning rate suits each cell: pilots, and what docs/criteria.md makes of them.

    python benchmarks/pilots.py results/small-pilot [--out rates.csv]

Reads the trajectories of finished pilots. Writes one row a cell, rate and seed: the validation
cross-entropy at the last step, of the best trained exit (of K where the loss is terminal). Prints
the rate of each cell, the common one, and what each primary quantity's spread over the pilot seeds
promises for five: t(0.975, 4) SD / sqrt(5).
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t

#: Nats within which the lower of two rates is taken.
TIE = 0.005


def read(results: Path) -> pd.DataFrame:
    """One row a run: cell (without the rate in its name), rate, seed and what is judged of it."""
    rows = []
    for path in sorted(results.glob("runs/*/*/*/run.json")):
        record = json.loads(path.read_text())
        spec = record["spec"]
        log = pd.read_csv(path.with_name("trajectory.csv"))
        log = log[log["split"] == "validation"]
        rows.append(
            {
                "cell": path.parent.parent.name.partition("-learning-rate")[0],
                "rate": spec["training"]["learning_rate"],
                "seed": spec["seed"],
                "run": record["name"],
                **judged(log, spec["model"]["loops"], spec["objective"]["loss"] == "terminal"),
            }
        )
    return pd.DataFrame(rows).sort_values(["cell", "rate", "seed"], ignore_index=True)


def judged(log: pd.DataFrame, K: int, terminal: bool) -> dict[str, Any]:
    """The best exit and its CE, the gain by depth, and how |H_K| grows over loops and steps."""
    last = log[log["step"] == log["step"].max()].set_index("k")
    ce, norm = last["ce"].dropna(), last["norm_mean"]
    best = K if terminal else int(ce.idxmin())
    half = log[(log["k"] == K) & (log["step"] >= log["step"].max() / 2)]
    slope = np.polyfit(np.log(half["step"]), np.log(half["norm_mean"]), 1)[0]
    return {
        "best_k": best,
        "ce": ce[best],
        "ce_last": ce[K],
        "gain": ce[1] - ce[K],
        "slope": slope,
        "growth": (norm[K] - norm[1]) / norm[K],
        "norm": norm[K],
    }


def choose(pilots: pd.DataFrame) -> tuple[dict[str, float], float]:
    """The rate of each cell, and the common one."""
    mean = pilots.groupby(["cell", "rate"])["ce"].agg(lambda x: x.mean(skipna=False)).unstack()
    # Common to all cells: rates that were tried for some alone cannot be it.
    common = mean.loc[:, mean.notna().all()].mean()
    return {cell: lowest(ce.dropna()) for cell, ce in mean.iterrows()}, lowest(common)


def lowest(ce: pd.Series) -> float:
    """The lowest rate whose CE is within `TIE` of the least."""
    return float(min(rate for rate, value in ce.items() if value <= ce.min() + TIE))


def promised(pilots: pd.DataFrame, rates: dict[str, float]) -> dict[str, float]:
    """Half-widths of a 95 % interval over five seeds, by primary claim."""
    own = pilots[pilots["rate"] == pilots["cell"].map(rates)].set_index(["cell", "seed"])

    def of(cell: str, column: str) -> pd.Series:
        return own.loc[cell][column]

    gain = of("perloop-rms", "gain")
    values = {
        "runaway": of("perloop-rms", "slope"),
        "growth-recurrence": of("perloop-rms", "growth"),
        "k-invariance": gain,
        "depth-raw": of("perloop-raw", "gain") - gain,
        "depth-penalty": of("perloop-rms-penalty", "gain") - gain,
        "equal-flops-raw": of("perloop-rms", "ce_last") - of("perloop-raw", "ce_last"),
        "dead-exits": of("terminal-rms", "gain"),
    }
    return {name: t.ppf(0.975, 4) * x.std() / np.sqrt(5) for name, x in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    pilots = read(args.results)
    out = args.out or args.results / "rates.csv"
    pilots.to_csv(out, index=False, lineterminator="\n", float_format="%.6g")
    rates, common = choose(pilots)
    for cell, rate in rates.items():
        print(f"{cell:32} {rate:g}")
    print(f"{'all':32} {common:g}")
    for name, half in promised(pilots, rates).items():
        print(f"{name:32} +-{half:.4f}")


if __name__ == "__main__":
    main()
