"""Cells with a K of their own: the last loop, and what lies beyond, is each run's own in every
table, figure and claim."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import synthetic
from blindspot.collect.collect import collect
from blindspot.collect.collected import Collected
from blindspot.config.study import Study
from blindspot.publish import claims, figures, style, tables, typeset
from blindspot.publish.matched import costs

#: K of each cell; that of the study is 4.
LOOPS = {"perloop-rms": 2, "perloop-raw": 6, "terminal-rms": 4}
PPL = {
    "perloop-rms": [60.0, 50.0],
    "perloop-raw": [70.0, 64.0, 60.0, 58.0, 57.0, 56.0],
    "terminal-rms": [900.0, 300.0, 90.0, 52.0],
}
NORM = {
    "perloop-rms": [14.0, 400.0, 800.0],
    "perloop-raw": [14.0, 5.0, 5.2, 5.4, 5.6, 5.8, 6.0],
    "terminal-rms": [14.0, 100.0, 200.0, 300.0, 400.0],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    folder = tmp_path_factory.mktemp("own")
    base = synthetic.make_study(folder, ["44m"], [*LOOPS], [42, 101], 200).config.model_dump()
    for name, loops in LOOPS.items():
        base["cells"][name]["loops"] = loops
    study = Study.of(base)
    speed = [9000.0, 4700.0, 3200.0, 2400.0, 1900.0, 1600.0]
    values = replace(synthetic.TOY, ppl=PPL, norm=NORM, speed=speed)
    # One exit beyond the trained K, of twice the perplexity.
    synthetic.write(study, values, deeper=[2.0])
    collect(study, folder / "collected")
    return study, folder / "collected"


def last(study: Study, cell: str, file: str, value: str, **where: object) -> float:
    """Geometric mean over seeds of a value at the run's last loop, from the run folders."""
    found = []
    for run in study.runs:
        if run.cell == cell:
            (path,) = (study.results / "runs" / run.name).glob(f"**/{file}")
            frame = pd.read_csv(path)
            for key, wanted in {**where, "k": LOOPS[cell]}.items():
                frame = frame[frame[key] == wanted]
            found.append(frame[value].item())
    return math.exp(np.log(found).mean())


def test_the_last_loop_of_a_table_is_the_runs_own(made: tuple[Study, Path], tmp_path: Path):
    study, collected = made
    for name in tables.MADE:
        tables.write(name, collected, tmp_path)
    main = pd.read_csv(tmp_path / "main.csv").set_index("cell")
    units = pd.read_csv(tmp_path / "perplexity.csv").query("protocol == 'full'")
    units = units[units["split"] == "validation"].set_index("cell")
    for cell, loops in LOOPS.items():
        ppl = last(study, cell, "exits.csv", "ppl", split="validation", protocol="full")
        assert main.loc[cell, "ppl"] == pytest.approx(ppl)
        assert units.loc[cell, "ppl"] == pytest.approx(ppl)
        assert main.loc[cell, "norm"] == pytest.approx(last(study, cell, "norms.csv", "l2_mean"))
        assert main.loc[cell, "loops"] == loops
    text = (tmp_path / "main.md").read_text()
    assert "| K |" in text and "K = 2 (perloop-rms), K = 4 (terminal-rms), K = 6" in text

    def shown(name: str) -> dict[str, dict[str, str]]:
        header, _, *rows = [
            [x.strip() for x in line.strip("|").split("|")]
            for line in (tmp_path / f"{name}.md").read_text().replace("\\|", "/").splitlines()
            if line.startswith("|")
        ]
        rows = [dict(zip(header, row, strict=True)) for row in rows]
        return {row["Cell"]: row for row in rows if row.get("Protocol", "full") == "full"}

    row = shown("norms")["perloop-rms"]
    assert row["H\\_2"] == typeset.number(main.loc["perloop-rms", "norm"]) and row["H\\_3"] == "—"
    rest = main.loc["perloop-rms", "norm"] / 2  # from 400 to 800, times the noise of the seeds
    assert float(row["Loops 2–K"]) == pytest.approx(rest, abs=0.06)
    depth = shown("depth")
    for cell, loops in LOOPS.items():
        marked = [k for k in range(1, 8) if depth[cell][f"k = {k}"].endswith("†")]
        assert marked == [loops + 1]
        empty = [k for k in range(1, 8) if depth[cell][f"k = {k}"] == "—"]
        assert empty == [*range(loops + 2, 8)]
    gain = math.log(60 / 50)
    assert float(shown("variable-depth")["perloop-rms"]["CE gain"].split()[0]) == pytest.approx(
        gain, abs=2e-3
    )
    speed = pd.read_csv(tmp_path / "throughput.csv").set_index(["architecture", "k"])["speedup"]
    assert speed["rms+k2", 2] == speed["rms", 4] == speed["raw+k6", 6] == 1
    assert (shown("clamp")["perloop-raw"]["K"], shown("updates")["terminal-rms"]["K"]) == ("6", "4")


