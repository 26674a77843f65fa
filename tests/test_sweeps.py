"""Sweeps: values of a key become cells with readable names, and a table and a figure show them."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import synthetic
from blindspot.collect.collect import collect
from blindspot.collect.collected import Collected
from blindspot.config.study import Study
from blindspot.errors import BlindspotError
from blindspot.publish import catalogue, figures, style, sweeps, tables
from blindspot.publish.figures.sweep import figure as sweep_figure
from blindspot.publish.tables.sweep import table as sweep_table
from toys import ROOT

LOOPS = {"cells": ["perloop-rms", "perloop-raw"], "over": {"loops": [1, 2, 4, 6]}}
RATE = {"cells": ["perloop-rms"], "over": {"training.learning_rate": [1e-4, 3e-4, 1e-3]}}


def swept(folder: Path = Path("results"), **named: object) -> Study:
    base = synthetic.make_study(folder, ["44m"], LOOPS["cells"], [42, 101], 200)
    return Study.of(base.config.model_dump() | {"sweeps": named})


def test_values_become_cells_with_readable_names():
    study = swept(loops=LOOPS, rate=RATE)
    assert list(study.config.cells) == [
        "perloop-rms", "perloop-raw",
        "perloop-rms-loops1", "perloop-rms-loops2", "perloop-rms-loops6",
        "perloop-raw-loops1", "perloop-raw-loops2", "perloop-raw-loops6",
        "perloop-rms-learning-rate0.0001", "perloop-rms-learning-rate0.001",
    ]  # fmt: skip
    specs = {run.cell: run.spec for run in study.runs}
    base = specs["perloop-rms"]
    assert specs["perloop-rms-loops6"].model == base.model.model_copy(update={"loops": 6})
    rate = specs["perloop-rms-learning-rate0.001"]
    assert rate.training == base.training.model_copy(update={"learning_rate": 1e-3})
    # The cell's own value is the cell itself: nothing is trained twice, and no name moves.
    assert len({spec.hash for spec in specs.values()}) == len(specs) == 10
    assert {run.name for run in swept().runs} < {run.name for run in study.runs}
    # What is expanded already stays as it is.
    assert Study.of(study.config.model_dump()).config == study.config


def test_several_keys_are_their_product():
    over = {"loops": [2, 4], "model.dropout.rate": [0.0, 0.1], "penalty.weight": [0.01]}
    penalty = {"loss": "per-loop", "readout": "rms", "penalty": synthetic.PENALTY}
    base = synthetic.make_study(Path("results"), ["44m"]).config.model_dump()
    named = {"both": {"cells": ["pen"], "over": over}}
    study = Study.of(base | {"cells": {"pen": penalty}, "sweeps": named})
    rates = {run.cell: run.spec.model.dropout.rate for run in study.runs}
    assert rates == {
        "pen": 0.1,
        "pen-loops2-rate0-weight0.01": 0.0,
        "pen-loops2-rate0.1-weight0.01": 0.1,
        "pen-loops4-rate0-weight0.01": 0.0,
    }


@pytest.mark.parametrize(
    ("sweep", "fault"),
    [
        ({"cells": ["no"], "over": {"loops": [1]}}, "sweeps.x.cells: the study has no cell no"),
        ({"cells": ["perloop-rms"], "over": {"lops": [1]}}, "sweeps.x.over.lops: unknown key"),
        ({"cells": ["perloop-rms"], "over": {"loops": [0]}}, r"sweeps.x.over.loops: .*got 0"),
        ({"cells": ["perloop-rms"], "over": {"training.lr": [1]}}, r"training.lr: unknown key"),
        ({"cells": ["perloop-rms"], "over": {"loops": []}}, r"sweeps.x.over.loops: "),
        ({"cells": ["perloop-rms"], "over": {"penalty.weight": [1]}}, "has no map penalty"),
        ({"cells": [], "over": {"loops": [1]}}, "sweeps.x.cells: "),
    ],
)
def test_faults_name_sweep_and_key(sweep, fault):
    with pytest.raises(BlindspotError, match=fault):
        swept(x=sweep)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CE falls with K in raw cells and stays in the others; the rate 1e-3 is not run."""
    folder = tmp_path_factory.mktemp("swept")
    study = swept(folder, loops=LOOPS, rate=RATE)
    ppl, norm = {}, {}
    for cell in study.config.cells:
        loops = study.config.cells[cell].shared(study.config.model).loops
        fall = 0.1 if "raw" in cell else 0.0
        ppl[cell] = [60 * math.exp(-fall * k) for k in range(loops)]
        norm[cell] = [14.0, *(5.0 if "raw" in cell else 400.0 * k for k in range(1, loops + 1))]
    speed = [9000.0 / k for k in range(1, 7)]
    values = replace(synthetic.TOY, ppl=ppl, norm=norm, speed=speed)
    synthetic.write(study, values, skip=lambda run: run.cell.endswith("rate0.001"))
    collect(study, folder / "collected")
    return folder / "collected"


