"""Which change reruns what (S-01, S-05): each row of docs/reruns.md against real Snakemake."""

import os
import random
import re
import shutil

import pytest
import yaml

from measured import as_before
from studies import CORPUS, STUDY, TINY, checkout, copy, finished, lay_out, load, planned, snakemake
from studies import write as write_config
from toys import ROOT

BASE = TINY | {"corpus": CORPUS}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return finished(tmp_path_factory)[0]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Every job of the study, planned in a clone that has nothing."""
    return planned(lay_out(tmp_path_factory.mktemp("fresh")))[0]


HEAVY = ("training", "measuring", "timing", "fetching", "tokenizing")


def publish(fresh):
    return {job for job in fresh if not job.startswith(HEAVY)}


def remade(where, chosen=lambda run: True, train=True):
    """Jobs that make some runs of the study as `where` defines it now."""
    names = [run.name for run in load(where).runs if chosen(run)]
    return {f"{verb} {n}" for n in names for verb in ("training", "measuring")[0 if train else 1 :]}


def data(where):
    return {
        f"fetching corpus {load(where).corpus.name}",
        f"tokenizing {load(where).tokens.name}",
    }


def edit(where, **changes):
    write_config(where, BASE | changes)


def replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def backwards(value):
    if isinstance(value, dict):
        return {k: backwards(value[k]) for k in reversed(value)}
    return value


def reorder(where):
    cells = {"terminal-rms": {"loss": "terminal", "readout": "rms"}}
    cells |= {"perloop-rms": None, "perloop-raw": {"readout": "raw", "loss": "per-loop"}}
    turned = backwards(BASE | {"cells": cells})
    # Cells stay in order: tables show them so.
    write_config(where, turned | {"cells": cells})


def rewrite_number(where):
    text = (where / "tiny.yaml").read_text()
    assert "learning_rate: 0.003" in text
    (where / "tiny.yaml").write_text(text.replace("learning_rate: 0.003", "learning_rate: 3e-3"))


def shuffle_times(where):
    dice = random.Random(0)
    for path in sorted(p for p in where.rglob("*") if p.is_file() and ".snakemake" not in p.parts):
        when = dice.uniform(1.5e9, 1.7e9)
        os.utime(path, (when, when))


def lose(*names):
    def change(where):
        for name in names:
            shutil.rmtree(where / name)

    return change


def touch_results(where):
    for path in [where / "results/tiny/runs", *(where / "results/tiny/runs").rglob("*")]:
        if path.is_dir():
            os.utime(path)
    os.utime(where / "results/tiny")


def clone(where):
    # collected/ and the report are not under version control.
    for name in (".snakemake", "work", "results/tiny/collected"):
        shutil.rmtree(where / name)
    shuffle_times(where)


def lose_record(name):
    def change(where):
        run = load(where).runs[3].name
        folder = where / "results/tiny/runs" / run
        next(folder.glob(name)).unlink()

    return change


def source(name, old, new):
    """An edit of the code, in a checkout whose own code runs."""

    def change(where):
        checkout(where, sources=True)
        replace(where / "src/blindspot" / name, old, new)

    return change


def both(*changes):
    def change(where):
        for one in changes:
            one(where)

    return change


def setting(where):
    edit(where, measurement={"min_context": 4})


def restore(where):
    edit(where)


def add_measurement(where):
    """Another one, in a list of measurements that is the code's own."""
    checkout(where, sources=True)
    folder = where / "src/blindspot/declared"
    text = (folder / "baselines.py").read_text()
    text = text.replace('"baselines",', '"another",', 1).replace('"baselines",', '"another",')
    (folder / "another.py").write_text(text)
    # Where modules are imported, and where they are listed.
    replace(folder / "__init__.py", "    baselines,\n", "    another,\n    baselines,\n")


def merge_measurements(where):
    """What `measure-<hash8>/` of a version of before looked like; and no weights."""
    for run in load(where).runs:
        as_before(where / "results/tiny/runs" / run.name)
    shutil.rmtree(where / "work/runs")


def seed(where):
    edit(where, grid={"seeds": [1, 2, 5]})


def cell(where):
    penalty = {"penalty": {"weight": 0.01}}
    cells = TINY["cells"] | {"perloop-raw": {"loss": "per-loop", "readout": "raw"} | penalty}
    edit(where, cells=cells)


def cell_setting(**settings):
    """Settings of the cell perloop-raw alone."""
    own = {"loss": "per-loop", "readout": "raw"} | settings
    return lambda where: edit(where, cells=TINY["cells"] | {"perloop-raw": own})


def claimed(where):
    part = {"quantity": "value", "of": "growth", "cell": "perloop-raw"}
    part |= {"supported": {"below": 2}, "contradicted": {"above": 2}}
    edit(where, claims={"holds": {"claim": "It of {cell} holds.", "parts": [part]}})


