"""Collecting: values arrive unchanged, gaps are named, damaged files are refused by name."""

import csv
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import synthetic
from blindspot.collect.collect import collect
from blindspot.collect.collected import TEXT_COLUMNS, Collected
from blindspot.collect.records import MEASURE, RUN
from blindspot.config.study import Study
from blindspot.declared import FILES
from blindspot.errors import BlindspotError
from blindspot.files import write_record
from blindspot.publish import figures, tables
from blindspot.publish.catalogue import COLLECTED, FIGURES, TABLES

SMALL = {"sizes": ["44m"], "cells": ["terminal-rms", "perloop-rms"], "seeds": [42, 101]}


def study_in(folder: Path) -> Study:
    return synthetic.make_study(folder, steps=400, **SMALL)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean")
    synthetic.write(study_in(folder))
    return folder


@pytest.fixture
def copy(clean: Path, tmp_path: Path) -> Path:
    shutil.copytree(clean, tmp_path / "results")
    return tmp_path / "results"


def only(folder: Path, name: str) -> Path:
    """The file of that name of perloop-rms, seed 101, or the throughput table."""
    pattern = "*/throughput" if name == "throughput" else "*/runs/44m/perloop-rms/seed101-*"
    (found,) = folder.glob(f"{pattern}/**/{'*.csv' if name == 'throughput' else name}")
    return found


def test_rows_arrive_unchanged_in_the_order_of_the_config(clean: Path, tmp_path: Path):
    study = study_in(clean)
    collect(study, tmp_path)
    runs = pd.read_csv(tmp_path / "runs.csv")
    assert list(zip(runs["cell"], runs["seed"], strict=True)) == [
        ("terminal-rms", 42), ("terminal-rms", 101), ("perloop-rms", 42), ("perloop-rms", 101)
    ]  # fmt: skip
    for name in FILES:
        whole = pd.read_csv(tmp_path / f"{name}.csv")
        assert list(whole.columns[:4]) == ["size", "cell", "seed", "run"]
        total = 0
        for run in study.runs:
            (file,) = (study.results / "runs" / run.name).glob(f"**/{name}.csv")
            source = pd.read_csv(file)
            total += len(source)
            own = whole[whole["run"] == run.name].drop(columns=["size", "cell", "seed", "run"])
            keys = list(FILES[name].keys)
            expected = source.sort_values(keys, ignore_index=True)
            pd.testing.assert_frame_equal(
                own.sort_values(keys, ignore_index=True),
                expected,
                check_exact=True,
                check_dtype=False,
            )
        assert len(whole) == total


def test_throughput_is_expanded_to_cells(clean: Path, tmp_path: Path):
    study = synthetic.make_study(
        tmp_path / "r", ["44m"], [*synthetic.CELLS, "perloop-rms-interloop"], [42], 400
    )
    synthetic.write(study)
    collect(study, tmp_path / "c")
    table = pd.read_csv(tmp_path / "c" / "throughput.csv").set_index(["cell", "k"])
    assert len(table) == 8 * 4
    # The same architecture, so the same measured speed; another readout is another one.
    for k in (1, 4):
        speed = table["tokens_per_s"].xs(k, level="k")
        assert speed["terminal-rms"] == speed["perloop-rms"] == speed["perloop-rms-penalty"]
        assert len({speed[c] for c in ("perloop-rms", "perloop-raw", "perloop-rms-interloop")}) == 3
    assert table.loc[("perloop-rms-interloop", 1), "architecture"] == "rms+interloop"