def test_table_against_the_files(made: Path, tmp_path: Path):
    tables.write("sweep-loops", made, tmp_path)
    table = pd.read_csv(tmp_path / "sweep-loops.csv")
    assert list(table["loops"]) == [1, 2, 4, 6] * 2 and list(table["own"]) == [
        False, False, True, False
    ] * 2  # fmt: skip
    c = Collected(made)
    e, n, u = c.exits(), c.frame("norms"), c.frame("updates")
    for _, row in table.iterrows():
        own = row["cell"], row["loops"]
        last = e[(e["cell"] == own[0]) & (e["k"] == own[1])]["ce"]
        first = e[(e["cell"] == own[0]) & (e["k"] == 1)]["ce"]
        assert row["ce"] == pytest.approx(last.mean())
        assert row["gain"] == pytest.approx(first.mean() - last.mean(), abs=1e-12)
        norm = n[(n["cell"] == own[0]) & (n["k"] == own[1])]["l2_mean"]
        assert row["norm"] == pytest.approx(math.exp(np.log(norm).mean()))
        angle = u[(u["cell"] == own[0]) & (u["k"] == own[1] - 1)]["angle_mean"]
        assert row["angle"] == pytest.approx(math.exp(np.log(angle).mean()))
    text = (tmp_path / "sweep-loops.md").read_text()
    assert text.count("| 4 (own) |") == 2 and "| 6 |" in text
    # A planned cell that is not run has its row.
    tables.write("sweep-rate", made, tmp_path)
    rate = pd.read_csv(tmp_path / "sweep-rate.csv")
    assert list(rate["training.learning_rate"]) == [1e-4, 3e-4, 1e-3]
    assert list(rate["seeds"]) == [2, 2, 0] and rate["ce"].isna().tolist() == [False, False, True]
    assert "rate0.001 at 44m (all seeds: not trained)" in tables.caption("sweep-rate", made)


def test_figure_has_a_line_a_swept_cell_and_marks_its_own_value(made: Path):
    c = Collected(made)
    with style.theme():
        drawn = sweep_figure(c, "loops")
    table = sweep_table(c, "loops").data.set_index(["of", "loops"])
    for row, name in enumerate(sweeps.VALUES):
        ax = drawn.axes[row, 0]
        for cell in LOOPS["cells"]:
            look = style.KNOWN[cell]
            (line,) = [
                x
                for x in ax.get_lines()
                if (x.get_color(), x.get_marker()) == (look.color, look.marker)
            ]
            assert line.get_xdata().tolist() == [1, 2, 4, 6]
            assert line.get_ydata() == pytest.approx(table.loc[cell, name].to_numpy())
        rings = [x for x in ax.get_lines() if x.get_markerfacecolor() == "none"]
        assert [x.get_xdata().tolist() for x in rings] == [[4, 4]]
        assert [t.get_text() for t in ax.get_xticklabels()] == ["1", "2", "4", "6"]
    assert drawn.axes[-1, 0].get_xlabel() == "loops"
    legend = [t.get_text() for t in drawn.figure.legends[0].get_texts()]
    assert legend == [*LOOPS["cells"], "the cell's own value"]
    assert "against the value that was swept" in figures.caption("sweep-loops", made)


def test_a_study_has_a_table_and_a_figure_of_each_sweep(made: Path):
    config = swept(loops=LOOPS, rate=RATE).config
    for items in (catalogue.TABLES, catalogue.FIGURES):
        found = catalogue.of(items, config)
        assert {"sweep-loops", "sweep-rate"} < set(found)
        assert set(catalogue.of(items, swept().config)) == set(found) - {
            "sweep-loops",
            "sweep-rate",
        }
    with pytest.raises(BlindspotError, match="no sweep 'other' in this study; it has loops, rate"):
        tables.write("sweep-other", made, made)
    # All other tables and figures have the swept cells as well.
    with style.theme():
        for name in set(figures.DRAWN) - {"initialization"}:
            figures.DRAWN[name](Collected(made))
    for name in tables.MADE:
        tables.MADE[name](Collected(made))


def test_a_picture_of_too_many_cells_leaves_swept_ones_to_their_own_figures(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def series(name: str) -> set[str]:
        figures.draw(name, made, tmp_path)
        drawn = pd.read_csv(tmp_path / f"{name}.csv")["series"]
        return {label.partition(":")[0] for label in drawn}

    every = series("norm-by-loop")
    assert "cells; those of sweeps" not in figures.caption("norm-by-loop", made)
    monkeypatch.setattr(figures, "LEGIBLE", 3)
    config = swept(loops=LOOPS, rate=RATE).config
    own = {*swept().config.cells}
    assert series("norm-by-loop") == every & own < every
    caption = figures.caption("norm-by-loop", made)
    assert f"Drawn are {len(own)} of {len(config.cells)} cells; those of sweeps" in caption
    # What is not drawn is not missing from the picture.
    assert "rate0.001" in tables.caption("norms", made) and "rate0.001" not in caption
    assert len(series("sweep-loops") & {*LOOPS["cells"]}) == len(LOOPS["cells"])


def test_the_demo_of_sweeps():
    study = Study.load(ROOT / "config.yaml", [ROOT / "studies/sweep-demo.yaml"])
    assert study.config.study == "sweep-demo" and len(study.runs) == 2 * (2 + 6 + 4)
    loops = {run.spec.model.loops for run in study.runs}
    rates = {run.spec.training.learning_rate for run in study.runs}
    assert loops == {1, 2, 4, 8} and rates == {1e-3, 3e-3, 9e-3}
