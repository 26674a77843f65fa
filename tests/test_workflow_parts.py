"""What the workflow is made of beside its rules: wildcards, command lines, files of runs."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from blindspot.config.runfiles import RunFiles
from blindspot.workflow import arguments
from blindspot.workflow.wildcards import RUN, only, only_runs
from measured import leave
from studies import TINY, lay_out, load, snakemake
from toys import ROOT

NAMES = [f"{size}/c-{cell}/seed{n}-{n:08x}" for n, (size, cell) in enumerate(
    (size, cell) for size in ("1m", "2.0m") for cell in "abc"
)]  # fmt: skip


@pytest.mark.parametrize("count", range(7))
def test_a_constraint_matches_exactly_its_runs(count):
    """Against every known run, by the short form; and by the long one where hashes repeat."""
    chosen = NAMES[:count]
    pattern = re.compile(only_runs(chosen, NAMES))
    assert [name for name in NAMES if pattern.fullmatch(name)] == chosen
    twins = [name.rpartition("-")[0] + "-0000000a" for name in NAMES]
    pattern = re.compile(only_runs(twins[:count], twins))
    assert [name for name in twins if pattern.fullmatch(name)] == twins[:count]
    assert not pattern.fullmatch("")


def test_a_constraint_of_a_thousand_runs_is_short():
    many = [f"1m/c/seed{n}-{n:08x}" for n in range(1000)]
    assert only_runs(many, many) == RUN
    # Two of them are named, whether they alone are meant or all others.
    assert max(len(only_runs(some, many)) for some in (many[:2], many[2:])) < 80
    assert only([]) and not re.fullmatch(only([]), "")
    assert re.fullmatch(only(["a.b"]), "a.b") and not re.fullmatch(only(["a.b"]), "aXb")


def test_command_lines_are_one_word_a_value():
    """Whatever stands in a name: a shell reads the words back as they were."""
    files = [Path("config.yaml"), Path("my study's.yaml")]
    override = {"work": "a b", "grid": {"seeds": [1]}}
    assert shlex.split(arguments.configs(files)) == [
        "--config", "config.yaml", "--config", "my study's.yaml"
    ]  # fmt: skip
    words = shlex.split(arguments.asked(files[0], files[1:], override))
    assert words[:5] == ["--base", "config.yaml", "--configfile", "my study's.yaml", "--override"]
    assert json.loads(words[5]) == override and len(words) == 6
    words = shlex.split(arguments.snakemake(Path("S n"), files[1:], override))
    assert words == [
        "--snakefile", "S n", "--configfile", "my study's.yaml",
        "--config", 'work="a b"', 'grid={"seeds":[1]}',
    ]  # fmt: skip
    assert arguments.snakemake(Path("Snakefile"), [], {}) == "--snakefile Snakefile"
    assert shlex.split(arguments.options(device="cpu", out="a b")) == [
        "--device", "cpu", "--out", "a b"
    ]  # fmt: skip


def test_a_run_is_impossible_without_measurement_and_weights(tmp_path, monkeypatch):
    where = lay_out(tmp_path)
    monkeypatch.chdir(where)
    files = RunFiles(load(where))
    names = [run.name for run in files.study.runs]
    there = {
        names[0]: ("finished", "measured", "weights"),
        names[1]: ("finished", "measured"),
        names[2]: ("finished", "weights"),
        names[3]: ("finished",),
        names[4]: ("weights",),
    }
    for name, kinds in there.items():
        for kind in kinds:
            if kind == "measured":
                leave(files.study, name)
                continue
            path = getattr(files, kind)(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    assert files.impossible() == [names[3]]
    assert files.impossible({names[3]}) == []
    assert files.published() == names[:2]


def test_make_clean_takes_the_demos_runs_alone(tmp_path):
    """Of four trained runs: the demo's own, one it shares with init, and two of other studies."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    own, shared, other, big = (
        f"0.1m/{cell}/seed42-0000000{n}" for n, cell in enumerate(("a", "b", "c", "d"))
    )
    studies = {"demo": [own, shared], "example": [own], "init": [shared, other], "mine": [big]}
    for study, runs in studies.items():
        for run in runs:
            (tmp_path / "results" / study / "runs" / run).mkdir(parents=True)
            (tmp_path / "work/runs" / run).mkdir(parents=True, exist_ok=True)
    for _ in range(2):  # the second time there is no demo
        subprocess.run(["make", "clean"], cwd=tmp_path, check=True, capture_output=True)
        left = {
            p.relative_to(tmp_path / "work/runs").as_posix()
            for p in tmp_path.glob("work/runs/*/*/*")
        }
        assert left == {shared, other, big}
        assert {p.name for p in (tmp_path / "results").iterdir()} == {"example", "init", "mine"}


