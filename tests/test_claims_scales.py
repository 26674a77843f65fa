"""Claims on what scaling a state does, and the error of the text, against values known by hand."""

import math
from pathlib import Path

import numpy as np
import pytest

from blindspot.collect.collected import Collected
from blindspot.publish import sampling
from blindspot.publish.frames import Frames
from test_claims import CELLS, PAPER, changed, collected


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collected(tmp_path_factory.mktemp("paper"), PAPER, CELLS)


def test_a_readout_that_sees_and_restores_the_norm(paper: Path):
    """The synthetic raw readout has CE(a) = CE + 0.2 log^2 a: 0.096 more at 1/2 and 2."""
    rows = changed(paper)
    assert rows.loc["visible-raw", "ours"] == pytest.approx(0.2 * math.log(2) ** 2)
    assert rows.loc["restoring-raw", "ours"] == pytest.approx(0.4 * math.log(16))
    assert set(rows.loc[["visible-raw", "restoring-raw"], "verdict"]) == {"supported"}


def test_a_flat_response_is_blind_and_a_runaway_one_restores_nothing(paper: Path):
    flat = changed(paper, scale_response=lambda r: r.assign(change_mean=1e-6, slope=1e-6))
    assert flat.loc["visible-raw", "verdict"] == "contradicted"
    # The loss falls as the state grows, without end: seen, and not restored.
    away = changed(paper, scale_response=lambda r: r.assign(slope=-0.1))
    assert away.loc["visible-raw", "verdict"] == "supported"
    assert away.loc["restoring-raw", "verdict"] == "contradicted"
    assert away.loc["restoring-raw", "ours"] == pytest.approx(-0.1)


@pytest.mark.parametrize(("ratio", "slope"), [(1.02, -0.95), (1.3, -0.5), (0.7, -1.3)])
def test_the_lemma_is_judged_in_both_forms(paper: Path, ratio: float, slope: float):
    rows = changed(
        paper,
        lemma2_update=lambda u: u.assign(ratio_p50=ratio),
        lemma2_slope=lambda s: s.assign(slope_mean=slope),
    ).loc[["lemma-equation", "lemma-intervention"]]
    assert list(rows["ours"]) == pytest.approx([ratio, slope])
    holds = ratio == 1.02
    assert set(rows["verdict"]) == {"supported" if holds else "contradicted"}


def test_the_error_of_the_text_is_that_of_blocks_drawn_anew(paper: Path):
    """Of a mean over equal blocks it is the deviation between blocks over the root of their number;
    of a difference, that of the blocks' differences."""
    f = Frames(Collected(paper))
    cells = ["perloop-raw", "perloop-rms"]

    def by_block(cell: str, k: int) -> np.ndarray:
        w = f.collected.frame("windows")
        w = w[(w["cell"] == cell) & (w["k"] == k)]
        return (w["nll"] / w["tokens"]).groupby(w["block"]).mean().to_numpy()

    def expected(values: np.ndarray) -> float:
        return float(values.std() / math.sqrt(len(values)))

    ce = sampling.error("ce", f, "129m", cells, None)
    assert ce == pytest.approx(expected(by_block("perloop-raw", 4)), rel=0.1)
    gain = sampling.error("gain-to-last", f, "129m", cells, None)
    own = by_block("perloop-raw", 1) - by_block("perloop-raw", 4)
    assert gain == pytest.approx(expected(own), rel=0.1, abs=1e-9)
    over = sampling.error("gain-over", f, "129m", cells, None)
    other = by_block("perloop-rms", 1) - by_block("perloop-rms", 4)
    assert over == pytest.approx(expected(own - other), rel=0.1, abs=1e-9)
    assert math.isnan(sampling.error("norm", f, "129m", cells, None))
    # What two exits share cancels in their difference.
    assert gain < ce / 10