def test_claims_read_the_last_loop_of_each_cell(made: tuple[Study, Path]):
    study, collected = made
    c = Collected(collected)
    rows = claims.evaluate(c).set_index("claim")
    n = {cell: last(study, cell, "norms.csv", "l2_mean") for cell in LOOPS}
    assert rows.loc["drift", "ours"] == pytest.approx(n["perloop-rms"] / n["perloop-raw"])
    assert rows.loc["growth-recurrence", "ours"] == pytest.approx(0.5)
    e = c.exits().set_index(["cell", "seed", "k"])["ce"]
    for claim, cell in (("k-invariance", "perloop-rms"), ("dead-exits", "terminal-rms")):
        gains = e[cell].xs(1, level="k") - e[cell].xs(LOOPS[cell], level="k")
        assert rows.loc[claim, "ours"] == pytest.approx(gains.mean())
    u = c.frame("updates").set_index(["cell", "seed", "k"])["angle_mean"]
    ratio = u["perloop-raw"].xs(5, level="k") / u["perloop-rms"].xs(1, level="k")
    assert rows.loc["freezing-raw", "ours"] == pytest.approx(math.exp(np.log(ratio).mean()))
    assert rows.loc["published-perplexity", "note"] == "published of another loops"


def test_curves_of_training_are_of_the_last_loop(made: tuple[Study, Path]):
    _, collected = made
    c = Collected(collected)
    t = c.frame("trajectory").query("split == 'validation'")
    points = costs(c)
    for cell, loops in LOOPS.items():
        own = t[(t["cell"] == cell) & (t["k"] == loops)]
        assert points.loc[points["cell"] == cell, "ce"].tolist() == own["ce"].tolist()


def test_figures_end_at_each_cells_own_loop_and_draw_the_rest_as_beyond(made: tuple[Study, Path]):
    _, collected = made
    with style.theme():
        drawn = {
            name: draw(Collected(collected))
            for name, draw in figures.DRAWN.items()
            if name != "initialization"
        }

    def ends(name: str, row: int, cell: str) -> list[tuple[float, bool]]:
        """Where each line of a cell ends, and whether it is dotted."""
        look = style.KNOWN[cell]
        return sorted(
            (round(max(line.get_xdata())), line.get_linestyle() == ":")
            for line in drawn[name].axes[row, 0].get_lines()
            if line.get_color() == look.color and len(line.get_xdata()) > 0
            and line.get_linestyle() != "None" and line.get_marker() == look.marker
        )  # fmt: skip

    for cell, loops in LOOPS.items():
        assert ends("perplexity-by-depth", 0, cell) == [(loops, False), (loops + 1, True)]
        assert (loops, False) in ends("norm-by-loop", 0, cell)
        assert (loops, False) in ends("radial-fraction", 0, cell)
        assert ends("clamp", 0, cell) == [(loops, False)]
        assert (loops, False) in ends("halting", 0, cell)
        assert (loops - 1, False) in ends("angle", 0, cell)
        assert max(ends("angle", 0, cell))[0] == loops - 1
    assert drawn["norm-over-training"].axes[0, 0].get_ylabel() == "norm of $H_{K}$"


@pytest.mark.parametrize(
    ("loops", "said"),
    [
        ({"a": 4, "b": 4, "c": 1, "d": 2}, "K = 4, but K = 1 (c), K = 2 (d)"),
        ({"a": 4, "b": 1}, "K = 1 (b), K = 4 (a)"),
    ],
)
def test_captions_name_the_cells_whose_k_is_not_that_of_most(loops: dict[str, int], said: str):
    assert Collected._depths(SimpleNamespace(depth="K", loops_of=loops)) == said
