"""Figures of tails, gradients, updates, interventions, budgets and initializations: what is drawn
equals what was measured."""

import math
import shutil
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from scipy.stats import gmean

import synthetic
from blindspot.collect.collect import collect
from blindspot.collect.collected import Collected
from blindspot.config.study import Study
from blindspot.publish import catalogue, figures, style
from blindspot.publish.figures import interventions, mechanism, panels, scale, tails
from blindspot.publish.figures.drawn import drawn as read_off
from synthetic import PAPER
from test_figures import visible

CELLS = ["terminal-rms", "perloop-rms", "perloop-raw"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One size, three cells, two seeds."""
    folder = tmp_path_factory.mktemp("made")
    study = synthetic.make_study(folder, ["44m"], CELLS, [42, 101], steps=400)
    synthetic.write(study)
    collect(study, folder / "collected")
    return folder / "collected"


@cache
def drawn(name: str, collected: Path) -> panels.Panels:
    with style.theme():
        return figures.DRAWN[name](Collected(collected))


def curve(ax: Axes, cell: str, points: int) -> Line2D:
    """The line of that cell with so many points."""
    look = style.KNOWN[cell]
    (line,) = [
        line
        for line in ax.get_lines()
        if to_hex(line.get_color()).upper() == look.color
        and len(line.get_xdata()) == points
        and line.get_linestyle() != "None"
    ]
    return line


def test_survival_against_a_loop_over_tokens():
    """Two seeds, one with all norms in two bins: each its own curve, fine where bins are not."""
    rng = np.random.default_rng(0)
    seeds = {1: rng.lognormal(2, 1, 400), 2: rng.normal(76.2, 0.3, 3000)}
    rows, norms = [], []
    for seed, tokens in seeds.items():
        place = np.floor(np.log10(tokens) * 50)
        for at, count in zip(*np.unique(place, return_counts=True), strict=True):
            edges = {"low": 10 ** (at / 50), "high": 10 ** ((at + 1) / 50), "count": count}
            rows.append({"size": "s", "cell": "c", "seed": seed} | edges)
        levels = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
        quantiles = {f"l2_{name}": np.quantile(tokens, q) for name, q in levels.items()}
        norms.append({"size": "s", "cell": "c", "seed": seed, "tokens": len(tokens)} | quantiles)
    found = tails.survival(pd.DataFrame(rows), pd.DataFrame(norms))
    for seed, part in found.groupby("seed"):
        tokens = seeds[seed]
        for norm, share in zip(part["norm"], part["share"], strict=True):
            above = sum(1 for token in tokens if token >= norm * (1 - 1e-12))
            assert share == pytest.approx(above / len(tokens), abs=1.1 / len(tokens))
        assert part["share"].iloc[0] == 1
        assert part["share"].is_monotonic_decreasing and part["norm"].is_monotonic_increasing
        # A quantile and the largest token, however few the bins.
        assert {0.5, 0.1, 0.01, 1 / len(tokens)} <= set(part["share"])


def test_a_quantile_that_the_counts_refute_is_left_out():
    hist = pd.DataFrame({"low": [1.0, 2.0], "high": [2.0, 3.0], "count": [9, 1]}).assign(
        size="s", cell="c", seed=1
    )
    quantiles = {"l2_p50": 2.5, "l2_p90": 1.5, "l2_p99": 2.9, "l2_p999": 9.0, "l2_max": 2.9}
    norms = pd.DataFrame([{"size": "s", "cell": "c", "seed": 1, "tokens": 10} | quantiles])
    found = tails.survival(hist, norms)
    # Half of the tokens cannot be at least 2.5 where a tenth is at least 2.
    assert found[["norm", "share"]].to_numpy().tolist() == [
        [1.0, 1.0], [1.5, 0.1], [2.0, 0.1], [2.9, 0.1], [2.9, 0.01]
    ]  # fmt: skip


def test_each_seed_has_its_curve(made: Path):
    """Pooled, three seeds whose norms differ look like a heavy tail that none of them has."""
    ax = drawn("token-norm-survival", made).axes[0, 0]
    own = [x for x in ax.get_lines() if to_hex(x.get_color()).upper() == "#D55E00"]
    assert len(own) == 2
    h = pd.read_csv(made / "norm_hist.csv").query("cell == 'perloop-rms' and k == 4")
    first = h[h["seed"] == 42].sort_values("low")
    share = first["count"][::-1].cumsum()[::-1] / first["count"].sum()
    drawn_at = dict(zip(own[0].get_xdata(), own[0].get_ydata(), strict=True))
    for low, expected in zip(first["low"], share, strict=True):
        assert drawn_at[low] == pytest.approx(expected)


def test_first_passing_against_a_loop():
    steps, norms = [1, 10, 20, 30], {1: [50, 120, 90, 2000], 2: [50, 60, 99, 100]}
    rows = [
        {"size": "s", "cell": "c", "seed": seed, "step": step, "norm_mean": norm}
        for seed, values in norms.items()
        for step, norm in zip(steps, values, strict=True)
    ]
    found = scale.first_passing(pd.DataFrame(rows)).set_index("norm")
    # 100 is passed at 10 and at 30, 1,000 by one of two at 30, 10,000 by none.
    assert found.loc[100, ["step", "seeds", "runs"]].tolist() == [20, 2, 2]
    assert found.loc[1000, ["step", "seeds", "runs"]].tolist() == [30, 1, 2]
    assert 10_000 not in found.index


def test_norms_that_stay_small_are_said_to(made: Path):
    below = drawn("norm-over-training", made).axes[1, 0]
    texts = {text.get_position()[1]: text.get_text() for text in below.texts}
    assert texts == {2: "stays below 100"}  # perloop-raw, the third row
    t = pd.read_csv(made / "trajectory.csv").query("split == 'train' and k == 4")
    own = t.query("cell == 'perloop-rms' and norm_mean >= 10000").groupby("seed")["step"].min()
    (mark,) = [x for x in below.get_lines() if x.get_marker() == "D"]
    assert mark.get_xdata()[0] == pytest.approx(own.mean())


def test_radial_fractions_are_those_measured(made: Path):
    figure = drawn("radial-fraction", made)
    g = pd.read_csv(made / "gradients.csv").query("source == 'ce' and dtype == 'float64'")
    for row, path, depths in ((0, "immediate", (1, 2, 3, 4)), (1, "recurrence", (1, 2, 3))):
        line = curve(figure.axes[row, 0], "perloop-raw", len(depths))
        expected = [
            g.query(f"path == '{path}' and cell == 'perloop-raw' and k == {k}")[
                "cos_abs_mean"
            ].pipe(gmean)
            for k in depths
        ]
        assert line.get_ydata() == pytest.approx(expected)
    # Chance, and the floor of float32 over blind readouts, are lines across.
    across = [x.get_ydata()[0] for x in figure.axes[0, 0].get_lines() if len(x.get_ydata()) == 2
              and x.get_ydata()[0] == x.get_ydata()[1]]  # fmt: skip
    assert any(y == pytest.approx(math.sqrt(2 / math.pi / 512), rel=1e-3) for y in across)
    assert any(3e-9 < y < 1e-8 for y in across)
    # Exits of terminal cells that were not trained are dotted.
    assert curve(figure.axes[0, 0], "terminal-rms", 3).get_linestyle() == ":"


def test_the_update_lemma_is_drawn_along_k_and_at_fixed_u(made: Path):
    check, angular, radial = drawn("update-lemma", made).axes[0]
    u = pd.read_csv(made / "updates.csv").query("cell == 'perloop-rms'").groupby("k")
    # Loops of training, and from the last of them on, thin, those beyond.
    for points, rows in ((4, slice(0, 4)), (27, slice(3, 30))):
        assert curve(angular, "perloop-rms", points).get_ydata() == pytest.approx(
            u["angular_step_norm_mean"].apply(gmean).to_numpy()[rows]
        )
        assert curve(radial, "perloop-rms", points).get_ydata() == pytest.approx(
            u["radial_mean"].mean().to_numpy()[rows]
        )
    assert radial.get_yscale() == "symlog"
    own = [x for x in check.get_lines() if to_hex(x.get_color()).upper() == "#D55E00"]
    assert sorted(x.get_ydata()[0] for x in own) == pytest.approx([1.5, 2.0])
    # The guide falls as 1/s.
    guide = next(x for x in check.get_lines() if to_hex(x.get_color()) == panels.NOTE.lower())
    x, y = guide.get_xdata(), guide.get_ydata()
    assert x[0] * y[0] == pytest.approx(x[1] * y[1])


def test_angles_and_norms_are_those_measured(made: Path):
    figure = drawn("angle", made)
    successive, away, over = figure.axes[:, 0]
    u = pd.read_csv(made / "updates.csv").query("cell == 'perloop-rms'")
    by_k = u.groupby("k")[["angle_mean", "norm_mean"]].agg(gmean).loc[1:3]
    assert curve(successive, "perloop-rms", 3).get_ydata() == pytest.approx(by_k["angle_mean"])
    first = u.groupby("k")["angle_from_first_mean"].agg(gmean).loc[1:3]
    line = curve(away, "perloop-rms", 3)
    assert line.get_ydata() == pytest.approx(first.to_numpy())
    assert np.round(line.get_xdata()).tolist() == [2, 3, 4]  # row k of the file ends in H_k+1
    line = curve(over, "perloop-rms", 3)
    assert line.get_xdata() == pytest.approx(by_k["norm_mean"])
    assert line.get_ydata() == pytest.approx(by_k["angle_mean"])
    for guide in over.get_lines():
        if to_hex(guide.get_color()).upper() == mechanism.GUIDE["color"]:
            x, y = guide.get_xdata(), guide.get_ydata()
            assert x[0] * y[0] == pytest.approx(x[1] * y[1])


def test_a_log_that_is_too_coarse_has_no_row_of_first_passings(made: Path):
    t = pd.read_csv(made / "trajectory.csv").query("split == 'train' and k == 4")
    assert scale.resolved(t) and drawn("norm-over-training", made).axes.shape == (2, 1)
    # Of a log at steps 1, 200 and 400 all but one of the norms are first seen at 200.
    coarse = t[t["step"] % 200 == 0]
    assert not scale.resolved(coarse)
    start = coarse.query("step == 200").assign(step=1, norm_mean=40.0)
    assert not scale.resolved(pd.concat([start, coarse]))
    assert scale.resolved(t.assign(norm_mean=50.0)), "that none passes is known"


def test_marks_of_calibrated_halting_tell_cells_and_variants_without_colour():
    marks = {
        (cell, variant): interventions.calibrated_mark(variant, look)
        for cell, look in style.KNOWN.items()
        for variant in ("oracle", "realised")
    }
    for cell in style.KNOWN:
        assert marks[cell, "realised"]["marker"] == style.KNOWN[cell].marker
        assert marks[cell, "realised"]["fillstyle"] == "left"
        assert "fillstyle" not in marks[cell, "oracle"]


def test_clamp_changes_are_those_measured(made: Path):
    axes = drawn("clamp", made).axes
    c = pd.read_csv(made / "clamp.csv").query("cell == 'perloop-raw'")
    for row, name in enumerate(("norm", "radial")):
        expected = c[c["intervention"] == name].groupby("k")["change_mean"].mean()
        assert curve(axes[row, 0], "perloop-raw", 4).get_ydata() == pytest.approx(
            expected.to_numpy()
        )


def test_halting_curves_share_an_axis():
    """Seeds with other thresholds: read off at the same mean loops, between the two around it."""
    rows = [
        {"size": "s", "cell": "c", "seed": seed, "mean_loops": x, "relative_ppl": y}
        for seed, points in {
            1: [(1, 1.5), (2, 1.1), (4, 1.0)],
            2: [(1, 2), (3, 1.2), (4, 1)],
        }.items()
        for x, y in points
    ]
    found = interventions.on_grid(pd.DataFrame(rows), {"c": 4}).set_index(["seed", "loops"])
    values = found["relative_ppl"]
    assert values[1, 3.0] == pytest.approx(1.05) and values[2, 3.0] == pytest.approx(1.2)
    assert values[2, 2.0] == pytest.approx(1.6) and len(values) == 62


def test_training_curves_at_equal_flops(made: Path):
    axes = drawn("training-curves", made).axes
    t = pd.read_csv(made / "trajectory.csv").query("split == 'validation' and k == 4 and step > 0")
    for cell, flops in (("terminal-rms", 0.892e9), ("perloop-rms", 1.076e9)):
        own = t[t["cell"] == cell].groupby("tokens")["ce"].mean()
        line = curve(axes[1, 0], cell, len(own))
        assert line.get_xdata() == pytest.approx(own.index * flops, rel=1e-3)
        assert line.get_ydata() == pytest.approx(own.to_numpy())


def test_two_initializations_side_by_side(tmp_path: Path):
    study = synthetic.make_study(tmp_path, ["44m"], synthetic.INIT, [42, 101], steps=200)
    synthetic.write(study, synthetic.TOY)
    collect(study, tmp_path / "c")
    figure = drawn("initialization", tmp_path / "c")
    titles = [ax.get_title(loc="left") for ax in figure.axes[0]]
    assert titles == ["44m, default", "44m, N(0, 0.02²)"]
    norms = pd.read_csv(tmp_path / "c" / "norms.csv")
    for column, cell in enumerate(("perloop-rms", "perloop-rms-std0.02")):
        own = norms[norms["cell"] == cell].query("k >= 1").groupby("k")["l2_mean"].apply(gmean)
        # In both columns the cell has one look: only the initialization differs.
        line = curve(figure.axes[0, column], "perloop-rms", 4)
        assert line.get_ydata() == pytest.approx(own.to_numpy())
    figure.figure.canvas.draw()
    boxes = [(t.get_text(), t.get_window_extent().padded(-1)) for t in visible(figure.figure)]
    for (one, a), (other, b) in combinations(boxes, 2):
        assert not a.overlaps(b), f"{one!r} and {other!r}"
    assert "initialization" in catalogue.of(catalogue.FIGURES, study.config)


def test_initializations_among_many_cells_are_drawn_as_if_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Points keep their loops, and the axis ends with K of what is drawn."""
    base = synthetic.make_study(tmp_path, ["44m"], synthetic.INIT, [42], 200)
    values = base.config.model_dump()
    values["cells"]["terminal-rms"]["loops"] = 6
    study = Study.of(values)
    deeper = {"terminal-rms": synthetic.TOY.ppl["terminal-rms"] + [30.0, 29.0]}
    longer = {"terminal-rms": synthetic.TOY.norm["terminal-rms"] + [500.0, 600.0]}
    ppl, norm = synthetic.TOY.ppl | deeper, synthetic.TOY.norm | longer
    synthetic.write(
        study, replace(synthetic.TOY, ppl=ppl, norm=norm, speed=[9e3 / k for k in range(1, 7)])
    )
    collect(study, tmp_path / "c")
    monkeypatch.setattr(figures, "LEGIBLE", 2)
    figures.draw("initialization", tmp_path / "c", tmp_path)
    drawn_of, said = figures._legible(
        catalogue.FIGURES["initialization"], Collected(tmp_path / "c")
    )
    # With another K the terminal cell has no partner.
    partners = {cell for cell in synthetic.INIT if not cell.startswith("terminal-rms")}
    assert set(drawn_of.cells) == partners and drawn_of.deepest == 4 and not said
    points = pd.read_csv(tmp_path / "initialization.csv")
    assert (points["x"] - points["x"].round()).abs().max() < 0.3
    assert "terminal-rms" not in set(points["series"])


def test_one_initialization_is_said_and_is_no_target(made: Path):
    (text,) = drawn("initialization", made).axes[0, 0].texts
    assert text.get_text() == "this study has one initialization"
    config = synthetic.make_study(made, ["44m"], CELLS).config
    assert "initialization" not in catalogue.of(catalogue.FIGURES, config)


@pytest.mark.parametrize("values", [[0.0, 0.0], [-5.0, 1e4], [0.001, 0.002], [-300.0, -0.1]])
def test_a_symmetric_log_axis_holds_all_values(values: list[float]):
    from matplotlib.figure import Figure

    ax = Figure().add_subplot()
    panels.symlog_axis(ax, pd.Series([*values, math.nan]), linear=0.01)
    low, high = ax.get_ylim()
    assert low < min(values) and max(values) < high and low < 0 < high
    assert 0 in ax.get_yticks() and len(ax.get_yticks()) <= 12


def test_a_direction_stands_where_it_is_seen_and_grows(made: Path):
    """One marker a cell and direction, over a random direction of the same run; what is below the
    floor stands at it."""
    frame = pd.read_csv(made / "spectrum.csv").query("k == 4")
    axes = drawn("spectrum", made).axes
    assert axes.shape == (5, 1)
    for row, direction in ((0, "radial"), (1, "least-visible"), (4, "mean-state")):
        for cell in CELLS:
            by = frame[frame["cell"] == cell].set_index(["direction", "seed"])
            expected = [
                gmean(by.loc[direction, value] / by.loc["random", value])
                for value in ("visibility", "activity")
            ]
            look = style.KNOWN[cell]
            (point,) = [
                line
                for line in axes[row, 0].get_lines()
                if line.get_marker() == look.marker
                and to_hex(line.get_color()).upper() == look.color
            ]
            assert (point.get_xdata()[0], point.get_ydata()[0]) == pytest.approx(expected)
    numbers = read_off(drawn("spectrum", made).figure)
    own = numbers[(numbers["row"] == 1) & (numbers["series"] == "perloop-raw")].iloc[0]
    by = frame[frame["cell"] == "perloop-raw"].set_index(["direction", "seed"])["activity"]
    logs = np.log(by["radial"] / by["random"])
    half = 12.7062047 * logs.std(ddof=1) / math.sqrt(2)
    ends = math.exp(logs.mean() - half), math.exp(logs.mean() + half)
    assert (own["y"], own["low"], own["high"]) == pytest.approx((math.exp(logs.mean()), *ends))
    assert len(numbers) == 5 * len(CELLS)
    assert axes[0, 0].get_xlim()[0] < 1e-10 and axes[1, 0].get_xlim()[0] > 1e-3


def test_what_is_not_seen_at_all_stands_at_the_floor(made: Path, tmp_path: Path):
    shutil.copytree(made, tmp_path / "c")
    path = tmp_path / "c/spectrum.csv"
    frame = pd.read_csv(path)
    frame.loc[frame["direction"] == "ones", "visibility"] = [0.0, 1e-16] * 6
    frame.to_csv(path, index=False)
    ax = drawn("spectrum", tmp_path / "c").axes[3, 0]
    points = [line for line in ax.get_lines() if line.get_marker() in ("o", "s")]
    assert len(points) == 3
    assert [line.get_xdata()[0] for line in points] == [1e-12] * 3


LONG = [f"perloop-rms-reset-interloop-scale{4**i}" for i in range(5)]


@pytest.fixture(scope="module")
def long_names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cells of one sweep, with long names and one colour."""
    folder = tmp_path_factory.mktemp("long")
    cells = {name: {"loss": "per-loop", "readout": "rms"} for name in LONG}
    rates = {name: {"training": {"learning_rate": 1e-4 * (i + 1)}} for i, name in enumerate(LONG)}
    study = synthetic.make_study(folder, ["44m"], ["perloop-rms"], [42, 101], steps=400)
    values = study.config.model_dump()
    values["cells"] = {name: cells[name] | rates[name] for name in LONG}
    study = Study.of(values)
    ppl, norm = (dict.fromkeys(LONG, of["perloop-rms"]) for of in (PAPER.ppl, PAPER.norm))
    synthetic.write(study, replace(PAPER, ppl=ppl, norm=norm))
    collect(study, folder / "collected")
    return folder / "collected"


@pytest.mark.parametrize("name", ["spectrum", "collapse"])
def test_a_legend_of_long_names_is_not_cut_off(long_names: Path, name: str):
    figure = drawn(name, long_names).figure
    with style.theme():
        figure.canvas.draw()
    (legend,) = figure.legends
    assert [t.get_text() for t in legend.get_texts()][:5] == LONG
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1


def test_points_without_lines_are_told_apart_without_colour_and_dash(long_names: Path, made: Path):
    for folder, count in ((long_names, 5), (made, 3)):
        figure = drawn("spectrum", folder).figure
        own = figure.legends[0].legend_handles[:count]
        looks = {(h.get_marker(), h.get_fillstyle(), h.get_markerfacecolor()) for h in own}
        assert len(looks) == count
    # Many of one marker: each has a fill of its own.
    every = style.styles([*synthetic.CELLS, *(f"perloop-rms-{i}" for i in range(15))])
    marks = panels.marks(every)
    kinds = {(m["marker"], m["fillstyle"], m["markerfacecolor"] == "white") for m in marks.values()}
    assert len(kinds) == len(every) == 22


def test_a_long_legend_makes_the_figure_higher_and_is_drawn_over_nothing(
    tmp_path: Path, made: Path
):
    """Thirty cells: the panels keep the height that they have with three, or nearly."""
    names = [f"perloop-rms-cell{i}" for i in range(30)]
    study = synthetic.make_study(tmp_path, ["44m"], ["perloop-rms"], [42, 101], steps=400)
    values = study.config.model_dump()
    values["cells"] = {
        name: {"loss": "per-loop", "readout": "rms", "training": {"learning_rate": 1e-4 * (i + 1)}}
        for i, name in enumerate(names)
    }
    study = Study.of(values)
    ppl, norm = (dict.fromkeys(names, of["perloop-rms"]) for of in (PAPER.ppl, PAPER.norm))
    synthetic.write(study, replace(PAPER, ppl=ppl, norm=norm))
    collect(study, tmp_path / "collected")
    heights = []
    for folder in (made, tmp_path / "collected"):
        figure = drawn("norm-over-training", folder).figure
        with style.theme():
            figure.canvas.draw()
        axes = figure.axes[0].get_window_extent()
        assert figure.legends[0].get_window_extent().y1 < axes.y0
        heights.append(axes.height)
    assert heights[1] > 0.6 * heights[0]
