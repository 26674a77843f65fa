"""Tables: values against plain loops over the run folders, one rounding rule, safe escapes."""

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import synthetic
from blindspot.collect.collect import collect
from blindspot.config.study import Study
from blindspot.errors import BlindspotError
from blindspot.publish import tables, typeset
from blindspot.publish.catalogue import TABLES
from blindspot.publish.tables import OF_ITS_OWN


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path, Path]:
    """Two sizes, one of them without perloop-raw; one seed of terminal-rms alone at 129m."""
    folder = tmp_path_factory.mktemp("made")
    study = synthetic.make_study(folder, steps=200)
    synthetic.write(
        study,
        skip=lambda run: (
            run.size == "129m"
            and (run.cell == "perloop-raw" or (run.cell == "terminal-rms" and run.seed != 42))
        ),
        deeper=[1.1],
    )
    collect(study, folder / "collected")
    for name in tables.MADE:
        tables.write(name, folder / "collected", folder / "tables")
    return study, folder / "collected", folder / "tables"


def measured(study: Study, size: str, cell: str, file: str) -> list[pd.DataFrame]:
    runs = [run for run in study.runs if (run.size, run.cell) == (size, cell)]
    paths = [p for run in runs for p in (study.results / "runs" / run.name).glob(f"**/{file}")]
    return [pd.read_csv(path) for path in paths]


def test_every_table_of_the_catalogue_can_be_made():
    assert list(tables.MADE) == list(TABLES)


def test_main_table_is_the_mean_over_seeds(made: tuple[Study, Path, Path]):
    study, _, out = made
    main = pd.read_csv(out / "main.csv").set_index(["size", "cell"])
    assert {"seeds", "protocol", "ppl", "norm"} <= set(main.columns)
    for size, cell in (("44m", "perloop-rms"), ("129m", "terminal-rms"), ("44m", "perloop-raw")):
        ppl = [
            math.exp(row["nll"] / row["tokens"])
            for frame in measured(study, size, cell, "exits.csv")
            for _, row in frame.iterrows()
            if (row["split"], row["protocol"], row["k"]) == ("validation", "full", 4)
        ]
        norm = [
            f.loc[f["k"] == 4, "l2_mean"].item() for f in measured(study, size, cell, "norms.csv")
        ]
        row = main.loc[(size, cell)]
        assert row["seeds"] == len(ppl) == len(norm)
        # exp of the mean CE, the mean of logarithms: the same "perplexity" everywhere.
        assert row["ppl"] == pytest.approx(math.prod(ppl) ** (1 / len(ppl)), rel=1e-12)
        assert row["norm"] == pytest.approx(math.prod(norm) ** (1 / len(norm)), rel=1e-12)
        if len(ppl) == 3:
            ce = np.log(ppl)
            half = 2.48414 * np.std(ce, ddof=1)
            assert np.log(row[["ppl_low", "ppl_high"]].astype(float)).tolist() == pytest.approx(
                [ce.mean() - half, ce.mean() + half], rel=1e-5
            )
        else:
            assert row[["ppl_low", "ppl_high", "norm_low", "norm_high"]].isna().all()
    ratio = main.loc[("44m", "perloop-rms"), "norm"] / main.loc[("44m", "perloop-raw"), "norm"]
    assert main.loc[("44m", "perloop-rms"), "norm_to_raw"] == pytest.approx(ratio)


def test_a_cell_that_is_missing_has_an_empty_row_and_is_named(made: tuple[Study, Path, Path]):
    _, _, out = made
    main = pd.read_csv(out / "main.csv").set_index(["size", "cell"])
    assert len(main) == 14
    gone = main.loc[("129m", "perloop-raw")]
    assert gone["seeds"] == 0 and gone[["ppl", "norm"]].isna().all()
    assert main.loc["129m", "norm_to_raw"].isna().all()
    text = (out / "main.md").read_text()
    assert "| 129m | perloop-raw | per-loop | raw | — | 0 | — | — | — |" in text
    assert "perloop-raw at 129m (all seeds: not trained)" in text


def test_one_seed_shows_no_spread(made: tuple[Study, Path, Path]):
    _, _, out = made
    rows = (out / "main.md").read_text().splitlines()
    (one,) = [row for row in rows if row.startswith("| 129m | terminal-rms |")]
    (three,) = [row for row in rows if row.startswith("| 44m | terminal-rms |")]
    assert "[" not in one and three.count("[") == three.count("]") == 2


