"""Figures: what is drawn equals what was measured; nothing vanishes, overlaps or depends on the
user's machine (faults F-04, F-06, F-07, E-01 d, L-05)."""

import math
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.stats import gmean

import synthetic
from blindspot.collect.collect import collect
from blindspot.collect.collected import Collected
from blindspot.collect.stats import over_seeds
from blindspot.publish import figures, style
from blindspot.publish.catalogue import FIGURES
from blindspot.publish.figures import depth, panels
from blindspot.publish.figures.drawn import drawn as drawn_numbers

CELLS = [*synthetic.CELLS, "perloop-rms-interloop"]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight cells, two sizes, dead exits, one loop more than trained."""
    folder = tmp_path_factory.mktemp("toy")
    study = synthetic.make_study(folder, cells=CELLS, seeds=(42, 101), steps=200)
    synthetic.write(study, synthetic.TOY, deeper=[1.05])
    collect(study, folder / "collected")
    return folder / "collected"


@cache
def drawn(name: str, collected: Path) -> panels.Panels:
    with style.theme():
        return figures.DRAWN[name](Collected(collected))


def lines_of(ax, cell: str) -> list[Line2D]:
    """The lines of that cell, without bars and triangles."""
    look = style.KNOWN[cell]
    return [
        line
        for line in ax.get_lines()
        if to_hex(line.get_color()).upper() == look.color
        and line.get_marker() == look.marker
        and line.get_linestyle() != "None"
    ]


def line_of(ax, cell: str, points: int) -> Line2D:
    (line,) = [line for line in lines_of(ax, cell) if len(line.get_xdata()) == points]
    return line


def geometric(frame: pd.DataFrame, value: str, **where: object) -> float:
    for column, wanted in where.items():
        frame = frame[frame[column] == wanted]
    assert len(frame) == 2  # seeds
    return math.sqrt(math.prod(frame[value]))


def test_every_figure_of_the_catalogue_can_be_drawn():
    assert list(figures.DRAWN) == list(FIGURES)


def test_perplexities_and_norms_are_those_measured(toy: Path):
    exits, norms = pd.read_csv(toy / "exits.csv"), pd.read_csv(toy / "norms.csv")
    for column, size in enumerate(("44m", "129m")):
        close = drawn("perplexity-by-depth", toy).axes[1, column]
        top = drawn("norm-by-loop", toy).axes[0, column]
        for cell in ("perloop-rms", "perloop-raw"):
            expected = [
                geometric(
                    exits, "ppl", size=size, cell=cell, k=k, split="validation", protocol="full"
                )
                for k in (1, 2, 3, 4)
            ]
            assert line_of(close, cell, 4).get_ydata() == pytest.approx(expected)
            expected = [geometric(norms, "l2_mean", size=size, cell=cell, k=k) for k in range(1, 5)]
            assert line_of(top, cell, 4).get_ydata() == pytest.approx(expected)


def test_loop_1_is_drawn_apart(toy: Path):
    axes = drawn("norm-by-loop", toy).axes
    first, rest = line_of(axes[0, 0], "perloop-rms", 2), line_of(axes[0, 0], "perloop-rms", 4)
    assert first.get_linestyle() == ":" and rest.get_linestyle() == "-"
    labels = [label.get_text() for label in axes[0, 0].get_xticklabels()]
    assert labels[0] == "$H_0$"
    norms = pd.read_csv(toy / "norms.csv").query("size == '44m' and cell == 'perloop-rms'")
    by_k = norms.pivot(index="seed", columns="k", values="l2_mean")
    expected = [gmean(by_k[1] / by_k[0]), gmean(by_k[4] / by_k[1])]
    dots = [
        line.get_xdata()[0]
        for line in axes[1, 0].get_lines()
        if to_hex(line.get_color()).upper() == style.KNOWN["perloop-rms"].color
    ]
    assert dots == pytest.approx(expected)


def test_frontier_joins_speed_and_perplexity_of_the_same_cell_and_depth(toy: Path):
    exits, speed = pd.read_csv(toy / "exits.csv"), pd.read_csv(toy / "throughput.csv")
    ax = drawn("frontier", toy).axes[0, 1]
    # Architectures half a percent apart, whose quartiles overlap, stand at one speed.
    speed["tokens_per_s"] = speed.groupby(["size", "k"])["tokens_per_s"].transform(
        lambda rates: np.median(rates.unique())
    )
    for cell in ("perloop-rms", "perloop-rms-interloop"):
        rates = speed[(speed["size"] == "129m") & (speed["cell"] == cell)]
        rates = rates.set_index("k")["tokens_per_s"]
        line = line_of(ax, cell, 4)
        assert line.get_xdata() == pytest.approx([rates[k] for k in (4, 3, 2, 1)])
        assert line.get_ydata() == pytest.approx(
            [
                geometric(
                    exits, "ppl", size="129m", cell=cell, k=k, split="validation", protocol="full"
                )
                for k in (4, 3, 2, 1)
            ]
        )


def test_pareto_front_against_the_definition():
    rng = np.random.default_rng(0)
    points = pd.DataFrame({"tokens_per_s": rng.integers(1, 30, 80), "ppl": rng.integers(1, 30, 80)})
    points = points.drop_duplicates(ignore_index=True).astype(float)
    kept = set(depth.pareto(points).index)
    for i, p in points.iterrows():
        beaten = any(
            q["tokens_per_s"] >= p["tokens_per_s"] and q["ppl"] <= p["ppl"]
            for j, q in points.iterrows()
            if j != i
        )
        assert (i in kept) == (not beaten)


def test_points_off_the_scale_are_marked_and_counted(toy: Path):
    """Dead exits of three terminal cells, at three depths, beside perplexities of 60."""
    figure = drawn("perplexity-by-depth", toy)
    close = figure.axes[1, 0]
    marked = sum(
        len(line.get_xdata()) for line in close.get_lines() if line.get_linestyle() == "None"
        and line.get_marker() == "^" and not line.get_clip_on()
    )  # fmt: skip
    assert marked == 9
    assert "9 points off the scale" in [text.get_text() for text in close.texts]
    assert not [text for text in figure.axes[0, 0].texts if "off the scale" in text.get_text()]


def test_zero_and_infinity_on_a_log_axis():
    """F-06: 0, 17 and 39,207 of seeds that differ by factors, and an infinite value."""
    values = {1: (0.0, 0.0), 2: (8.5, 34.0), 3: (30_000.0, 51_239.0), 4: (5.0, math.inf)}
    rows = [
        {"cell": "perloop-rms", "k": k, "seed": seed, "y": y}
        for k, pair in values.items()
        for seed, y in enumerate(pair)
    ]
    frame = over_seeds(pd.DataFrame(rows), ["cell", "k"], ["y"], log=["y"])
    ax = Figure().add_subplot()
    ax.set_yscale("log")
    limits = panels.log_limits(frame["y"])
    assert 10 < limits[0] < 17 and 39_207 < limits[1] < 70_000
    ax.set_ylim(limits)
    cells = {"perloop-rms": style.KNOWN["perloop-rms"]}
    panels.lines(ax, frame, "k", "y", cells, "interval")
    (line,) = [x for x in ax.get_lines() if len(x.get_xdata()) == 3 and x.get_marker() == "o"]
    assert list(line.get_ydata()) == pytest.approx([0, 17, 39_207], rel=1e-4)
    # 8.5 and 34: a linear interval would reach from -141 to 184. Points off the axis have no bar.
    (bars,) = [c.get_segments() for c in ax.collections]
    reach = math.exp(12.706 * math.log(2))
    assert {segment[0][0] for segment in bars} == {2, 3}
    assert bars[0][:, 1] == pytest.approx([17 / reach, 17 * reach], rel=1e-3)
    ax.set_ylim(limits)
    assert panels.off_scale(ax, frame, "k", "y", cells) == 2
    assert "2 points off the scale" in [text.get_text() for text in ax.texts]


def test_depths_beyond_training_are_not_joined(toy: Path):
    close = drawn("perplexity-by-depth", toy).axes[1, 0]
    for cell in CELLS:
        inside, beyond = sorted(lines_of(close, cell), key=lambda line: max(line.get_xdata()))
        assert max(inside.get_xdata()) < 4.5 < min(beyond.get_xdata())
        assert (len(beyond.get_xdata()), beyond.get_linestyle()) == (1, ":")
    notes = [t.get_text() for t in drawn("perplexity-by-depth", toy).axes[0, 0].texts]
    assert "beyond the trained K" in notes


def test_bands_reach_from_the_lowest_to_the_highest_seed(toy: Path):
    ax = drawn("norm-over-training", toy).axes[0, 0]
    (band,) = [b for b in ax.collections if to_hex(b.get_facecolor()[0]).upper() == "#D55E00"]
    t = pd.read_csv(toy / "trajectory.csv").query(
        "size == '44m' and cell == 'perloop-rms' and k == 4 and split == 'train'"
    )
    path = band.get_paths()[0].vertices
    for step, values in t.groupby("step")["norm_mean"]:
        drawn_at = path[path[:, 0] == step][:, 1]
        assert (drawn_at.min(), drawn_at.max()) == pytest.approx((values.min(), values.max()))


def test_one_seed_has_no_band(tmp_path: Path):
    study = synthetic.make_study(tmp_path, ["44m"], seeds=[42], steps=200)
    synthetic.write(study, untimed=["44m"])
    collect(study, tmp_path / "c")
    for name in ("training-curves", "norm-over-training"):
        assert not drawn(name, tmp_path / "c").axes[0, 0].collections
    assert "One seed a cell: no interval" in figures.caption("norm-by-loop", tmp_path / "c")
    # No throughput: the figure says so instead of failing or standing empty.
    texts = drawn("frontier", tmp_path / "c").axes[0, 0].texts
    assert [t.get_text() for t in texts] == ["throughput is not measured"]
    assert "not measured at 44m" in figures.caption("frontier", tmp_path / "c")


@pytest.mark.parametrize(
    "name", [n for n, item in FIGURES.items() if not (item.two_initializations or item.asks)]
)
def test_files(toy: Path, tmp_path: Path, name: str):
    figure = drawn(name, toy).figure
    with style.theme():
        style.save(figure, tmp_path, name)
        figure.canvas.draw()  # lays out at the screen's resolution, in which extents are given
    pdf, png = (tmp_path / f"{name}.pdf").read_bytes(), (tmp_path / f"{name}.png").read_bytes()
    assert pdf.startswith(b"%PDF") and b"/Type3" not in pdf and b"DejaVuSans" in pdf
    assert b"Date" not in pdf
    for secret in (str(tmp_path), os.environ.get("HOME", "/root"), "matplotlib", "tEXt"):
        assert secret.encode() not in pdf + png
    assert len(png) < 400_000
    assert int.from_bytes(png[16:20]) == style.DPI * style.WIDTH
    # Its numbers are of cells alone: of each that the legend names, and none of a guide.
    series = {
        str(name).partition(":")[0].partition(",")[0] for name in drawn_numbers(figure)["series"]
    }
    named = {text.get_text() for legend in figure.legends for text in legend.get_texts()}
    assert series == named & set(CELLS) and series
    # No label lies on another, and none is cut off.
    boxes = [(text.get_text(), text.get_window_extent().padded(-1)) for text in visible(figure)]
    assert len(boxes) > 20
    for (one, a), (other, b) in combinations(boxes, 2):
        assert not a.overlaps(b), f"{one!r} and {other!r}"
    for text, box in boxes:
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1, f"{text!r} is cut off"


def visible(figure: Figure) -> list:
    found = [text for legend in figure.legends for text in legend.get_texts()]
    for ax in figure.axes:
        for child in (ax, *ax.child_axes):
            found += [t for t in (child.title, child._left_title, *child.texts) if t.get_text()]
            for axis in (child.xaxis, child.yaxis):
                low, high = sorted(axis.get_view_interval())
                found += [
                    tick.label2 if child in ax.child_axes else tick.label1
                    for tick in axis.get_major_ticks()
                    if low <= tick.get_loc() <= high and tick.label1.get_text()
                ]
                found += [axis.label] if axis.label.get_text() else []
    return [text for text in found if text.get_visible()]


def test_bytes_do_not_depend_on_user_place_or_time(toy: Path, tmp_path: Path):
    """F-04: a user's matplotlibrc, TZ, LANG and HOME have no influence on the bytes."""
    figures.draw("norm-over-training", toy, tmp_path / "a")
    rc = "lines.linewidth: 9\nfont.family: serif\naxes.grid: False\nsavefig.dpi: 30\n"
    (tmp_path / "matplotlibrc").write_text(rc + "backend: svg\npdf.fonttype: 3\n")
    code = (
        "from pathlib import Path; from blindspot.publish import figures; import sys;"
        "figures.draw('norm-over-training', Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    environment = os.environ | {
        "MATPLOTLIBRC": str(tmp_path / "matplotlibrc"),
        "TZ": "Pacific/Auckland",
        "LANG": "C",
        "PYTHONHASHSEED": "7",
        "SOURCE_DATE_EPOCH": "0",
    }
    result = subprocess.run(
        [sys.executable, "-c", code, str(toy), str(tmp_path / "b")],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stderr == ""
    for ending in ("pdf", "png"):
        file = f"norm-over-training.{ending}"
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


# --- styles ----------------------------------------------------------------------------------


def test_a_cell_looks_the_same_in_every_figure_whatever_is_missing():
    whole, some = style.styles(CELLS), style.styles(CELLS[4:])
    assert all(some[cell] == whole[cell] for cell in some)
    assert len(set(whole.values())) == len({s.color for s in whole.values()}) == 8


def test_known_cells_are_told_apart_without_colour():
    looks = {(s.marker, str(s.dash), s.filled) for s in style.KNOWN.values()}
    assert len(looks) == len(style.KNOWN)


def test_colours_are_apart_for_colour_blind_readers():
    """Simulated deuteranopia and protanopia (Machado 2009, severity 1), distances in CIE Lab."""
    simulate = {
        "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
        "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    }
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )

    def lab(color: str, matrix: list) -> np.ndarray:
        rgb = np.array(to_rgb(color))
        linear = np.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
        xyz = to_xyz @ np.clip(np.array(matrix) @ linear, 0, 1) / [0.9505, 1.0, 1.089]
        f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
        return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])

    for matrix in simulate.values():
        for a, b in combinations(style.KNOWN.values(), 2):
            distance = np.linalg.norm(lab(a.color, matrix) - lab(b.color, matrix))
            # Two lines of one kind must differ clearly; dashes and markers carry the rest.
            assert distance > (10 if a.filled == b.filled else 5)