def test_the_same_results_give_the_same_bytes(clean: Path, tmp_path: Path):
    for name in ("a", "b"):
        collect(study_in(clean), tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted(["study.json", *(f"{name}.csv" for name in COLLECTED)])
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_description(clean: Path, tmp_path: Path):
    collect(study_in(clean), tmp_path)
    study = Collected(tmp_path).study
    assert (study["study"], study["corpus"], study["loops"]) == ("paper", "wikitext-103-raw-v1", 4)
    assert [size["name"] for size in study["sizes"]] == ["44m"]
    assert study["sizes"][0]["seeds"] == [42, 101]
    assert study["sizes"][0]["tokens_seen"] == 400 * 64 * 256
    assert [cell["name"] for cell in study["cells"]] == SMALL["cells"]
    assert study["devices"]["throughput"] == {"44m": "NVIDIA H200"}
    assert study["missing"] == [] and study["collected"] == 4


def test_gaps_are_named_with_their_reason(copy: Path, tmp_path: Path):
    shutil.rmtree(only(copy, "exits-*/measure.json").parents[1])
    shutil.rmtree(next(copy.glob("*/runs/44m/terminal-rms/seed42-*")))
    only(copy, "throughput").unlink()
    collect(study_in(copy), tmp_path / "c")
    c = Collected(tmp_path / "c")
    reasons = {entry["run"].rsplit("-", 1)[0]: entry["reason"] for entry in c.study["missing"]}
    assert reasons == {
        "44m/terminal-rms/seed42": "not trained",
        "44m/perloop-rms/seed101": "not measured",
    }
    assert c.study["throughput_missing"] == ["44m"]
    assert len(c.runs) == 2
    assert "terminal-rms at 44m (seed 42: not trained)" in c.missing()


def test_a_run_that_failed_is_named_with_its_step(copy: Path, tmp_path: Path):
    """Shown as failed, so that nobody takes the seeds that are left for all that were tried."""
    study = study_in(copy)
    run = study.runs[2]
    folder = study.results / "runs" / run.name
    shutil.rmtree(folder)
    folder.mkdir()
    record = {"name": run.name, "hash": run.spec.hash, "step": 14}
    error = f"{run.name}: at step 15 the loss is nan; the step was not applied. See /scratch/me"
    (folder / "failed.json").write_text(json.dumps(record | {"error": error}))
    collect(study, tmp_path / "c")
    c = Collected(tmp_path / "c")
    reason = "failed at step 15: at step 15 the loss is nan"
    assert c.study["missing"] == [{"run": run.name, "reason": reason}]
    assert "perloop-rms at 44m (seed 42: failed at step 15)" in c.missing()
    assert c.failures == {("44m", "perloop-rms"): {42: "failed at step 15"}}
    (folder / "failed.json").write_text(json.dumps(record | {"hash": "0"}))
    with pytest.raises(BlindspotError, match="not the record of run"):
        collect(study, tmp_path / "c")


def test_training_flops_stand_beside_each_run(clean: Path, tmp_path: Path):
    """Against paper.md: a token costs 0.892e9 FLOPs at a terminal loss, 1.076e9 at four."""
    collect(study_in(clean), tmp_path)
    runs = Collected(tmp_path).runs.groupby("cell")["train_flops_per_token"].first() / 1e9
    assert runs.round(3).to_dict() == {"terminal-rms": 0.892, "perloop-rms": 1.076}


def test_nothing_at_all_is_an_error(tmp_path: Path):
    with pytest.raises(BlindspotError, match="no run of study 'paper'"):
        collect(study_in(tmp_path), tmp_path / "c")


def test_an_overflowing_exit_is_kept(copy: Path, tmp_path: Path):
    """E-01 d: a hopeless early exit loses neither the other depths nor the other runs."""
    path = only(copy, "exits.csv")
    frame = pd.read_csv(path)
    hopeless = synthetic.derived(710.0 * 240_000, *synthetic.COUNTS["validation"])
    at = frame.query("split == 'validation' and k == 1 and protocol == 'full'").index
    frame.loc[at, list(hopeless)] = list(hopeless.values())
    frame.to_csv(path, index=False)
    synthetic.pin(copy)
    collect(study_in(copy), tmp_path / "c")
    exits = Collected(tmp_path / "c").frame("exits")
    assert exits["ppl"].max() == math.inf
    assert exits.loc[exits["ppl"] == math.inf, "ce"].tolist() == [710.0]
    assert len(exits) == 4 * 3 * 4 * 2  # runs, protocols, depths, splits


def edit(column: str, value: object, row: int = 0) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        frame = pd.read_csv(path).astype(object)
        frame.loc[row, column] = value
        frame.to_csv(path, index=False)

    return change


def drop(query: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        pd.read_csv(path).query(f"not ({query})").to_csv(path, index=False)

    return change


def record(**values: object) -> Callable[[Path], None]:
    """Another value, and a seal that fits it: what else tells?"""

    def change(path: Path) -> None:
        write_record(path, json.loads(path.read_text()) | values)

    return change


def lacking(key: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        value = json.loads(path.read_text())
        del value[key]
        write_record(path, value)

    return change


def by_hand(old: str, new: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return change


def scaled(column: str) -> Callable[[Path], None]:
    """A change that no other column contradicts."""

    def change(path: Path) -> None:
        frame = pd.read_csv(path)
        frame[column] *= 0.97
        frame.to_csv(path, index=False)

    return change


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def twice(path: Path) -> None:
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")


FAULTS: list[tuple[str, Callable[[Path], None], str]] = [
    ("run.json", cut, "not readable as JSON"),
    ("run.json", record(revision=99), "revision 99"),
    ("run.json", record(hash="00000000"), "describes run"),
    ("run.json", record(name="44m/perloop-rms/seed7-00000000"), "names itself"),
    ("run.json", record(steps=300), "steps 300"),
    ("run.json", record(tokens_seen=1), "tokens_seen 1"),
    ("run.json", record(data={"tokens": 2}), "other token files"),
    ("run.json", record(data={"splits": {"train": {"sha256": "a"}}}), "other token files"),
    ("run.json", record(spec={}), "no run specification"),
    ("run.json", record(files={"trajectory.csv": "0" * 64}), "pins no timing.csv"),
    ("run.json", record(parameters=7), "says parameters 7"),
    ("run.json", by_hand('"seconds": 3600.0', '"seconds": 9999.0'), "was edited"),
    ("run.json", lambda path: path.write_text("[]"), "is not a record"),
    ("exits-*/measure.json", by_hand("H200", "H100"), "was edited"),
    ("norms.csv", scaled("l2_mean"), "SHA-256"),
    ("timing.csv", scaled("seconds"), "SHA-256"),
    ("exits-*/measure.json", record(revision=99), "revision 99"),
    ("exits-*/measure.json", record(run="another"), "says run"),
    ("trajectory.csv", Path.unlink, "no such file"),
    ("trajectory.csv", cut, "cut off"),
    ("trajectory.csv", twice, "two rows"),
    ("trajectory.csv", drop("step == 200 and split == 'validation'"), "no validation row of"),
    ("trajectory.csv", drop("step == 400 and split == 'train'"), "no train row of step 400"),
    ("trajectory.csv", drop("step == 100 and k == 3"), "k = "),
    ("trajectory.csv", edit("norm_mean", "nan", 3), "norm_mean nan"),
    ("trajectory.csv", edit("ce", "inf", 3), "ce inf"),
    ("trajectory.csv", edit("step", "many", 3), "not readable as CSV"),
    ("trajectory.csv", edit("tokens", 5, 3), "tokens that are not step"),
    ("timing.csv", edit("step", 4000), "beyond the run's 400"),
    ("exits.csv", edit("ce", 1.0), "has ce 1.0 in row 2"),
    ("exits.csv", edit("ppl", 5.0), "has ppl 5.0 in row 2"),
    ("exits.csv", edit("nll", "nan"), "not a number"),
    ("exits.csv", drop("k == 2"), "k = "),
    ("exits.csv", edit("trained_k", 2), "trained_k"),
    ("exits.csv", drop("split == 'test'"), "has split"),
    ("norms.csv", lambda path: path.write_text("a,b\n1,2\n"), "other columns"),
    ("norms.csv", edit("l2_p99", 1.0), "out of order"),
    ("norms.csv", drop("k == 0"), "k = "),
    ("norm_hist.csv", edit("count", 10**6), "counts"),
    ("norm_hist.csv", drop("k == 0"), "k = "),
    ("norm_groups.csv", edit("tokens", 5), "different totals"),
    ("norm_growth.csv", edit("growth_rest", 5.0), "its other columns give"),
    ("norm_growth.csv", edit("trained_k", 2), "trained_k 2"),
    ("gradients.csv", edit("cos_abs_p50", 1.2), "cosine above 1"),
    ("gradients.csv", edit("cos_abs_mean", "nan"), "cos_abs_mean nan"),
    ("gradients.csv", drop("dtype == 'float64' and k == 2"), "k = "),
    ("gradients.csv", edit("width", 64), "another width"),
    ("gradient_eps.csv", edit("cos_abs_mean", "inf"), "cos_abs_mean inf"),
    ("updates.csv", drop("k == 3"), "k = "),
    ("updates.csv", edit("radial_mean", "nan", 5), "radial_mean nan"),
    ("update_fixed.csv", edit("angular_rest_mean", -1.0), "angular_rest_mean -1.0"),
    ("clamp.csv", edit("change_mean", 0.5, 2), "its other columns give"),
    ("clamp.csv", drop("intervention == 'radial'"), "has intervention"),
    ("halting.csv", edit("scored_on", "validation"), "calibrated on"),
    ("halting.csv", edit("mean_loops", 4.5), "above the 4 loops"),
    ("halting.csv", edit("relative_ppl", 1.5), "its other columns give"),
    ("halting_curve.csv", edit("mean_loops", 0.5), "mean_loops 0.5"),
    ("halting_timing.csv", edit("speedup", 9.0), "its other columns give"),
    ("throughput", edit("device", "another GPU"), "mixes device"),
    ("throughput", edit("threads", 8), "mixes threads"),
    ("throughput", edit("precision", "float32"), "precision float32"),
    ("throughput", drop("k == 3"), "times architecture"),
    ("throughput", edit("tokens_per_s", 1.0), "outside its quartiles"),
]  # fmt: skip
FAULTS += [("exits-*/measure.json", record(tokens_sha256="b" * 64), "made on token files bbbb")]
FAULTS += [("run.json", lacking(key), f"has no {key}") for key in RUN if key != "sha256"]
FAULTS += [
    ("exits-*/measure.json", lacking(key), f"has no {key}") for key in MEASURE if key != "sha256"
]


@pytest.mark.parametrize(("name", "damage", "message"), FAULTS)
def test_damaged_files_are_named_and_nothing_is_written(
    copy: Path, tmp_path: Path, name: str, damage: Callable[[Path], None], message: str
):
    path = only(copy, name)
    damage(path)
    # Two runs are enough to find it, and half the time.
    study = synthetic.make_study(copy, ["44m"], ["perloop-rms"], [42, 101], 400)
    with pytest.raises(BlindspotError) as error:
        collect(study, tmp_path / "c")
    assert message in str(error.value)
    assert str(path.parent if path.exists() else path) in str(error.value)
    assert not (tmp_path / "c").exists()


def test_another_runs_folder_is_refused(copy: Path, tmp_path: Path):
    """L-05: a run of K = 2 in the place of one of K = 4, file names and all."""
    other = synthetic.make_study(tmp_path / "o", steps=400, model={"loops": 2}, **SMALL)
    values = synthetic.Values(
        ppl={c: [5.0, 4.0] for c in SMALL["cells"]},
        norm={c: [9.0, 9.0, 9.0] for c in SMALL["cells"]},
        speed=[2.0, 1.0],
        scale={},
    )
    synthetic.write(other, values)
    target = only(copy, "run.json").parent
    source = other.results / "runs" / other.runs[3].name
    shutil.rmtree(target)
    shutil.copytree(source, target)
    with pytest.raises(BlindspotError, match="describes run"):
        collect(study_in(copy), tmp_path / "c")


def test_runs_scored_on_other_text_are_refused(copy: Path, tmp_path: Path):
    path = only(copy, "exits.csv")
    frame = pd.read_csv(path)
    for i, row in frame.iterrows():
        _, words, size = synthetic.COUNTS[row["split"]]
        if row["protocol"] != "full":
            continue
        new = synthetic.derived(row["nll"], row["tokens"] - 1, words, size)
        frame.loc[i, list(new)] = list(new.values())
    frame.to_csv(path, index=False)
    synthetic.pin(copy)
    with pytest.raises(BlindspotError, match="was scored on"):
        collect(study_in(copy), tmp_path / "c")


#: Names that a reader of CSV may take for numbers or for nothing at all.
ODD = ["nan", "null", "na", "none", "1e5", "inf", "true"]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose cells and size have such names, collected; the cell `null` was not run."""
    folder = tmp_path_factory.mktemp("odd")
    base = synthetic.make_study(folder).config
    cells = {name: base.cells["perloop-rms"].identity() for name in ODD}
    size = base.sizes["44m"].model_dump(mode="json")
    named = {"cells": cells, "sizes": {"null": size}}
    study = Study.of(
        synthetic.make_study(folder, seeds=[42, 101], steps=200).config.model_dump() | named
    )
    values = {
        key: dict.fromkeys(ODD, getattr(synthetic.PAPER, key)["perloop-rms"])
        for key in ("ppl", "norm")
    }
    synthetic.write(study, replace(synthetic.PAPER, **values), skip=lambda run: run.cell == "null")
    collect(study, folder / "collected")
    return folder / "collected"


def test_text_stays_text_whatever_a_cell_is_called(odd: Path):
    c = Collected(odd)
    there = [name for name in ODD if name != "null"]
    for name in FILES:
        frame = c.frame(name)
        assert list(frame["cell"].unique()) == there and set(frame["size"]) == {"null"}, name
    provenance = c.frame("provenance")
    assert list(provenance["cell"].dropna().unique()) == there
    assert provenance["cell"].isna().sum() == 1  # the timing is of a size
    assert {"size", "cell", "run", "architecture", "commit", "intervention"} < TEXT_COLUMNS


def test_every_planned_run_is_in_every_table_and_figure_or_named(odd: Path, tmp_path: Path):
    c = Collected(odd)
    there = [name for name in ODD if name != "null"]
    for name in sorted(
        n for n, item in TABLES.items() if not (item.two_initializations or item.asks)
    ):
        tables.write(name, odd, tmp_path)
        with open(tmp_path / f"{name}.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        if name != "throughput":  # its rows are architectures
            assert {row["cell"] for row in rows} - {""} in (set(there), set(ODD)), name
        assert "null at null (all seeds: not trained)" in tables.caption(name, odd), name
    main = pd.read_csv(tmp_path / "main.csv", keep_default_na=False)
    assert dict(zip(main["cell"], main["seeds"], strict=True)) == dict.fromkeys(ODD, 2) | {
        "null": 0
    }
    for name in sorted(
        n for n, item in FIGURES.items() if not (item.two_initializations or item.asks)
    ):
        drawn = figures.DRAWN[name](c).figure.legends[0].get_texts()
        assert [t.get_text() for t in drawn][: len(there)] == there, name
        assert "null at null (all seeds: not trained)" in figures.caption(name, odd), name


def test_a_file_that_lacks_a_run_is_refused_by_every_reader(odd: Path, tmp_path: Path):
    """Rows can also be lost after collecting: a name that was read wrongly, an edit by hand."""
    shutil.copytree(odd, tmp_path / "c")
    for name in ("exits", "runs"):
        path = tmp_path / "c" / f"{name}.csv"
        kept = path.read_text()
        lines = kept.splitlines(keepends=True)
        path.write_text("".join(line for line in lines if "/1e5/seed42" not in line))
        with pytest.raises(BlindspotError, match=r"no rows of 1e5 at null, seed 42.*not say why"):
            Collected(tmp_path / "c").frame(name)
        path.write_text(kept + lines[-1].replace("seed101", "seed7"))
        with pytest.raises(BlindspotError, match=r"not planned: true at null, seed 7"):
            Collected(tmp_path / "c").frame(name)
        path.write_text(kept)


def test_a_diverged_seed_is_named_and_counted_beside_the_mean(tmp_path: Path):
    """A perplexity of 2e6 beside two of 90: the mean over three says nothing of any."""
    study = synthetic.make_study(tmp_path, ["44m"], ["perloop-rms", "perloop-raw"], steps=200)
    synthetic.write(study, synthetic.TOY)
    bad = next(r for r in study.runs if (r.cell, r.seed) == ("perloop-raw", 202))
    path = next((study.results / "runs" / bad.name).glob("measure/exits-*/exits.csv"))
    frame = pd.read_csv(path)
    at = frame.query("protocol == 'full' and k == 4").index
    for i in at:
        split = frame.loc[i, "split"]
        new = synthetic.derived(14.5 * frame.loc[i, "tokens"], *synthetic.COUNTS[split])
        frame.loc[i, list(new)] = list(new.values())
    frame.to_csv(path, index=False)
    synthetic.pin(study.results)
    collect(study, tmp_path / "c")
    c = Collected(tmp_path / "c")
    assert list(c.outliers) == [("44m", "perloop-raw")] and [*c.outliers["44m", "perloop-raw"]] == [
        202
    ]
    tables.write("main", tmp_path / "c", tmp_path / "t")
    main = pd.read_csv(tmp_path / "t/main.csv").set_index("cell")
    assert main["outliers"].to_dict() == {"perloop-rms": 0, "perloop-raw": 1}
    assert main.loc["perloop-raw", "ppl_low"] == 1
    text = (tmp_path / "t/main.md").read_text()
    assert "| 3 (1 outlier) |" in text
    said = "perloop-raw at 44m (seed 202: CE 14.50, median of the others 4.2"
    for name in tables.MADE:
        assert said in tables.caption(name, tmp_path / "c"), name
    for name in figures.DRAWN:
        assert said in figures.caption(name, tmp_path / "c"), name


def test_folders_of_no_planned_run_are_listed_once_and_left_out(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    study = study_in(copy)
    runs = study.results / "runs"
    first = runs / study.runs[0].name
    shutil.copytree(first, first.with_name(first.name + " (copy)"))
    other = first.with_name(first.name.replace("seed42", "seed43"))
    shutil.copytree(first, other)
    collect(study, tmp_path / "c")
    strays = [f"44m/terminal-rms/{first.name} (copy)", f"44m/terminal-rms/{other.name}"]
    assert capsys.readouterr().err == f"paper: not part of this study: {', '.join(strays)}\n"
    c = Collected(tmp_path / "c")
    assert c.study["strays"] == strays
    assert set(c.runs["run"]) == {run.name for run in study.runs}
    told = {name: tables.MADE[name](c).note for name in tables.MADE}
    assert [name for name, note in told.items() if "Not part of this study" in note] == [
        "provenance"
    ]
    assert f"left out: {', '.join(strays)}." in told["provenance"]


def test_a_size_may_have_cells_and_a_cell_seeds_of_its_own(tmp_path: Path):
    shape = {"d_model": 128, "layers": 1, "heads": 2, "batch": 8}
    study = Study.load(
        synthetic.ROOT / "config.yaml",
        override={
            "results": str(tmp_path),
            "grid": {"seeds": [42, 101]},
            "training": {"steps": 200, "epochs": None, "log_every": 50, "validate_every": 200},
            "cells": {
                "terminal-rms": None,
                "perloop-rms": None,
                "perloop-raw": {"loss": "per-loop", "readout": "raw", "seeds": [42]},
            },
            "sizes": {
                "44m": shape,
                "129m": shape | {"cells": ["perloop-raw", "perloop-rms"], "seeds": [7]},
            },
        },
    )
    names = {run.name.rpartition("-")[0] for run in study.runs}
    assert names == {
        "44m/terminal-rms/seed42", "44m/terminal-rms/seed101", "44m/perloop-rms/seed42",
        "44m/perloop-rms/seed101", "44m/perloop-raw/seed42", "129m/perloop-rms/seed7",
        "129m/perloop-raw/seed42",
    }  # fmt: skip
    synthetic.write(study, skip=lambda run: run.cell == "perloop-raw" and run.size == "44m")
    collect(study, tmp_path / "collected")
    c = Collected(tmp_path / "collected")
    assert len(c.frame("norms").groupby("run")) == len(names) - 1
    assert c.missing() == "Not shown: perloop-raw at 44m (all seeds: not trained)."
    # A list of seeds decides no weights: no name of a run holds it.
    assert all("seeds" not in run.spec.canonical() for run in study.runs)