def test_depth_table_has_every_exit(made: tuple[Study, Path, Path]):
    study, _, out = made
    depth = pd.read_csv(out / "depth.csv")
    assert list(depth.columns[:5]) == ["size", "cell", "k", "split", "protocol"]
    assert len(depth) == 13 * (5 + 4 + 4) * 2
    at = depth[depth["protocol"] == "full"].set_index(["size", "cell", "k", "split"])
    exits = measured(study, "129m", "perloop-finalnorm", "exits.csv")
    for k in (1, 4, 5):
        chosen = f"split == 'test' and protocol == 'full' and k == {k}"
        own = [f.query(chosen).iloc[0] for f in exits]
        row = at.loc[("129m", "perloop-finalnorm", k, "test")]
        for column in ("ce", "bits_per_byte"):
            assert row[column] == pytest.approx(np.mean([run[column] for run in own]))
        assert row["ppl"] == pytest.approx(math.exp(row["ce"]))
        words = np.mean([run["nll"] / run["words"] for run in own])
        assert row["word_ppl"] == pytest.approx(math.exp(words))
    # L-05: deeper than trained is allowed, and marked.
    text = (out / "depth.md").read_text()
    full = [line.strip("| ").split(" | ") for line in text.splitlines() if "| full |" in line]
    assert len(full) == 13 * 2 and all(row[-1].endswith("†") for row in full)
    assert not any("†" in x for row in full for x in row[:-1]) and "extrapolation" in text


def test_exits_that_token_frequencies_beat_are_marked(made: tuple[Study, Path, Path], tmp_path):
    """A perplexity above a unigram model's is no result of depth; it must not pass for one."""
    _, collected, out = made
    for path in collected.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    baselines = pd.read_csv(tmp_path / "baselines.csv")
    at_k = ("main", "perplexity")  # whose exits are all better
    limit = 60.0  # between the second and the third exit of terminal-rms
    baselines.loc[baselines["baseline"] == "unigram", ["ce", "ppl"]] = [math.log(limit), limit]
    baselines.to_csv(tmp_path / "baselines.csv", index=False)
    for name in ("main", "depth", "loss-placement", "variable-depth", "perplexity"):
        assert "‡" not in (out / f"{name}.md").read_text()
        tables.write(name, tmp_path, tmp_path / "out")
        text = (tmp_path / "out" / f"{name}.md").read_text()
        assert ("‡ No better than a unigram model." in text) == (name not in at_k)
        assert "Validation perplexity without any context" in text and "60.0 (unigram)" in text
        assert r"$\ddagger$" in (tmp_path / "out" / f"{name}.tex").read_text() or name in at_k
    rows = (tmp_path / "out" / "loss-placement.md").read_text().splitlines()
    (row,) = [r for r in rows if r.startswith("| 44m | terminal | terminal-rms |")]
    assert [cell.endswith("‡") for cell in row.strip("| ").split(" | ")[4:]] == [
        True, True, False, False
    ]  # fmt: skip


def test_norms_tell_loop_1_from_the_rest(made: tuple[Study, Path, Path]):
    _, _, out = made
    norms = pd.read_csv(out / "norms.csv").set_index(["size", "cell", "k"]).sort_index()
    own = norms.loc[("44m", "perloop-rms")]["l2_mean"]
    growth = norms.loc[("44m", "perloop-rms")]["growth"]
    assert sorted(own.index) == [0, 1, 2, 3, 4] and math.isnan(growth[0])
    assert growth[1] == pytest.approx(own[1] - own[0])
    assert growth[2:].sum() == pytest.approx(own[4] - own[1])
    rows = (out / "norms.md").read_text().splitlines()
    (drift,) = [r for r in rows if r.startswith("| 44m | perloop-rms |")]
    share = 100 * (own[1] - own[0]) / (own[4] - own[0])
    assert f"| {share:.0f}% |" in drift
    # Where the norm falls, a share of growth would be nonsense.
    (falls,) = [r for r in rows if r.startswith("| 44m | perloop-raw |")]
    assert falls.endswith("| — |")


def test_throughput_table(made: tuple[Study, Path, Path]):
    _, _, out = made
    table = pd.read_csv(out / "throughput.csv").set_index(["size", "architecture", "k"])
    assert len(table) == 2 * 3 * 4
    row = table.loc[("129m", "rms", 1)]
    assert row["speedup"] == pytest.approx(80_000 / 21_000)
    assert table["speedup"].xs(4, level="k").tolist() == [1.0] * 6
    note = (out / "throughput.md").read_text()
    assert "NVIDIA H200 at bf16" in note and "30 timings" in note
    assert "more than their quartiles" not in note


def test_architectures_that_differ_beyond_the_noise_are_flagged(
    made: tuple[Study, Path, Path], tmp_path: Path
):
    """F-07: the same work at another speed means the timing is not to be trusted."""
    _, collected, _ = made
    for path in collected.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    frame = pd.read_csv(tmp_path / "throughput.csv")
    slow = (frame["architecture"] == "raw") & (frame["size"] == "44m") & (frame["k"] == 2)
    frame.loc[slow, [c for c in frame if c.startswith("tokens_per_s")]] *= 0.8
    frame.to_csv(tmp_path / "throughput.csv", index=False)
    tables.write("throughput", tmp_path, tmp_path / "out")
    note = (tmp_path / "out" / "throughput.md").read_text().splitlines()[-1]
    assert re.search(r"more than their quartiles at: 44m k = 2 \(\d\d\.\d%\)\.", note)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4.975, "4.97"),
        (17.0, "17.00"),
        (439.94, "439.9"),
        (39207.2, "39,207"),
        (2.1e6, "2.1e6"),
        (1e-9, "1.0e-9"),
        (-1e-9, "-1.0e-9"),
        (-0.0, "0.00"),
        (-0.2, "-0.20"),
        (math.inf, "∞"),
        (math.nan, "—"),
    ],
)
def test_the_rounding_rule(value: float, text: str):
    assert typeset.number(value) == text