def test_unknown_cells_have_stable_styles_none_twice():
    names = [f"my-cell-{i}" for i in range(40)] + ["perloop-rms-small-init", "perloop-rms-b"]
    looks = style.styles([*CELLS, *names])
    assert len(set(looks.values())) == len(looks)
    assert style.styles(["my-cell-3"])["my-cell-3"] == style.styles(["x", "my-cell-3"])["my-cell-3"]
    assert looks["perloop-rms-small-init"].color == style.KNOWN["perloop-rms"].color


def test_captions_say_all(toy: Path):
    for name in FIGURES:
        text = figures.caption(name, toy)
        spread = {"interval": "8.98", "range": "bands all seeds", "runs": "One curve a run"}[
            FIGURES[name].spread
        ]
        for part in ("Study paper", "wikitext-103-raw-v1", "2 at 44m, 2 at 129m", spread):
            assert part in text, name
        assert "Not shown" not in text
    assert "Protocol full" in figures.caption("frontier", toy)
    assert re.search(r"NVIDIA H200 at bf16", figures.caption("frontier", toy))


def test_a_unigram_model_is_drawn_where_it_can_be_seen(toy: Path):
    """Its perplexity is 420: above the exits that live, among the dead ones."""
    axes = drawn("perplexity-by-depth", toy).axes

    def across(ax) -> list[float]:
        return [x.get_ydata()[0] for x in ax.get_lines() if tuple(x.get_xdata()) == (0, 1)]

    assert across(axes[0, 0]) == pytest.approx([420.0]) and across(axes[1, 0]) == []
    names = [t.get_text() for t in drawn("perplexity-by-depth", toy).figure.legends[0].get_texts()]
    assert "unigram model" in names
    frontier = [t.get_text() for t in drawn("frontier", toy).figure.legends[0].get_texts()]
    assert "unigram model" not in frontier, "no entry for a line that is not there"


