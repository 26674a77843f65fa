"""The table of hyperparameters: each cell's own settings at each size, as its runs were trained."""

from pathlib import Path

import pandas as pd
import pytest

import synthetic
from blindspot.collect.collect import collect
from blindspot.config.study import Study
from blindspot.publish import tables

CELLS = ["terminal-rms", "perloop-rms", "perloop-rms-penalty"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    folder = tmp_path_factory.mktemp("settings")
    values = synthetic.make_study(folder, cells=CELLS, seeds=[42, 101], steps=200)
    values = values.config.model_dump()
    values["cells"]["perloop-rms"]["training"] = {"learning_rate": 1e-3, "epochs": 0.5}
    values["cells"]["terminal-rms"]["model"] = {"d_model": 384, "dropout": {"rate": 0.2}}
    values["sizes"]["129m"]["cells"] = ["perloop-rms", "perloop-rms-penalty"]
    study = Study.of(values)
    synthetic.write(study, synthetic.PAPER)
    collect(study, folder / "collected")
    tables.write("hyperparameters", folder / "collected", folder / "out")
    return study, folder / "out"


def test_each_row_is_what_the_runs_were_trained_with(made: tuple[Study, Path]):
    study, out = made
    table = pd.read_csv(out / "hyperparameters.csv").set_index(["size", "cell"])
    assert len(table) == 5
    for run in study.runs:
        row, spec = table.loc[run.size, run.cell], run.spec
        assert row["learning_rate"] == spec.training.learning_rate
        assert row["d_model"] == spec.model.d_model and row["layers"] == spec.model.layers
        assert (row["batch"], row["window"]) == (spec.batch, spec.windows.length)
        assert row["dropout"].startswith(f"rate {spec.model.dropout.rate:g}")
        for key in ("steps", "epochs"):
            said, own = row[key], getattr(spec.training, key)
            assert (pd.isna(said) and own is None) or said == own


def test_what_all_rows_share_is_said_once(made: tuple[Study, Path]):
    text = (made[1] / "hyperparameters.md").read_text()
    head = text.splitlines()[0]
    assert "Learning rate" in head and "Width" in head and "Clip" not in head
    assert "All alike: " in text and "Clip 1;" in text and "Betas 0.9, 0.999;" in text
