"""studies/small.yaml and what it rests on, against the files in results/."""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from blindspot.config.study import Study

ROOT = Path(__file__).parents[1]
RATES = ROOT / "results/small-pilot/rates.csv"


def test_rates_are_those_that_the_pilots_chose() -> None:
    """docs/criteria.md, by hand: the lowest mean over two seeds, the lower rate within 0.005."""
    found: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in csv.DictReader(RATES.open()):
        found[row["cell"]][float(row["rate"])].append(float(row["ce"]))
    assert all(len(seeds) == 2 for rates in found.values() for seeds in rates.values())
    study = Study.load(ROOT / "config.yaml", [ROOT / "studies/small.yaml"])
    assert found.keys() == study.config.cells.keys()
    chosen = {}
    for cell, rates in found.items():
        mean = {rate: fmean(seeds) for rate, seeds in rates.items()}
        chosen[cell] = min(rate for rate in mean if mean[rate] <= min(mean.values()) + 0.005)
    assert chosen == {run.cell: run.spec.training.learning_rate for run in study.runs}
    grid = {5e-4, 1e-3, 2e-3, 4e-3}
    common = min(grid, key=lambda rate: fmean(fmean(rates[rate]) for rates in found.values()))
    assert study.config.training.learning_rate == common
    # No seed of a verdict has chosen a rate.
    pilots = {int(row["seed"]) for row in csv.DictReader(RATES.open())}
    assert pilots == {7, 11} and not pilots & {run.seed for run in study.runs}
