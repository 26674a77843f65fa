"""The page of a study and the report's pages: the tables' own values, live links, equal bytes."""

import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from docutils.core import publish_doctree

import synthetic
from blindspot.collect.collect import collect
from blindspot.errors import BlindspotError
from blindspot.publish import claims, figures, showcase, summary, tables, typeset
from blindspot.publish.catalogue import FIGURES, TABLES

#: Enough to see each kind of section; drawing all figures belongs to other tests.
SHOWN = ("norm-by-loop", "frontier")
COMMAND = "snakemake tables figures claims report --cores 1"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    cells = ["terminal-rms", "perloop-rms", "perloop-raw"]
    study = synthetic.make_study(folder, steps=2000, sizes=["44m"], cells=cells, seeds=[42, 101])
    synthetic.write(study, skip=lambda run: run.cell == "perloop-raw" and run.seed == 101)
    out = study.results
    collect(study, out / "collected")
    for name in TABLES:
        if name != "initialization":
            tables.write(name, out / "collected", out / "tables")
    for name in SHOWN:
        figures.draw(name, out / "collected", out / "figures")
    claims.write(out / "collected", out)
    showcase.write(out, COMMAND)
    return out


def test_every_link_and_image_of_the_page_is_there(results: Path):
    page = (results / "README.md").read_text()
    heads = {line[3:].lower() for line in page.splitlines() if line.startswith("## ")}
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(links) > 20
    for link in links:
        if link.startswith("#"):
            assert link[1:] in heads
        else:
            assert not link.startswith("/") and (results / link).exists(), link
    images = re.findall(r"!\[[^]]+\]\(figures/([^)]+)\.png\)", page)
    assert set(images) == set(SHOWN)
    assert COMMAND in page
    # No heading without anything below it.
    assert not re.search(r"^## .*\n+(## |\Z)", page, re.M)


def test_the_page_shows_each_table_and_caption_as_it_is(results: Path):
    page = (results / "README.md").read_text()
    for name in TABLES:
        path = results / "tables" / f"{name}.md"
        if path.exists():
            for line in path.read_text().splitlines():
                assert line in page, (name, line)
    for name in SHOWN:
        caption = figures.caption(name, results / "collected")
        assert typeset.escape_markdown(caption) in page
    for line in (results / "claims.md").read_text().splitlines()[2:]:
        assert line in page
    # What is missing is said where a reader begins.
    assert "Not shown: perloop-raw at 44m (seed 101: not trained)" in page.splitlines()[2]


def test_one_perplexity_for_one_number(results: Path, tmp_path: Path):
    """In short and in the tables: exp of the mean CE, and what to think of a bad one."""
    main = (results / "tables" / "main.md").read_text().splitlines()
    (row,) = [line for line in main if "| perloop-rms |" in line]
    shown = float(row.strip("| ").split(" | ")[6].split(" [")[0])
    short = summary.summary(results).splitlines()
    (line,) = [line for line in short if "loops 2 to 4 of perloop-rms" in line]
    assert float(line.rpartition(" to ")[2]) == pytest.approx(shown, abs=0.05)
    (tmp_path / "tables").symlink_to(results / "tables")
    shutil.copytree(results / "collected", tmp_path / "collected")
    baselines = pd.read_csv(tmp_path / "collected" / "baselines.csv")
    baselines.loc[baselines["baseline"] == "unigram", "ce"] = math.log(5.2)
    baselines.to_csv(tmp_path / "collected" / "baselines.csv", index=False)
    marked = [x for x in summary.summary(tmp_path).splitlines() if "no better than a unigram" in x]
    assert len(marked) == 1 and "perloop-rms" in marked[0] and marked[0].endswith("(5.2)")


def test_equal_results_give_equal_bytes(results: Path):
    before = (results / "README.md").read_bytes()
    showcase.write(results, COMMAND)
    assert (results / "README.md").read_bytes() == before
    assert str(results) not in before.decode()


def test_what_people_wrote_of_the_study_is_linked_where_a_reader_begins(results: Path):
    assert "FINDINGS" not in (results / "README.md").read_text()
    findings = results / "FINDINGS.md"
    findings.write_text("# What it found")
    page = showcase.page(results, COMMAND)
    findings.unlink()
    assert page.index("](FINDINGS.md)") < page.index("## Claims")


def test_a_missing_ledger_is_named(results: Path, tmp_path: Path):
    for name in ("collected", "tables"):
        (tmp_path / name).symlink_to(results / name)
    with pytest.raises(BlindspotError, match=r"claims\.csv: no such file"):
        showcase.write(tmp_path, COMMAND)


class Cells(HTMLParser):
    """Rows of cells of the one table of a page, and the addresses that it refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.outside += [value for key, value in attrs if key in ("src", "href")]
        if tag == "tr":
            self.rows.append([])
        self.inside = tag in ("td", "th")
        if self.inside:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if getattr(self, "inside", False):
            self.rows[-1][-1] += data


@pytest.mark.parametrize("name", ["main", "norms", "provenance", "claims"])
def test_the_reports_page_of_a_table_has_the_same_cells(results: Path, name: str):
    folder = results if name == "claims" else results / "tables"
    parsed = Cells()
    parsed.feed((folder / f"{name}.html").read_text())
    lines = [x for x in (folder / f"{name}.md").read_text().splitlines() if x.startswith("| ")]
    rows = [re.split(r"(?<!\\) \| ", line[2:-2]) for line in lines]
    del rows[1]  # the rule
    assert parsed.rows == [[cell.replace("\\", "") for cell in row] for row in rows]
    assert parsed.outside == []


def test_html_is_escaped():
    shown = pd.DataFrame({"a <b>": ["x & y", "</td>"], "n": ["1.5", "2"]})
    text = typeset.page("T & T", shown, "a < b")
    parsed = Cells()
    parsed.feed(text)
    assert parsed.rows == [["a <b>", "n"], ["x & y", "1.5"], ["</td>", "2"]]
    assert "<title>T &amp; T</title>" in text and "a &lt; b" in text


@pytest.mark.parametrize("kind", ["tables", "figures"])
def test_captions_are_plain_words_to_restructuredtext(results: Path, kind: str):
    """|H_K| would be a substitution, H_K a link, *a* emphasis: each a message in the report."""
    module, items = (tables, TABLES) if kind == "tables" else (figures, FIGURES)
    for name in ("main", "norms") if kind == "tables" else ("norm-over-training", "halting"):
        text = showcase.caption(kind, name, results / "collected")
        tree = publish_doctree(text, settings_overrides={"report_level": 5})
        assert tree.astext() == f"{items[name].title}. " + module.caption(
            name, results / "collected"
        )
    hard = r"a *b* `c` |d| e_ \f"
    assert publish_doctree(typeset.escape_rst(hard)).astext() == hard
