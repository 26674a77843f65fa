"""Tables and figures of causes and laws: numbers against plain ones, and what is marked how."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

import synthetic
from blindspot.collect.collect import collect
from blindspot.publish import causes, figures, style, tables
from blindspot.publish.figures import DRAWN
from blindspot.publish.figures.panels import Panels
from blindspot.publish.studyclaims import evaluate
from blindspot.publish.tables import MADE
from synthetic_laws import REMEDIES, STUDIES, dose_study, remedies_study
from test_figures import visible


def drawn(name: str) -> Panels:
    with style.theme():
        return DRAWN[name](STUDIES[name]())


def test_dose_verdicts():
    """Causal, refuted, and inconclusive where depth is lost without a freezing last loop."""
    for study, verdict in (
        (dose_study(), "supported"),
        (dose_study(gain=0.0), "contradicted"),
        (dose_study(exponent=-0.5), "inconclusive"),
    ):
        (row,) = evaluate(study)
        assert row["verdict"] == verdict
    (row,) = evaluate(dose_study())
    assert row["ours"] == pytest.approx(-0.01, abs=0.001) and row["unit"] == "nats a doubling"
    assert "log angle" not in row["note"] and "last angle on log dose: -1.00" in row["note"]


def test_the_table_of_doses_has_steered_cells_at_the_scale_that_they_reach():
    table = MADE["dose"](dose_study())
    steered = table.data[table.data["of"] == "perloop-rms-target"].set_index("dose")
    assert steered["reached"].to_dict() == pytest.approx(
        {d: d**0.8 for d in (1, 4, 16, 64)}, rel=0.05
    )
    assert set(steered["seeds"]) == {3}
    # On the scale that it came to, its angle falls as fast as the set ones'.
    said = table.note.partition("perloop-rms-target at 44m: ")[2]
    assert "log angle -1.0" in said


def test_the_front_is_what_no_other_beats_in_both():
    table = causes.plane(remedies_study()).set_index("cell")
    means = {cell: (row["gain"], row["ce"]) for cell, row in table.iterrows()}
    front = {
        cell
        for cell, (gain, ce) in means.items()
        if not any(g > gain and x < ce for g, x in means.values())
    }
    assert set(table.index[table["front"]]) == front >= {"perloop-untied", "terminal-rms"}
    assert set(table.index[table["holds"]]) >= {"perloop-raw", "perloop-target"}
    assert not table.loc["perloop-rms", "holds"]


def test_a_remedy_that_does_nothing_is_not_dark_and_does_not_hold():
    study = remedies_study(perloop_target=REMEDIES["perloop-rms"])
    assert not causes.plane(study).set_index("cell").loc["perloop-target", "holds"]
    verdicts = {row["claim"]: row["verdict"] for row in evaluate(study)}
    assert verdicts["holds.perloop-target"] == "contradicted"
    assert verdicts["holds.perloop-raw"] == "supported"


def test_names_of_remedies_cover_neither_each_other_nor_a_point():
    figure = drawn("remedies").figure
    (ax,) = figure.axes
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    figure.canvas.draw()
    texts = [t for t in ax.texts if not isinstance(t, Annotation) and t.get_text() in REMEDIES]
    assert len(texts) == len(REMEDIES)
    boxes = [Text.get_window_extent(t, renderer) for t in texts]
    covered = [
        (a.get_text(), b.get_text())
        for (a, x), (b, y) in combinations(zip(texts, boxes, strict=True), 2)
        if x.overlaps(y)
    ]
    assert not covered
    points = ax.transData.transform(np.vstack([c.get_offsets() for c in ax.collections[1:]]))
    for text, box in zip(texts, boxes, strict=True):
        assert not any(Bbox.contains(box, *point) for point in points), text.get_text()


def test_the_law_that_misses_is_named_in_the_figure():
    figure = drawn("laws").figure
    carried = next(ax for ax in figure.axes if "left out" in ax.get_title(loc="left"))
    assert [t.get_text() for t in carried.texts] == ["all"]
    table = MADE["laws"](STUDIES["laws"]())
    left = table.data[table.data["sweep"] == "left out"].set_index("cell")
    ratio = left["predicted"] / left["norm"]
    assert ratio["perloop-rms-leftout-all"] == pytest.approx(1 / 1.6, rel=0.15)
    assert ratio.drop("perloop-rms-leftout-all").between(0.75, 1.25).all()


def test_the_horizon_has_one_line_a_trained_k_read_large_at_its_own():
    figure = drawn("horizon").figure
    for ax in figure.axes:
        large = [line for line in ax.lines if line.get_markersize() == 8]
        assert [list(line.get_xdata()) for line in large] == [[1], [2], [4], [8], [8]]
    data = MADE["horizon"](STUDIES["horizon"]()).data.set_index(["cell", "k"])
    rise = [0.25 / 4 * (k - 4) ** 0.9 for k in (8, 64)]
    assert data.loc[[("perloop-raw", 8), ("perloop-raw", 64)], "change"].tolist() == pytest.approx(
        rise
    )


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_that_asks_nothing_of_it_says_so(name: str, papers: Path, tmp_path: Path):
    figures.draw(name, papers, tmp_path)
    tables.write(name, papers, tmp_path)
    assert (tmp_path / f"{name}.png").exists() and (tmp_path / f"{name}.md").exists()


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("papers")
    study = synthetic.make_study(folder, ["44m"], ["perloop-rms", "perloop-raw"], steps=200)
    synthetic.write(study)
    collect(study, folder / "collected")
    return folder / "collected"


@pytest.mark.parametrize("name", STUDIES)
def test_no_label_lies_on_another_or_is_cut_off(name: str):
    figure = drawn(name).figure
    with style.theme():
        figure.canvas.draw()
    boxes = [(text.get_text(), text.get_window_extent().padded(-1)) for text in visible(figure)]
    assert len(boxes) > 12
    for (one, a), (other, b) in combinations(boxes, 2):
        assert not a.overlaps(b), f"{one!r} and {other!r}"
    for text, box in boxes:
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1, f"{text!r} is cut off"
