"""What the pages of a study begin with: numbers computed here from the collected files, verdicts
counted here, pictures that decode; for studies of any kind and at any stage."""

import base64
import io
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy import stats

import synthetic
import synthetic_laws
from blindspot.collect.collect import collect
from blindspot.collect.collected import Collected
from blindspot.publish import claims, landing, summary
from blindspot.publish.catalogue import CLAIMS, FIGURES, ORDER, TABLES, heading

CELLS = ["terminal-rms", "perloop-rms", "perloop-raw"]


def laid_out(folder: Path, cells=CELLS, figures=landing.PICTURES, **more) -> Path:
    """The results of a study that is collected and judged, with a picture of each name."""
    study = synthetic.make_study(folder, sizes=["44m"], cells=cells, seeds=[42, 101, 202])
    synthetic.write(study, **more)
    collect(study, study.results / "collected")
    claims.write(study.results / "collected", study.results)
    (study.results / "figures").mkdir()
    for name in figures:
        Image.new("RGB", (2100, 900), "white").save(study.results / "figures" / f"{name}.png")
    return study.results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return laid_out(tmp_path_factory.mktemp("results"))


def interval(values: np.ndarray) -> tuple[float, float, float]:
    low, high = stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))
    return values.mean(), low, high


def test_the_three_numbers_by_hand(results: Path):
    n, e = (pd.read_csv(results / "collected" / f"{f}.csv") for f in ("norms", "exits"))
    drift, blind, seeing = summary.numbers(Collected(results / "collected"))
    norm = n[(n["split"] == "validation") & (n["k"] == 4)].pivot(
        index="seed", columns="cell", values="l2_mean"
    )
    logs = np.log(norm["perloop-rms"] / norm["perloop-raw"]).to_numpy()
    assert (drift.value, drift.low, drift.high) == pytest.approx(np.exp(interval(logs)))
    assert drift.shown == f"{np.exp(logs.mean()):,.0f}×"
    for cell, number in (("perloop-rms", blind), ("perloop-raw", seeing)):
        own = e[(e["cell"] == cell) & (e["split"] == "validation") & (e["protocol"] == "full")]
        ce = own.pivot(index="seed", columns="k", values="ce")
        change = np.expm1(interval((ce[4] - ce[1]).to_numpy()))
        assert (number.value, number.low, number.high) == pytest.approx(change)
        assert number.before == pytest.approx(np.exp(ce[1].mean()))
        assert number.seeds == 3 and f"{abs(100 * change[0]):.1f} %" in number.shown


def test_one_seed_has_numbers_and_no_interval(tmp_path: Path):
    found = laid_out(tmp_path, skip=lambda run: run.seed != 42)
    numbers = landing.opening(found).numbers
    assert len(numbers) == 3
    assert {(n.seeds, n.spread) for n in numbers} == {(1, "")}
    assert not re.search("nan|inf", "".join(n.shown + n.detail for n in numbers))


def test_seeds_that_only_one_cell_has_are_left_out(tmp_path: Path):
    found = laid_out(tmp_path, skip=lambda run: (run.cell, run.seed) == ("perloop-raw", 101))
    opening = landing.opening(found)
    assert [n.seeds for n in opening.numbers] == [2, 3, 2]
    assert opening.facts["Runs"] == "8 of 9 finished"
    assert "perloop-raw at 44m (seed 101: not trained)" in " ".join(opening.missing)


def test_both_pages_begin_with_the_same_numbers_and_verdicts(results: Path, tmp_path: Path):
    landing.write(results, tmp_path / "landing.html")
    page = (tmp_path / "landing.html").read_text()
    opening = landing.opening(results)
    readme = "\n".join(landing.markdown(opening))
    for number in opening.numbers:
        for text in (number.shown, number.spread, number.detail):
            assert text in page and text in readme.replace("\\", "")
    counts = Counter(pd.read_csv(results / "claims.csv")["verdict"])
    assert opening.total == dict(counts)
    for verdict, count in counts.items():
        assert f"<tr><th>{verdict}</th><td>{count}</td></tr>" in page
        assert f"{count} {verdict}" in readme
    # Four pictures that decode, each with its name, none loaded from outside.
    sources = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="([^"]+)"', page)
    assert [name for _, name in sources] == [FIGURES[name].title for name in landing.PICTURES]
    for source, _ in sources:
        with Image.open(io.BytesIO(base64.b64decode(source))) as image:
            image.load()
            assert image.size == (landing.WIDTH, 600)
    assert "http" not in page


def test_a_study_without_those_cells_shows_its_verdicts(tmp_path: Path):
    found = laid_out(tmp_path, cells=["terminal-rms", "perloop-finalnorm"], figures=["angle"])
    assert landing.opening(found).numbers == ()
    landing.write(found, tmp_path / "landing.html")
    page = (tmp_path / "landing.html").read_text()
    counts = Counter(pd.read_csv(found / "claims.csv")["verdict"])
    cards = re.findall(r'class="card number">\s*<h3>claims (\w+)</h3>.*?"value">(\d+)<', page, re.S)
    assert cards == [(name, str(counts[name])) for name in landing.DECIDED]
    assert page.count("<img") == 1


@pytest.mark.parametrize("name", ["dose", "laws", "remedies", "horizon"])
def test_a_study_with_a_figure_of_its_own_has_it_first(results: Path, name: str):
    c = getattr(synthetic_laws, f"{name}_study")()
    for file in ("figures",):
        shutil.copytree(results / file, results.parent / name / file, dirs_exist_ok=True)
    folder = results.parent / name / "figures"
    for own in (name, "sweep-dose", "sweep-loops"):
        shutil.copy(folder / "angle.png", folder / f"{own}.png")
    shown = [figure.name for figure in landing._pictures(c, folder)]
    assert shown == [name, *landing.PICTURES[:3]]
    (folder / f"{name}.png").unlink()
    swept = c.study.get("sweeps", {}).keys() & {"dose", "loops"}
    assert landing._pictures(c, folder)[0].name.startswith("sweep-" if swept else "norm")


def test_the_list_of_a_report_is_in_the_order_of_the_paper():
    used = {item.category for item in (*TABLES.values(), *FIGURES.values(), CLAIMS)}
    assert used <= set(ORDER)
    assert sorted(map(heading, ORDER)) == [heading(name) for name in ORDER]