def swept(where):
    """A value more in a sweep, whose one value was so far the cell's own."""
    edit(where, sweeps={"rate": RATE})


RATE = {"cells": ["perloop-raw"], "over": {"training.learning_rate": [0.003, 0.01]}}


def new_cell(where):
    edit(where, cells=TINY["cells"] | {"mine": {"loss": "per-loop", "readout": "layernorm"}})


def text(where):
    replace(where / "train.txt", "train ", "other ")


def nothing(where):
    pass


class Row:
    """A change and the jobs it plans; `extra` are further arguments, `env` the environment."""

    def __init__(self, change, jobs, *extra, said=(), subset=False, targets=("all",), **env):
        self.change, self.jobs, self.extra, self.said = change, jobs, extra, said
        self.subset, self.targets, self.env = subset, targets, env


def none(where, fresh):
    return set()


def published(where, fresh):
    return publish(fresh)


def runs(chosen=lambda run: True, train=True, more=lambda where: set()):
    return lambda where, fresh: remade(where, chosen, train) | publish(fresh) | more(where)


def documents(where, fresh):
    """The report and the README: they show everything."""
    return {job for job in publish(fresh) if re.match("report|page", job)}


#: The job that leaves the mark of a start which makes runs anew.
MARK = "what `reuse: false` names is made anew"
TIMING = "timing size nano at every depth"
SOURCE = {"PYTHONPATH": "src"}
ROWS = {
    "nothing": Row(nothing, none, said=["6 finished and reused", "Nothing to be done"]),
    "another folder, temporary folder, hash seed, number of cores": Row(
        lambda where: (where / "tmp").mkdir(),
        none,
        "--cores",
        "5",
        "--set-threads",
        "train=2",
        PYTHONHASHSEED="7",
        TMPDIR="tmp",
    ),
    "the keys of a cell and the cells in another order of keys": Row(reorder, none),
    "a number written as 1e-3, 0.001 or .001": Row(rewrite_number, none),
    "`work`, `device`, `runs: finished`": Row(
        nothing, none, "--config", "work=elsewhere", "device=auto", "runs=finished"
    ),
    "every file's time, at random": Row(shuffle_times, published, subset=True),
    "`.snakemake` deleted": Row(lose(".snakemake"), none),
    "checkpoints and weights deleted": Row(lose("work/runs"), none),
    "tokens and corpus deleted": Row(lose("work/tokens", "work/corpora"), none),
    "a folder of results touched": Row(touch_results, none),
    "a fresh clone with the results": Row(clone, published),
    "`collected/` deleted": Row(lose("results/tiny/collected"), published),
    "a comment in `lm/model.py`": Row(
        source("lm/model.py", "\nimport", "\n# A comment.\nimport"), none, **SOURCE
    ),
    "a setting is added by an update of the code (`settings.Neutral`)": Row(
        both(
            source(
                "config/spec.py",
                "    clip: Positive = 1.0\n",
                "    clip: Positive = 1.0\n    throw_away: Annotated[int, Neutral(0)] = 0\n",
            ),
            source(
                "config/spec.py", "\nclass ", "\nfrom blindspot.settings import Neutral\n\nclass "
            ),
        ),
        published,
        **SOURCE,
    ),
    "the look of figures (`publish/style.py`)": Row(
        source("publish/style.py", "\nimport", "\n# Another look.\nimport"),
        lambda where, fresh: {j for j in fresh if j.startswith("figure")} | documents(where, fresh),
        **SOURCE,
    ),
    "a cell changed": Row(cell, runs(lambda run: run.cell == "perloop-raw")),
    "a cell added": Row(
        new_cell,
        runs(lambda run: run.cell == "mine", more=lambda where: {TIMING}),
    ),
    "`loops` of a cell": Row(
        cell_setting(loops=1),
        runs(lambda run: run.cell == "perloop-raw", more=lambda where: {TIMING}),
    ),
    "`model` of a cell, of what decides its speed": Row(
        cell_setting(model={"layers": 2}),
        runs(lambda run: run.cell == "perloop-raw", more=lambda where: {TIMING}),
    ),
    "`model` of a cell, dropout or initialization": Row(
        cell_setting(model={"dropout": {"rate": 0.2}}),
        runs(lambda run: run.cell == "perloop-raw"),
    ),
    "`training` of a cell": Row(
        cell_setting(training={"learning_rate": 0.01}),
        runs(lambda run: run.cell == "perloop-raw"),
    ),
    "a value added to a sweep": Row(
        swept,
        runs(
            lambda run: run.cell == "perloop-raw-learning-rate0.01",
            more=lambda where: {"table sweep-rate", "figure sweep-rate"},
        ),
    ),
    "a claim of the study, or its criterion": Row(claimed, published),
    "a seed added": Row(seed, runs(lambda run: run.seed == 5), said=["3 to train and measure"]),
    "a measurement setting": Row(
        setting, runs(train=False), said=["6 to measure (exits, windows)."]
    ),
    "a measurement setting, weights gone": Row(
        both(setting, lose("work/runs")),
        None,
        said=["6 impossible to measure", "Left out, because these finished runs lack measurements"],
    ),
    "a measurement's revision raised": Row(
        source("declared/norms.py", "revision=", "revision=7"),
        lambda where, fresh: {j for j in fresh if j.startswith("measuring")} | publish(fresh),
        said=["6 to measure (norms)."],
        **SOURCE,
    ),
    "a measurement added": Row(
        add_measurement,
        lambda where, fresh: {j for j in fresh if j.startswith("measuring")} | publish(fresh),
        said=["6 to measure (another)."],
        **SOURCE,
    ),
    "`TRAINING_REVISION` raised": Row(
        source("config/revisions.py", "TRAINING_REVISION = ", "TRAINING_REVISION = 7"),
        "revised",
        **SOURCE,
    ),
    "the text of the corpus": Row(text, runs(more=data)),
    "a `run.json` deleted": Row(
        lose_record("run.json"),
        # Its measurement is of the same weights, and is there.
        lambda w, f: {f"training {load(w).runs[3].name}"} | publish(f),
    ),
    "a `measure.json` deleted": Row(
        lose_record("measure/norms-*/measure.json"),
        runs(lambda run: (run.cell, run.seed) == ("perloop-rms", 2), False),
        said=["5 finished and reused, 1 to measure (norms)."],
    ),
    "a measurement setting, back again": Row(both(setting, restore), none),
    "measurements of before each had a folder of its own": Row(merge_measurements, none),
    "a table deleted": Row(
        lambda where: (where / "results/tiny/tables/norms.csv").unlink(),
        lambda w, f: {"table norms"} | documents(w, f),
    ),
    "a seed added, tokens deleted": Row(
        both(seed, lose("work/tokens", "work/corpora")),
        runs(lambda run: run.seed == 5, more=data),
    ),
    "`reuse: false`": Row(
        nothing,
        runs(more=lambda w: {MARK, TIMING}),
        "--config",
        "reuse=false",
        said=["6 finished, to make anew"],
    ),
    "`reuse: {perloop-raw: false}`": Row(
        nothing,
        runs(lambda run: run.cell == "perloop-raw", more=lambda w: {MARK}),
        "--config",
        "reuse={perloop-raw: false}",
        said=["4 finished and reused, 2 finished, to make anew"],
    ),
    "`reuse: false`, asked for figures and tables": Row(
        nothing,
        none,
        "--config",
        "reuse=false",
        targets=("figures", "tables"),
        said=["6 are published"],
    ),
}