def test_models_worse_than_a_unigram_model_are_seen_to_be(toy: Path, tmp_path: Path):
    shutil.copytree(toy, tmp_path / "c")
    b = pd.read_csv(toy / "baselines.csv")
    b.loc[b["baseline"] == "unigram", "ce"] = math.log(30)
    b.to_csv(tmp_path / "c" / "baselines.csv", index=False)
    for name, row, at in (("perplexity-by-depth", 1, 30), ("training-curves", 1, math.log(30))):
        figure = drawn(name, tmp_path / "c")
        low, high = figure.axes[row, 0].get_ylim()
        assert low < at < high, name
        assert "unigram model" in [t.get_text() for t in figure.figure.legends[0].get_texts()]


def test_the_numbers_of_a_figure_are_what_was_measured(toy: Path, tmp_path: Path):
    """Its CSV: means and intervals by cell at whole loops, points off the scale too; no guides."""
    figures.draw("norm-by-loop", toy, tmp_path)
    found = pd.read_csv(tmp_path / "norm-by-loop.csv")
    top = found[found["row"] == 1]
    assert set(top["panel"]) == {"44m", "129m"} and set(top["series"]) == set(CELLS)
    assert set(top["y_axis"]) == {"norm of the state"} and set(top["x_axis"]) == {"after loop k"}
    n = pd.read_csv(toy / "norms.csv")
    n = n[n["split"] == "validation"]
    for (size, cell, k), part in n.groupby(["size", "cell", "k"]):
        at = top[(top["panel"] == size) & (top["series"] == cell) & (top["x"] == k)]
        assert len(at) == 1, (size, cell, k)
        assert at["y"].item() == pytest.approx(gmean(part["l2_mean"]), rel=1e-6)
        if k:
            reach = np.log(at[["low", "high"]].to_numpy()).sum() / 2
            assert reach == pytest.approx(np.log(at["y"].item()), rel=1e-6)
    assert len(top) == len(n) / 2
    factors = found[(found["row"] == 2) & (found["series"] == "perloop-rms: loops 2 to K")]
    own = n[(n["cell"] == "perloop-rms") & (n["size"] == "44m")].pivot(index="seed", columns="k")
    growth = gmean(own["l2_mean"][4] / own["l2_mean"][1])
    assert factors.loc[factors["panel"] == "44m", "x"].item() == pytest.approx(growth, rel=1e-6)