def test_an_interval_is_shown_to_the_decimals_of_its_mean():
    assert typeset.spread(4.9712, 0.0312) == "4.97 ± 0.03"
    assert typeset.spread(439.94, 42.96) == "439.9 ± 43.0"
    assert typeset.spread(39207.2, 1234.5) == "39,207 ± 1,234"
    assert typeset.spread(5.0, 0.0) == "5.00 ± 0.00"
    assert typeset.spread(5.0, 1e-5) == "5.00 ± 1.0e-5"
    assert typeset.spread(5.0, math.nan) == "5.00"


WEIRD = pd.DataFrame(
    {
        "Cell": ["perloop_rms&penalty", "a|b", "c"],
        "PPL @ K=4 (%)": [typeset.number(x) for x in (-0.004 * 0, 1e-9, math.inf)],
        "~ ^ \\ # $ { }": ["5%", typeset.number(math.nan), "1.00 ± 0.05"],
    }
)


def cells(row: str) -> int:
    return len(re.findall(r"(?<!\\)&", row)) + 1


def test_latex_escapes_once_and_keeps_its_columns():
    """F-05: an unescaped percent sign would comment out the rest of a row."""
    text = typeset.latex(WEIRD, "50 % of #1, $x$, a_b, ~ ^ \\ {y}")
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(body) == 4 and {cells(row) for row in body} == {3}
    assert r"perloop\_rms\&penalty" in text
    assert r"PPL @ K=4 (\%)" in text and r"& 5\% \\" in text
    assert r"$1.0\times10^{-9}$" in text and r"$\infty$" in text and r"1.00 $\pm$ 0.05" in text
    assert r"50 \% of \#1, \$x\$, a\_b, \textasciitilde{} \textasciicircum{}" in text
    assert r"\textbackslash{} \{y\}" in text
    assert not re.search(r"(?<!\\)[%#]", text)
    assert r"\\_" not in text and r"\\%" not in text  # escaped twice
    math_signs = re.findall(r"(?<!\\)\$", text)
    assert len(math_signs) % 2 == 0


def test_markdown_keeps_its_columns():
    text = typeset.markdown(WEIRD, "note")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4}


@pytest.mark.parametrize("name", list(TABLES))
def test_markdown_and_latex_say_the_same(made: tuple[Study, Path, Path], name: str):
    _, _, out = made
    markdown = (out / f"{name}.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in markdown if line.startswith("| ")]
    del rows[1]  # the rule
    latex = (out / f"{name}.tex").read_text()
    tex_rows = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert len(rows) == len(tex_rows) and {cells(row) for row in tex_rows} == {len(rows[0])}
    back = {r"$\pm$": "±", r"$\times$": "×", "$-$": "-", "---": "—", "--": "–", r"\%": "%",
            r"$\dagger$": "†", r"\S{}": "§", r"\_": "_", "$^2$": "²", r"$\cdot$": "·",
            r"\textbar{}": "|"}  # fmt: skip
    for row, tex in zip(rows, tex_rows, strict=True):
        for old, new in back.items():
            tex = tex.replace(old, new)
        tex = re.sub(r"\$H_(\d)\$", r"H_\1", tex)
        tex = re.sub(r"\$(-?[\d.]+)\\times10\^\{(-?\d+)\}\$", r"\1e\2", tex)
        plain = [cell.replace("\\", "") for cell in row]
        assert [cell.strip() for cell in tex.removesuffix(r"\\").split("&")] == plain
    for part in ("Study paper", "wikitext-103-raw-v1", "word-level"):
        assert part in markdown[-1] and part in latex
    assert ("3 at 44m" in markdown[-1]) == (name not in OF_ITS_OWN)


def test_notes_say_what_the_interval_is(made: tuple[Study, Path, Path]):
    _, collected, _ = made
    note = tables.caption("main", collected)
    assert (
        "2.48 at n = 3" in note.replace(" standard deviations", "")
        and "t-interval of the mean over seeds" in note
    )
    assert "1 to 3 at 129m" in note and "Where one seed stands alone, none is given" in note
    assert "Protocol full" in note and "validation" in note


def test_the_same_results_give_the_same_bytes(made: tuple[Study, Path, Path], tmp_path: Path):
    _, collected, out = made
    for name in tables.MADE:
        tables.write(name, collected, tmp_path)
        for ending in ("csv", "md", "tex"):
            file = f"{name}.{ending}"
            assert (tmp_path / file).read_bytes() == (out / file).read_bytes()


def test_an_unknown_table_is_refused(tmp_path: Path):
    with pytest.raises(BlindspotError, match="no table 'mian'"):
        tables.write("mian", tmp_path, tmp_path)
