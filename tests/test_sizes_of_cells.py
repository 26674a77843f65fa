"""A size may have cells of its own, and partners of two initializations each a rate of its own:
nothing that is not planned is shown as missing."""

import json
from pathlib import Path

import pandas as pd
import pytest

import synthetic
from blindspot.collect.collect import collect
from blindspot.collect.collected import Collected
from blindspot.publish import claims, figures, style, tables
from blindspot.publish.item import two_initializations

SMALL = {
    "perloop-rms-std0.02": {"loss": "per-loop", "readout": "rms", "init_std": 0.02,
                            "training": {"learning_rate": 1e-3}},
}  # fmt: skip
CELLS = ["terminal-rms", "perloop-rms", "perloop-raw", *SMALL]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four cells at 44m, two of them at 129m; one partner with a learning rate of its own."""
    folder = tmp_path_factory.mktemp("sizes")
    base = synthetic.make_study(folder, cells=CELLS, seeds=[42, 101], steps=200)
    values = base.config.model_dump()
    values["cells"] |= SMALL
    values["sizes"]["129m"]["cells"] = ["perloop-rms", "perloop-raw"]
    study = type(base).of(values)
    assert two_initializations(study.config)
    synthetic.write(study, synthetic.TOY)
    collect(study, folder / "collected")
    return folder / "collected"


def test_study_json_says_which_cells_a_size_has(made: Path):
    study = json.loads((made / "study.json").read_text())
    found = {size["name"]: [*size["planned"]] for size in study["sizes"]}
    assert found == {"44m": CELLS, "129m": ["perloop-rms", "perloop-raw"]}
    assert study["missing"] == []
    c = Collected(made)
    assert c.about().endswith("At 129m only perloop-rms, perloop-raw.") and not c.missing()
    # A study.json of before has nothing there: all cells at all sizes.
    for size in c.study["sizes"]:
        size.pop("planned")
    del c.planned
    assert c.cells_at("129m") == CELLS


def test_tables_have_no_rows_of_cells_that_are_not_planned(made: Path, tmp_path: Path):
    for name in tables.MADE:
        tables.write(name, made, tmp_path)
        table = pd.read_csv(tmp_path / f"{name}.csv")
        if "cell" in table:
            pairs = table[["size", "cell"]].dropna().drop_duplicates()
            odd = pairs[(pairs["size"] == "129m") & ~pairs["cell"].isin(CELLS[1:3])]
            assert odd.empty, name
    text = (tmp_path / "main.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| 129m")]
    assert len(rows) == 2 and all("| 0 |" not in row for row in rows)


def test_every_figure_is_drawn(made: Path, tmp_path: Path):
    for name in figures.DRAWN:
        figures.draw(name, made, tmp_path)
        assert (tmp_path / f"{name}.png").stat().st_size > 1000, name


def test_a_figure_says_that_a_cell_is_not_at_a_size(made: Path):
    with style.theme():
        drawn = figures.DRAWN["norm-by-loop"](Collected(made))
    for column, count in ((0, 0), (1, 2)):
        said = [t.get_text() for t in drawn.axes[1, column].texts]
        assert said.count("not at this size") == count


def test_the_ledger_has_no_row_of_cells_that_are_not_planned_at_a_size(made: Path):
    rows = claims.evaluate(Collected(made))
    for claim, size in zip(rows["claim"], rows["size"], strict=True):
        if size == "129m":
            named = [c for c in claims.claims()[claim].cells if c in CELLS]
            assert set(named) <= {"perloop-rms", "perloop-raw"}, claim
    assert not rows["note"].str.contains("terminal-rms failed").any()


def test_partners_may_have_a_learning_rate_of_their_own(made: Path, tmp_path: Path):
    c = Collected(made)
    assert c.initializations == {
        "perloop-rms": {"default": "perloop-rms", "0.02": "perloop-rms-std0.02"}
    }
    assert c.rates() == (
        "Learning rates differ, too: 0.0003 (perloop-rms), 0.001 (perloop-rms-std0.02)."
    )
    tables.write("initialization", made, tmp_path)
    table = pd.read_csv(tmp_path / "initialization.csv").drop_duplicates("init")
    assert table.set_index("init")["rate"].to_dict() == {"default": 3e-4, "0.02": 1e-3}
    assert c.rates() in (tmp_path / "initialization.md").read_text().replace("\\", "")
    assert c.rates() in figures.caption("initialization", made)
    # A sweep of rates gives no partner but the one of the same rate.
    swept = [
        cell | {"name": f"{cell['name']}-fast", "training": {"learning_rate": rate}}
        for cell, rate in zip([c.study["cells"][3], c.study["cells"][1]], (3e-4, 9e-4), strict=True)
    ]
    c.study["cells"] += swept
    del c.initializations
    assert c.initializations["perloop-rms"] == {
        "default": "perloop-rms", "0.02": "perloop-rms-std0.02-fast"
    }  # fmt: skip
    other = dict(c.study["cells"][3], name="x", training={"weight_decay": 0.5})
    c.study["cells"] = [c.study["cells"][1], other]
    del c.initializations
    assert c.initializations == {}
