"""An audit of a run by name: the files it leaves, what they say, and errors for people."""

import csv
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from blindspot import cli
from blindspot.audit import Settings, output, page, wording
from blindspot.audit.command import run
from blindspot.audit.options import Options
from blindspot.audit.report import Estimate, Report
from blindspot.audit.sources import find
from blindspot.errors import BlindspotError
from blindspot.training.train import train
from toys import ROOT
from training import typed_job, weights

SMALL = Settings(tokens=48, length=12, powers=(-1, 1), beyond=1)


@pytest.fixture(scope="module")
def trained(tokens, tmp_path_factory):
    """A toy run with its files where a study has them."""
    where = tmp_path_factory.mktemp("study")
    job = typed_job(tokens, where, "perloop-rms", steps=6)
    job.out = where / "results" / "toy" / "runs" / job.name
    train(job)
    (where / "work" / "tokens").mkdir()
    (where / "work" / "tokens" / "toy").symlink_to(tokens[0])
    return where, job


@pytest.fixture
def undrawn(monkeypatch):
    """Figures take seconds, and are looked at elsewhere."""
    monkeypatch.setattr(
        output.figures, "draw", lambda report, out: dict.fromkeys(page.CAPTIONS, "")
    )


def options(where, **more):
    return Options(results=where / "results", work=where / "work", device="cpu", **more)


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    where, job = trained
    return run(job.name, options(where), SMALL, tmp_path_factory.mktemp("audit"))


def test_a_run_is_found_by_its_name(trained):
    where, job = trained
    subject = find(job.name, options(where))
    saved = weights(job)
    for name, parameter in subject.model.module.named_parameters():
        assert parameter.equal(saved[name]), name
    assert (subject.model.loops, subject.source) == (3, "run")
    assert subject.text.startswith("validation split of ")
    assert subject.model.context == 12


def test_everything_is_written(folder, trained):
    assert folder.parts[-3:] == tuple(trained[1].name.split("/"))
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    figures = {f"figures/{n}.{e}" for n in ("norms", "boundaries", "exits") for e in ("pdf", "png")}
    tables = {"audit.json", "audit.html", "depths.csv", "boundaries.csv", "windows.csv"}
    assert names == figures | tables


def test_the_report_is_what_its_schema_says(folder):
    report = Report.model_validate_json((folder / "audit.json").read_text())
    assert report.model.loops == 3
    assert [b.k for b in report.boundaries] == [1, 2]
    assert [d.k for d in report.depths] == [0, 1, 2, 3, 4]
    assert [d.trained for d in report.depths] == [True] * 4 + [False]
    assert report.text.windows == 4
    assert report.text.length == 12


def test_tables_say_what_the_report_says(folder):
    report = Report.model_validate_json((folder / "audit.json").read_text())
    with open(folder / "depths.csv") as file:
        rows = {(int(r["k"]), r["quantity"]): r for r in csv.DictReader(file)}
    for depth in report.depths:
        assert float(rows[depth.k, "norm"]["value"]) == pytest.approx(depth.norm.value)
        assert float(rows[depth.k, "norm"]["low"]) == pytest.approx(depth.norm.low)
    assert (0, "ce") not in rows
    # What the intervals are made of: the mean over windows is the value.
    with open(folder / "windows.csv") as file:
        windows = list(csv.DictReader(file))
    for k, quantity in ((1, "norm"), (3, "ce"), (4, "angle"), (2, "clamp")):
        values = [
            float(r["value"]) for r in windows if int(r["k"]) == k and r["quantity"] == quantity
        ]
        assert len(values) == 4
        assert np.mean(values) == pytest.approx(float(rows[k, quantity]["value"]), rel=1e-8)
    with open(folder / "boundaries.csv") as file:
        ends = [r for r in csv.DictReader(file) if r["quantity"] == "end"]
    assert [(r["k"], r["factor"]) for r in ends] == [
        ("1", "0.5"),
        ("1", "2"),
        ("2", "0.5"),
        ("2", "2"),
    ]


class Page(HTMLParser):
    """The tags of a page, and whether each that needs an end has one."""

    void = frozenset({"meta", "link", "br", "img", "hr", "input"})

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))


def test_the_page_is_whole_and_needs_nothing_else(folder):
    text = (folder / "audit.html").read_text()
    page = Page()
    page.feed(text)
    assert not page.open
    tags = [tag for tag, _ in page.seen]
    assert tags.count("figure") == 3
    assert tags.count("svg") == 3
    assert not {"script", "img", "link", "iframe"} & set(tags)
    outside = [v for _, attrs in page.seen for k, v in attrs.items() if k in ("src", "href")]
    assert not [v for v in outside if v and not v.startswith("#")]
    report = Report.model_validate_json((folder / "audit.json").read_text())
    for sentence in report.verdict.sentences:
        assert sentence.split(" (")[0].replace("'", "&#39;") in text