def test_an_environment_belongs_to_its_folder_or_is_made_anew(tmp_path):
    """Copied or moved with its clone it would run another folder's code; without its Python, none.
    pip is replaced: what is installed is of no interest here."""
    clone = tmp_path / "clone"
    (clone / "envs").mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", clone)
    executor = clone / "packages" / "snakemake-executor-plugin-submitit"
    executor.mkdir(parents=True)
    for path in (clone / "envs/requirements.txt", clone / "pyproject.toml"):
        path.touch()
    (executor / "pyproject.toml").touch()
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\n"
        f'[ "$1 $2" = "-m venv" ] || exec {sys.executable} "$@"\n'
        f'{sys.executable} -m venv --without-pip "$3" "$4" && mkdir "$4"/pip && '
        f'touch "$4"/pip/__init__.py "$4"/pip/__main__.py\n'
    )
    python.chmod(0o755)

    def env(where):
        words = ["make", "env", f"PYTHON={python}"]
        site = {"PYTHONPATH": str(where / ".venv")}
        done = subprocess.run(
            words, cwd=where, capture_output=True, text=True, env=os.environ | site
        )
        assert done.returncode == 0, done.stderr
        return "new environment" in done.stdout

    def owner(where):
        return f'"{where}/.venv"' in (where / ".venv/bin/activate").read_text().replace("'", '"')

    assert env(clone) and owner(clone) and not env(clone)
    twin = tmp_path / "twin"
    shutil.copytree(clone, twin, symlinks=True)
    assert not owner(twin)
    assert env(twin) and owner(twin) and not env(twin) and not env(clone)
    clone.rename(tmp_path / "moved")
    assert env(tmp_path / "moved") and owner(tmp_path / "moved") and not env(tmp_path / "moved")
    (twin / ".venv/bin/python").unlink()
    (twin / ".venv/bin/python").symlink_to(tmp_path / "no such python")
    assert env(twin) and not env(twin)


def test_names_with_spaces_reach_every_stage(tmp_path):
    """A config file, a work folder and a fetched tokenizer, all with a space in their path: the
    commands as a shell splits them, and one of them for real."""
    tokenizer = {"kind": "gpt2"}
    where = lay_out(tmp_path, tokenizer=tokenizer, work="my work")
    (where / "tiny.yaml").rename(where / "my tiny.yaml")
    study = ("--configfile", "my tiny.yaml")
    said = snakemake(where, "-n", "-p", "all", *study).stdout
    lines = re.findall(r"^Shell command: (blindspot .*|snakemake --report.*)", said, re.MULTILINE)
    split = {line.split()[1]: shlex.split(re.split(" >>? ", line)[0]) for line in lines}
    assert len(split) >= 9
    tokens = split["tokens"]
    given = tokens[tokens.index("--tokenizer") + 1]
    assert given.startswith("my work/tokenizers/") and given.endswith("/tokenizer.json")
    train = split["train"]
    assert train[train.index("--work") + 1] == "my work"
    collect = split["collect"]
    assert [collect[i + 1] for i, w in enumerate(collect) if w == "--config"] == [
        "config.yaml", "my tiny.yaml"
    ]  # fmt: skip
    report = split["--report"]
    assert report[report.index("--configfile") + 1] == "my tiny.yaml"
    assert 'work="my work"' in report
    assert collect[collect.index("--work") + 1] == "my work"
    # `forecast` reads the config; nothing is trained or calibrated where nothing can be known.
    done = snakemake(where, "status", *study).stdout
    assert TINY["study"] in done and "unexpected extra argument" not in done
