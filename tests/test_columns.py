"""docs/columns.md is made from the declarations, and explains every column that is published."""

import csv
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

import synthetic
from blindspot import declared
from blindspot.collect.collect import collect
from blindspot.collect.csvfile import read_csv
from blindspot.config.spec import RunSpec
from blindspot.declared import tables as declared_tables
from blindspot.declared.columns import Column, Context, File, integer, real, word
from blindspot.declared.training import TRAJECTORY
from blindspot.publish import columns, tables
from blindspot.training.train import train
from training import toy_job, toy_tokens

ROOT = Path(__file__).parent.parent


def test_the_page_is_that_of_the_declarations():
    assert (ROOT / "docs/columns.md").read_text(encoding="utf-8") == columns.text(), (
        "docs/columns.md is not what the declarations say: "
        "run `.venv/bin/blindspot columns > docs/columns.md`"
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("columns")
    cells = [*synthetic.CELLS[:4], "perloop-rms-std0.02", "perloop-raw-std0.02"]
    study = synthetic.make_study(folder, ["44m"], cells, [42, 101], 400)
    synthetic.write(study, synthetic.TOY)
    collect(study, folder / "collected")
    for name in tables.MADE:
        tables.write(name, folder / "collected", folder / "tables")
    return folder


def header(path: Path) -> list[str]:
    with open(path, encoding="utf-8", newline="") as file:
        return next(csv.reader(file))


def test_every_collected_file_has_the_columns_that_are_declared(made: Path):
    files = {path.stem: header(path) for path in (made / "collected").glob("*.csv")}
    assert set(files) == set(declared.COLLECTED)
    for name, found in files.items():
        own = list(declared.COLLECTED[name].header)
        expected = own if name in ("runs", "provenance") else ["size", "cell", "seed", "run", *own]
        if name == "throughput":
            expected = ["size", "cell", *own]
        assert found == expected, name


def test_every_column_of_every_table_is_explained(made: Path):
    known = {"cell", "size", *declared_tables.COLUMNS}
    known |= {column for file in declared.COLLECTED.values() for column in file.header}
    unknown = set()
    for path in (made / "tables").glob("*.csv"):
        for column in header(path):
            ends = [e for e in declared_tables.ENDINGS if column.endswith(e)]
            stem = column.removesuffix(ends[0]) if ends else column
            if not {stem, column} & known:
                unknown.add((path.name, column))
    assert unknown == set(), "explain them in declared/tables.py"


def test_planning_with_the_declarations_loads_nothing_heavy():
    code = "import sys, blindspot.declared; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "pandas", "torch", "scipy"} & set(done.stdout.split())


def test_each_column_says_what_it_is():
    for file in declared.COLLECTED.values():
        assert len(set(file.header)) == len(file.header)
        assert set(file.keys) <= set(file.header)
        for column in file.columns:
            assert column.meaning and "\n" not in column.meaning, (file.name, column.name)


# --- the checks, on a file of their own -------------------------------------------------------

TOY = File(
    "toy",
    "a loop",
    (word("split", "part", "validation"), integer("k", "loop"), real("x", "a number", low=0)),
    ("split", "k"),
    depths=1,
)


#: Of a specification a check asks the loops.
SPEC = SimpleNamespace(model=SimpleNamespace(loops=2))


def frame(**changes: object) -> pd.DataFrame:
    return pd.DataFrame({"split": ["validation"] * 2, "k": [1, 2], "x": [0.5, 1.5]} | changes)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, None),
        ({"x": [0.0, -1.0]}, "has x -1.0 in row 3"),
        ({"x": [float("nan"), 1.0]}, "has x nan in row 2"),
        ({"x": [1.0, float("inf")]}, "has x inf in row 3"),
        ({"k": [1, 3]}, "has k = [1, 3] for ('validation',), expected [1, 2]"),
        ({"split": ["validation", "test"]}, "has split ['test', 'validation'], expected"),
    ],
)
def test_a_column_out_of_its_limits_is_named(changes: dict, fault: str | None):
    found = list(TOY.faults(frame(**changes), Context(SPEC, 1)))
    assert found == [] if fault is None else found[0].startswith(fault), found


def test_deeper_loops_may_follow_and_words_may_be_some_of_those_known(tmp_path: Path):
    more = pd.DataFrame({"split": ["validation"] * 3, "k": [1, 2, 8], "x": [0.5, 1.5, 2.0]})
    more.to_csv(tmp_path / "toy.csv", index=False)
    read = read_csv(tmp_path / "toy.csv", TOY.types, TOY.keys)
    assert list(TOY.faults(read, Context(SPEC, 1))) == []
    some = Column("w", "str", "a word", values=("a", "b"), every=False)
    assert list(some.faults(pd.DataFrame({"w": ["a", "a"]}))) == []
    assert list(some.faults(pd.DataFrame({"w": ["a", "c"]}))) != []


@pytest.mark.parametrize("loss", ["per-loop", "terminal"])
def test_the_log_of_a_run_that_draws_its_loops(tmp_path: Path, loss: str):
    """A step has as many rows as it had loops; a gap among them is still a fault."""
    job = toy_job(toy_tokens(tmp_path), tmp_path, log_every=1)
    spec = job.spec.model_dump() | {"objective": {"loss": loss, "random_loops": True}}
    job.spec = RunSpec.model_validate(spec)
    train(job)
    log = pd.read_csv(job.out / "trajectory.csv")
    at = Context(job.spec, 24)
    depths = log[log["split"] == "train"].groupby("step")["k"].max()
    assert set(depths) == set(range(1, job.spec.model.loops + 1))
    assert list(TRAJECTORY.faults(log, at)) == []
    deep = depths.idxmax()
    gone = (log["split"] == "train") & (log["step"] == deep) & (log["k"] == 1)
    assert any(f"in step {deep}" in fault for fault in TRAJECTORY.faults(log[~gone], at))