def test_bands_are_among_a_figures_numbers_and_dead_exits_too(toy: Path, tmp_path: Path):
    figures.draw("norm-over-training", toy, tmp_path)
    found = pd.read_csv(tmp_path / "norm-over-training.csv")
    found = found[(found["row"] == 1) & (found["panel"] == "44m")]
    t = pd.read_csv(toy / "trajectory.csv")
    t = t[(t["split"] == "train") & (t["k"] == 4) & (t["size"] == "44m")]
    for (cell, step), part in t.groupby(["cell", "step"]):
        at = found[(found["series"] == cell) & (found["x"] == step)]
        ends = at[["low", "high"]].to_numpy().ravel()
        assert ends == pytest.approx([part["norm_mean"].min(), part["norm_mean"].max()], rel=1e-6)
    figures.draw("perplexity-by-depth", toy, tmp_path)
    found = pd.read_csv(tmp_path / "perplexity-by-depth.csv")
    assert found["y"].max() > 1e6  # off the scale of the lower panels


@pytest.mark.parametrize("name", ["frontier", "halting", "angle", "token-norm-survival"])
def test_every_figure_names_what_its_numbers_are_of(toy: Path, name: str):
    found = drawn_numbers(drawn(name, toy).figure)
    assert len(found) > 20 and found["series"].str.match("|".join(CELLS)).all()
    assert found[["x", "y"]].notna().all(axis=None)
    assert (found[["panel", "y_axis"]] != "").all(axis=None)