def test_equal_audits_are_equal(folder, trained, tmp_path, undrawn):
    where, job = trained
    again = run(job.name, options(where), SMALL, tmp_path)
    for name in ("depths.csv", "boundaries.csv", "windows.csv"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_it_says_the_verdict(trained, tmp_path, capsys, monkeypatch, undrawn):
    where, job = trained
    monkeypatch.chdir(where)
    arguments = [job.name, "--out", str(tmp_path), "--quick", "--tokens", "40", "--device", "cpu"]
    with pytest.raises(SystemExit) as end:
        cli.app(["audit", *arguments])
    assert end.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"verdict: (partly )?blind, (not )?drifting", said)
    assert "Boundaries between loops" in said
    report = Report.model_validate_json((tmp_path / job.name / "audit.json").read_text())
    assert [f.factor for f in report.boundaries[0].factors] == [0.5, 2]


def test_numbers_in_sentences():
    assert wording.number(Estimate(value=1.23456, low=1, high=2)) == "1.23 (1 to 2)"
    assert wording.number(Estimate(value=None)) == "not finite"
    assert wording.number(Estimate(value=1234.6)) == "1,235"
    assert wording.short(Estimate(value=1234.6, low=1200, high=1260)) == "1,235 ±30"
    assert wording.short(Estimate(value=0.01234, low=0.01, high=0.02)) == "0.0123 ±0.005"
    assert wording.short(None) == ""
    assert wording.places([1, 2, 3, 5]) == "1 to 3 and 5"
    assert wording.places([1, 2]) == "1 and 2"
    assert wording.places([4]) == "4"
    assert wording.places([1, 3, 5]) == "1, 3 and 5"


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("ByteDance/Ouro-1.4B", "ByteDance/Ouro-1.4B"),
        ("../odd name:*", "odd name-".replace(" ", "-")),
        ("/", "model"),
    ],
)
def test_folders_of_names(name, folder):
    assert output.folder_name(name).as_posix() == folder


# --- errors ----------------------------------------------------------------------------------


def test_an_unknown_run(trained):
    where, job = trained
    with pytest.raises(BlindspotError, match=re.escape(f"there are {job.name}")):
        find("toy/perloop-rms/seed9-00000000", options(where))
    with pytest.raises(BlindspotError, match="there are none, so give --results and --work"):
        find("toy/perloop-rms/seed9-00000000", Options(results=where / "nowhere"))


def test_a_run_without_its_tokens(trained, tmp_path):
    where, job = trained
    (tmp_path / "runs").symlink_to(where / "work" / "runs")
    with pytest.raises(BlindspotError, match="no token files of this run's data below"):
        find(job.name, Options(results=where / "results", work=tmp_path, device="cpu"))


def test_a_text_of_ones_own(trained, tmp_path):
    where, job = trained
    text = tmp_path / "mine.txt"
    text.write_text("the norm of a state grows " * 40)
    subject = find(job.name, options(where, text=text))
    assert subject.text == str(text)
    assert len(subject.stream) > 100
    text.write_text("the norm")
    short = find(job.name, options(where, text=text))
    with pytest.raises(BlindspotError, match=r"mine\.txt: \d tokens are too few"):
        cut_of(short)
    with pytest.raises(BlindspotError, match=r"--text .*gone\.txt: not readable"):
        find(job.name, options(where, text=tmp_path / "gone.txt"))
    text.write_text("")
    with pytest.raises(BlindspotError, match=r"mine\.txt: the text is empty"):
        find(job.name, options(where, text=text))


def cut_of(subject):
    from blindspot.audit.examine import cut

    return cut(subject.stream, SMALL, subject.model.context, subject.text)


def test_a_run_knows_its_loops(trained):
    where, job = trained
    with pytest.raises(BlindspotError, match="--loops 7: a run knows its number of loops"):
        find(job.name, options(where, loops=7))


def test_a_function_in_a_file(trained, tmp_path, undrawn):
    where, _ = trained
    text = tmp_path / "mine.txt"
    text.write_text("the norm of a state grows " * 40)
    code = tmp_path / "my_model.py"
    code.write_text(
        "import torch\n"
        "from blindspot.audit import Looped\n"
        "E = torch.randn(270, 8, generator=torch.Generator().manual_seed(0))\n"
        "def looped():\n"
        "    return Looped('mine', lambda ids: (None, E[ids]), lambda c, h, k: 1.2 * h,\n"
        "                  lambda c, h, k: h @ E.T, loops=4, vocab_size=270)\n"
        "def other():\n"
        "    return 3\n"
    )
    tokenizer = where / "work" / "tokens" / "toy" / "tokenizer.json"
    more = {"text": text, "tokenizer": tokenizer}
    folder = run(f"{code}:looped", options(where, **more), SMALL, tmp_path)
    verdict = json.loads((folder / "audit.json").read_text())["verdict"]
    assert (folder.name, verdict["blind"], verdict["drifting"]) == ("mine", "no", True)
    with pytest.raises(BlindspotError, match="has no function nothing"):
        find(f"{code}:nothing", options(where, **more))
    with pytest.raises(BlindspotError, match=r"other\(\) gave a int"):
        find(f"{code}:other", options(where, **more))
    with pytest.raises(BlindspotError, match="Give --tokenizer"):
        find(f"{code}:looped", options(where, text=text))
    with pytest.raises(BlindspotError, match=r"gone\.py: no such file"):
        find(f"{tmp_path / 'gone.py'}:looped", options(where))


def test_the_schema_in_the_docs_is_todays():
    told = json.loads((ROOT / "docs" / "audit.schema.json").read_text())
    assert told == Report.model_json_schema()
