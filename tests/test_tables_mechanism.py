"""Tables of mechanism, cost, budgets and initializations, against plain loops over the run
folders."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import gmean

import synthetic
from blindspot.collect.collect import collect
from blindspot.collect.collected import Collected
from blindspot.config.study import Study
from blindspot.publish import catalogue, tables, typeset
from blindspot.publish.matched import matched

CELLS = ["terminal-rms", "perloop-rms", "perloop-raw", "perloop-rms-penalty"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path, Path]:
    """One size, four cells, three seeds; timings of one run are of another device."""
    folder = tmp_path_factory.mktemp("made")
    study = synthetic.make_study(folder, ["44m"], CELLS, steps=400)
    synthetic.write(study)
    collect(study, folder / "collected")
    for name in tables.MADE:
        tables.write(name, folder / "collected", folder / "tables")
    return study, folder / "collected", folder / "tables"


def each(study: Study, cell: str, file: str) -> list[pd.DataFrame]:
    paths = [
        p
        for run in study.runs
        if run.cell == cell
        for p in (study.results / "runs" / run.name).glob(f"**/{file}")
    ]
    assert len(paths) == 3
    return [pd.read_csv(path) for path in paths]


def shown(out: Path, name: str, cell: str) -> list[str]:
    (row,) = [r for r in (out / f"{name}.md").read_text().splitlines() if f"| {cell} |" in r]
    return row.strip("| ").split(" | ")


def test_radial_keeps_paths_and_sources_apart(made: tuple[Study, Path, Path]):
    study, _, out = made
    table = pd.read_csv(out / "radial.csv")
    for source, path, dtype, k in (
        ("ce", "immediate", "float64", 4),
        ("ce", "recurrence", "float64", 2),
        ("penalty", "immediate", "float32", 1),
    ):
        chosen = f"source == '{source}' and path == '{path}' and dtype == '{dtype}' and k == {k}"
        own = [
            f.query(chosen)["cos_abs_mean"].item()
            for f in each(study, "perloop-rms-penalty", "gradients.csv")
        ]
        row = table.query(f"cell == 'perloop-rms-penalty' and {chosen}").squeeze()
        logs = np.log(own)
        assert row["cos_abs_mean"] == pytest.approx(np.exp(logs.mean()))
        half = np.log(row["cos_abs_mean_high"] / row["cos_abs_mean_low"]) / 2
        assert half == pytest.approx(2.48414 * np.std(logs, ddof=1), rel=1e-5)
    row = shown(out, "radial", "perloop-rms")
    assert row[3].startswith("9.5e-17 [") and row[10] == "—"
    assert shown(out, "radial", "perloop-rms-penalty")[10].startswith("0.8")
    # With eps at 0, over the buckets of the norm; a readout without eps has no such number.
    assert row[4].startswith("1.0e-16") and shown(out, "radial", "perloop-raw")[4] == "—"
    # eps / (v + eps) at the middle of the norm's bucket, v = |H|^2 / d.
    eps = each(study, "perloop-rms", "gradient_eps.csv")
    v = [f.query("k == 4").iloc[0][["norm_low", "norm_high"]].prod() / 512 for f in eps]
    share = table.query("cell == 'perloop-rms' and k == 4 and dtype == 'float64'")["eps_share"]
    logs = [math.log(1e-6 / (x + 1e-6)) for x in v]
    assert share.dropna().item() == pytest.approx(math.exp(sum(logs) / len(logs)))
    assert row[5].startswith(typeset.number(share.dropna().item(), 4))
    # The chance level of |cos| at d = 512 (paper.md: 0.035).
    assert row[11] == "0.0353"


def test_clamp_tests_equivalence_over_seeds(made: tuple[Study, Path, Path]):
    study, _, out = made
    table = pd.read_csv(out / "clamp.csv")
    for cell in CELLS:
        own = [
            f.query("intervention == 'norm' and k == 4")["change_mean"].item()
            for f in each(study, cell, "clamp.csv")
        ]
        half = 2.48414 * np.std(own, ddof=1)
        row = table.query(f"cell == '{cell}' and intervention == 'norm' and k == 4").squeeze()
        assert row["change_mean"] == pytest.approx(np.mean(own))
        inside = abs(np.mean(own)) + half <= 0.01
        assert row["equivalent"] == ("yes" if inside else "no")
    assert shown(out, "clamp", "perloop-rms")[5] == "yes"
    assert shown(out, "clamp", "perloop-raw")[5] == "no"


def test_updates_and_their_range(made: tuple[Study, Path, Path]):
    study, _, out = made
    frames = each(study, "terminal-rms", "updates.csv")
    ratios = []
    for frame in frames:
        x = frame.query("1 <= k <= 3")["angular_step_norm_mean"]
        ratios.append((x.max() - x.min()) / x.mean())
    row = shown(out, "updates", "terminal-rms")
    assert row[8] == f"{np.mean(ratios):.2f}"
    table = pd.read_csv(out / "updates.csv")
    assert set(table["k"]) == set(range(30))


def test_halting_has_both_variants(made: tuple[Study, Path, Path]):
    study, _, out = made
    table = pd.read_csv(out / "halting.csv").set_index(["cell", "score", "variant"])
    own = [
        f.query("score == 'entropy' and variant == 'realised'")["mean_loops"].item()
        for f in each(study, "perloop-raw", "halting.csv")
    ]
    assert table.loc[("perloop-raw", "entropy", "realised"), "mean_loops"] == pytest.approx(
        np.mean(own)
    )
    assert table["speedup"].xs("oracle", level="variant").isna().all()


def test_halting_speeds_of_two_devices_are_not_averaged(
    made: tuple[Study, Path, Path], tmp_path: Path
):
    _, collected, _ = made
    for path in collected.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    timing = pd.read_csv(tmp_path / "halting_timing.csv")
    timing.loc[0, "device"] = "another GPU"
    timing.to_csv(tmp_path / "halting_timing.csv", index=False)
    tables.write("halting", tmp_path, tmp_path / "out")
    table = pd.read_csv(tmp_path / "out" / "halting.csv")
    assert table["tokens_per_s"].isna().all() and table["speedup"].notna().any()


def test_cost_counts_flops_hours_and_utilization(made: tuple[Study, Path, Path]):
    _, _, out = made
    table = pd.read_csv(out / "cost.csv").set_index("cell")
    row = table.loc["perloop-rms"]
    # paper.md: 1.076e9 FLOPs a token; the synthetic runs do 100,000 tokens a second for an hour.
    assert row["train_flops_per_token"] == pytest.approx(1.076e9, rel=1e-3)
    assert row["flops"] == pytest.approx(1.076e9 * 400 * 64 * 256, rel=1e-3)
    assert row["hours"] == 1.0
    assert row["mfu"] == pytest.approx(1.076e14 / 989e12, rel=1e-3)


def test_compiling_is_said_beside_the_cost_and_counts_in_none_of_it(
    made: tuple[Study, Path, Path], tmp_path: Path
):
    _, collected, out = made
    for path in collected.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    runs = pd.read_csv(tmp_path / "runs.csv")
    assert runs["compile_seconds"].isna().all()
    assert "Compiling" not in (out / "cost.md").read_text()
    runs["compile_seconds"] = 84.0
    runs.to_csv(tmp_path / "runs.csv", index=False)
    tables.write("cost", tmp_path, tmp_path / "out")
    found, before = (pd.read_csv(folder / "cost.csv") for folder in (tmp_path / "out", out))
    assert (found.pop("compile_seconds") == 84.0).all()
    pd.testing.assert_frame_equal(found, before.drop(columns="compile_seconds"))
    assert "Compiling, 84 s a run more, is in no" in (tmp_path / "out" / "cost.md").read_text()


def test_variable_depth_joins_the_speed_of_a_depth(made: tuple[Study, Path, Path]):
    """All architectures here do equal work and their timings overlap: one speed for all."""
    study, collected, out = made
    table = pd.read_csv(out / "variable-depth.csv").set_index(["cell", "k"])
    timings = pd.read_csv(collected / "throughput.csv").drop_duplicates(["architecture", "k"])
    assert (timings.groupby("k")["flops_per_token"].nunique() == 1).all()
    speed = timings.groupby("k")["tokens_per_s"].median()
    for cell, k in (("perloop-raw", 2), ("terminal-rms", 1)):
        assert table.loc[(cell, k), "tokens_per_s"] == pytest.approx(speed[k])
        assert table.loc[(cell, k), "speedup"] == pytest.approx(speed[k] / speed[4])
    own = []
    for frame in each(study, "perloop-raw", "exits.csv"):
        ce = frame.query("split == 'validation' and protocol == 'full'").set_index("k")["ce"]
        own.append(ce[2] - ce[4])
    assert table.loc[("perloop-raw", 2), "ce_to_last"] == pytest.approx(np.mean(own))


def test_loss_placement_is_the_ce_of_each_exit(made: tuple[Study, Path, Path]):
    study, _, out = made
    table = pd.read_csv(out / "loss-placement.csv").set_index(["cell", "k"])
    frames = each(study, "terminal-rms", "exits.csv")
    own = [
        f.query("split == 'validation' and protocol == 'full' and k == 1")["ce"].item()
        for f in frames
    ]
    assert table.loc[("terminal-rms", 1), "ce"] == pytest.approx(np.mean(own))
    assert table.loc[("terminal-rms", 1), "loss"] == "terminal"


# --- equal budgets ---------------------------------------------------------------------------


def by_hand(study: Study, cell: str, cost_of_step: float, budget: float) -> list[float]:
    """Validation CE at loop K, on straight lines between the validation points."""
    found = []
    for frame in each(study, cell, "trajectory.csv"):
        points = frame.query("split == 'validation' and k == 4")
        found.append(np.interp(budget, points["step"] * cost_of_step, points["ce"].astype(float)))
    return found


def test_equal_budgets_against_the_trajectories(made: tuple[Study, Path, Path]):
    study, collected, _ = made
    table = matched(Collected(collected)).set_index(["budget", "cell"])
    tokens, per_loop, terminal = 64 * 256, 1.07603e9, 0.89214e9
    budget = 400 * tokens * terminal  # the cheaper cell's whole training
    assert table.loc["FLOPs"]["at"].iloc[0] == pytest.approx(budget, rel=1e-3)
    cheap = by_hand(study, "terminal-rms", tokens * terminal, budget)
    dear = by_hand(study, "perloop-rms", tokens * per_loop, budget)
    row = table.loc[("FLOPs", "terminal-rms")]
    assert row["ce"] == pytest.approx(np.mean(cheap), rel=1e-3)
    gaps = np.subtract(cheap, dear)
    assert row["difference"] == pytest.approx(np.mean(gaps), abs=1e-3)
    assert row["difference_ci"] == pytest.approx(2.48414 * np.std(gaps, ddof=1), rel=1e-2)
    # At equal FLOPs a per-loop run is cut short, at equal steps it is not.
    assert table.loc[("FLOPs", "perloop-rms"), "ce"] > table.loc[("steps", "perloop-rms"), "ce"]
    assert table.loc[("steps", "perloop-rms"), "ce"] == pytest.approx(
        np.mean(by_hand(study, "perloop-rms", 1, 400))
    )


def test_device_time_is_compared_on_one_machine_alone(made: tuple[Study, Path, Path]):
    _, collected, _ = made
    c = Collected(collected)
    assert set(matched(c)["budget"]) == {"steps", "FLOPs", "seconds"}
    c = Collected(collected)
    c.runs.loc[0, "device"] = "another GPU"
    assert set(matched(c)["budget"]) == {"steps", "FLOPs"}


# --- initialization --------------------------------------------------------------------------


def test_initializations_stand_side_by_side(tmp_path: Path):
    study = synthetic.make_study(tmp_path, ["44m"], synthetic.INIT, [42, 101], steps=200)
    synthetic.write(study, synthetic.TOY)
    collect(study, tmp_path / "c")
    assert "initialization" in catalogue.of(catalogue.TABLES, study.config)
    tables.write("initialization", tmp_path / "c", tmp_path / "t")
    table = pd.read_csv(tmp_path / "t" / "initialization.csv").set_index(["cell", "init"])
    assert list(table.index[:2]) == [("perloop-rms", "default"), ("perloop-rms", "0.02")]
    assert len(table) == 8
    norms = pd.read_csv(tmp_path / "c" / "norms.csv").query("k == 4").groupby("cell")["l2_mean"]
    expected = norms.apply(lambda x: np.exp(np.log(x).mean()))
    assert table.loc[("perloop-raw", "0.02"), "norm"] == pytest.approx(
        expected["perloop-raw-std0.02"]
    )


def test_a_study_of_one_initialization_has_no_such_table(made: tuple[Study, Path, Path]):
    study, _, out = made
    assert "initialization" not in catalogue.of(catalogue.TABLES, study.config)
    assert "one initialization" in (out / "initialization.md").read_text()


def test_a_study_of_raw_readouts_alone_has_no_eps(tmp_path: Path):
    study = synthetic.make_study(tmp_path, ["44m"], ["perloop-raw"], [42, 101], steps=200)
    synthetic.write(study)
    collect(study, tmp_path / "collected")
    tables.write("radial", tmp_path / "collected", tmp_path / "t")
    row = shown(tmp_path / "t", "radial", "perloop-raw")
    assert row[4] == row[5] == "—" and row[3].startswith("0.01")


def test_spectrum_is_over_a_random_direction_of_the_same_run(made: tuple[Study, Path, Path]):
    """What each direction is seen and grows, and what a state hides."""
    study, _, out = made
    table = pd.read_csv(out / "spectrum.csv")
    assert len(table) == len(CELLS) * 2 * 6
    for cell, hides in (("perloop-rms", 1), ("perloop-raw", 0)):
        for direction, k in (("radial", 4), ("least-visible", 1)):
            chosen = f"cell == '{cell}' and direction == '{direction}' and k == {k}"
            row = table.query(chosen).iloc[0]
            assert (row["seeds"], row["hidden_mean"], row["width"]) == (3, hides, 512)
            for value in ("visibility", "activity"):
                ratios, plain = [], []
                for frame in each(study, cell, "spectrum.csv"):
                    by = frame[frame["k"] == k].set_index("direction")[value]
                    ratios.append(by[direction] / by["random"])
                    plain.append(by[direction])
                assert row[f"{value}_to_random"] == pytest.approx(gmean(ratios))
                assert row[value] == pytest.approx(gmean(plain))
        found = shown(out, "spectrum", cell)
        assert found[3] == f"{hides}.00 of 512"
        assert found[-2:] == ["0.20 ± 0.00", "0.02"]