def test_the_written_table_and_the_tested_one_have_the_same_rows():
    written = re.findall(
        r"^\| (.+?) \| .+ \|$", (ROOT / "docs/reruns.md").read_text(), re.MULTILINE
    )
    refused = "a fresh clone without results, asked for figures and tables"
    assert written == ["Change", *ROWS, refused]


@pytest.mark.parametrize("name", ROWS)
def test_a_change_plans_exactly_these_jobs(name, study, fresh, tmp_path):
    row = ROWS[name]
    where = copy(study, tmp_path / "clone")
    row.change(where)
    jobs, said = planned(where, *row.targets, "--cores", "2", *row.extra, **row.env)
    for word in row.said:
        assert word in said
    if row.jobs is None:
        assert not {job for job in jobs if job.startswith(HEAVY)}
        return
    if row.jobs == "revised":
        # The hashes are new, so only sizes, cells and seeds can be compared.
        cut = re.compile(r"-[0-9a-f]{8}$")
        assert jobs - fresh == {job for job in jobs if job.startswith(("training", "measuring"))}
        assert {cut.sub("", j) for j in jobs if j.startswith("training")} == {
            cut.sub("", j) for j in fresh if j.startswith("training")
        }
        assert jobs & fresh == publish(fresh)
        return
    expected = row.jobs(where, fresh)
    if row.subset:
        expected &= jobs
    assert jobs == expected


def test_figures_of_a_clone_without_results_are_refused(tmp_path):
    where = lay_out(tmp_path)
    done = snakemake(where, "figures", "tables", *STUDY, check=False)
    assert done.returncode != 0
    assert "no run of study 'tiny' is trained and measured" in done.stdout
    assert "nothing is trained or measured. Not there: nano/terminal-rms/seed1-" in done.stdout
    assert not (where / "work/runs").exists()
    assert yaml.safe_load((where / "tiny.yaml").read_text())["study"] == "tiny"
