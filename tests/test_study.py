"""Config files become runs; every fault in one is named before anything runs."""

import json
import time

import pytest
import yaml

from blindspot.config.overlays import merge
from blindspot.config.schema import Config
from blindspot.config.spec import RunSpec
from blindspot.config.study import Study
from blindspot.config.yamltext import command_line
from blindspot.errors import BlindspotError
from blindspot.settings import canonical
from toys import ROOT

BASE = ROOT / "config.yaml"


def load(**override):
    return Study.load(BASE, override=override)


def names(study):
    return {run.name for run in study.runs}


def test_the_paper_is_42_runs_with_distinct_names():
    runs = load().runs
    assert len(runs) == len({r.name for r in runs}) == 2 * 7 * 3
    assert [r.seed for r in runs[:3]] == [42, 101, 202]
    assert runs[0].name.startswith("44m/terminal-rms/seed42-")
    assert len(runs[0].spec.hash) == 8


def test_where_dropout_is_is_a_set():
    """Another order, or a place named twice, is the same model and the same run."""
    places = ["residual", "embedding", "attention", "residual"]
    plain = load(model={"dropout": {"at": ["embedding", "attention", "residual"]}})
    assert names(load(model={"dropout": {"at": places}})) == names(plain)
    two = [load(model={"dropout": {"at": at}}) for at in (places[:2], places[1::-1])]
    assert names(two[0]) == names(two[1]) and not names(two[0]) & names(plain)


def test_both_branches_outputs_are_residual():
    """One experiment, one name, however its places are written; each alone is another one."""
    residual = names(load(model={"dropout": {"at": ["residual"]}}))
    for at in (
        ["attention-output", "mlp-output"],
        ["mlp-output", "residual"],
        ["residual", "attention-output", "mlp-output"],
    ):
        assert names(load(model={"dropout": {"at": at}})) == residual
    one, other = (
        names(load(model={"dropout": {"at": [p]}})) for p in ("attention-output", "mlp-output")
    )
    assert not one & other and not (one | other) & residual


def test_the_papers_study_drops_where_its_release_does():
    for run in load().runs:
        assert run.spec.model.dropout.at == ("embedding", "attention", "mlp-output")


def test_a_specification_travels_as_canonical_json():
    for run in load().runs:
        text = run.spec.canonical()
        assert RunSpec.parse(text) == run.spec
        assert RunSpec.parse(text).hash == run.spec.hash
        assert canonical(json.loads(text)) == text


@pytest.mark.parametrize("text", ["0.01", "1.0e-2", "1e-2", "'0.01'", ".01"])
def test_a_number_may_be_written_in_any_way(text, tmp_path):
    """S-01d, S-07b: YAML reads 1e-2 as text."""
    config = tmp_path / "c.yaml"
    body = BASE.read_text().replace("weight: 0.01}", f"weight: {text}}}")
    assert body != BASE.read_text() or text == "0.01"
    config.write_text(body)
    assert names(Study.load(config)) == names(load())


def test_the_order_of_keys_does_not_matter(tmp_path):
    def backwards(value):
        if isinstance(value, dict):
            return {k: backwards(value[k]) for k in reversed(value)}
        return value

    config = tmp_path / "c.yaml"
    config.write_text(yaml.safe_dump(backwards(yaml.safe_load(BASE.read_text())), sort_keys=False))
    assert names(Study.load(config)) == names(load())


def test_a_changed_cell_changes_its_own_runs_alone():
    base = yaml.safe_load(BASE.read_text())
    base["cells"]["perloop-rms-penalty"]["penalty"]["weight"] = 0.02
    changed = names(load()) - names(Study.of(base))
    assert len(changed) == 6
    assert all("/perloop-rms-penalty/" in name for name in changed)


@pytest.mark.parametrize(
    "override",
    [
        {"device": "cpu"},
        {"work": "/elsewhere"},
        {"results": "there"},
        {"measurement": {"min_context": 64}},
        {"throughput": {"batch": 8}},
        {"runs": "finished"},
        {"reuse": False},
        {"corpus": yaml.safe_load(BASE.read_text())["corpus"] | {"path": "/data/wikitext"}},
    ],
)
def test_what_does_not_decide_the_weights_is_not_in_the_name(override):
    assert names(load(**override)) == names(load())


@pytest.mark.parametrize(
    "override",
    [
        {"training": {"learning_rate": 1e-3}},
        {"training": {"precision": "float32"}},
        {"training": {"log_every": 7}},
        {"model": {"dropout": {"at": ["embedding"]}}},
        {"model": {"init_std": 0.02}},
        {"model": {"loops": 3}},
        {"windows": {"stride": 64}},
        {"tokenizer": {"kind": "bpe", "vocab_size": 20000}},
        {"corpus": {"kind": "enwiki-sample"}},
    ],
)
def test_what_decides_the_weights_is_in_every_name(override):
    assert not names(load(**override)) & names(load())


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ({"wieght": 1}, ["wieght", "unknown key", "spelling"]),
        ({"training": {"wieght_decay": 0.1}}, ["training.wieght_decay", "0.1"]),
        ({"model": {"loops": 0}}, ["model.loops", "greater than or equal to 1", "0"]),
        ({"model": {"loops": 4.0}}, ["model.loops", "integer", "4.0"]),
        ({"windows": {"stride": 300}}, ["windows", "stride 300", "length 256", "at most 256"]),
        ({"grid": {"seeds": [42, 42]}}, ["grid.seeds", "[42, 42]", "twice"]),
        ({"grid": {"seeds": []}}, ["grid.seeds"]),
        ({"cells": {}}, ["cells"]),
        ({"cells": {"nowhere": None}}, ["cells.nowhere", "perloop-rms", "define it"]),
        ({"cells": {"rms%A/2": {"loss": "terminal", "readout": "rms"}}}, ["rms%A/2"]),
        ({"cells": {"x": {"loss": "dense", "readout": "rms"}}}, ["cells.x.loss", "terminal"]),
        ({"cells": {"x": {"loss": "terminal"}}}, ["cells.x.readout", "missing"]),
        (
            {"sizes": {"s": {"d_model": 100, "layers": 1, "heads": 8, "batch": 1}}},
            ["sizes.s", "heads 8", "d_model 100", "[1, 2, 4, 5, 10, 20, 25, 50]"],
        ),
        ({"tokenizer": {"kind": "bpe", "vocab_size": 2**33}}, ["tokenizer.vocab_size", str(2**32)]),
        ({"training": {"steps": 10}}, ["training", "steps", "epochs", "10"]),
        ({"corpus": {"kind": "hubb"}}, ["corpus", "hubb", "enwiki-sample"]),
        ({"study": 1e5}, ["study", "string", "in quotes", "100000.0"]),
        ({"device": "tpu"}, ["device", "tpu", "cuda"]),
        ({"reuse": {"perloop-rsm": False}}, ["reuse.perloop-rsm", "use one of", "perloop-rms"]),
        ({"reuse": "never"}, ["reuse", "never"]),
    ],
)
def test_a_fault_is_named_with_key_value_and_what_is_right(override, said):
    with pytest.raises(BlindspotError) as caught:
        load(**override)
    for word in said:
        assert word in str(caught.value), f"{word!r} not in {caught.value}"


def test_every_whole_number_has_an_upper_bound():
    """10**30 is a slip: it is refused at once, and nothing counts up to it."""
    open_ended = []

    def look(schema, where):
        if isinstance(schema, dict):
            bounds = {"maximum", "exclusiveMaximum", "const"}
            if schema.get("type") == "integer" and not bounds & schema.keys():
                open_ended.append(where)
            for key, value in schema.items():
                look(value, f"{where}.{key}")
        elif isinstance(schema, list):
            for value in schema:
                look(value, where)

    look(Config.model_json_schema(), "config")
    assert not open_ended


@pytest.mark.parametrize(
    "override",
    [
        {"sizes": {"s": {"d_model": 10**30, "layers": 1, "heads": 3, "batch": 1}}},
        {"sizes": {"s": {"d_model": 2**20, "layers": 1, "heads": 3, "batch": 1}}},
        {"sizes": {"s": {"d_model": 8, "layers": 10**30, "heads": 2, "batch": 10**30}}},
        {"model": {"loops": 10**30}},
        {"windows": {"length": 10**30, "stride": 10**30}},
        {"tokenizer": {"kind": "bpe", "vocab_size": 10**30}},
        {"training": {"epochs": 1e300}},
        {"forecast": {"gpus": [10**30]}},
    ],
)
def test_a_size_beyond_all_bounds_is_refused_at_once(override):
    began = time.process_time()
    with pytest.raises(BlindspotError, match=r"got|divide"):
        load(**override)
    assert time.process_time() - began < 1


def test_seeds_that_would_share_weights_are_refused():
    for seed in (2**32, 2**32 + 1, 2**40 + 1):
        said = rf"grid.seeds.0: .*seed {seed % 2**32} .got {seed}"
        with pytest.raises(BlindspotError, match=said):
            load(grid={"seeds": [seed]})
    assert load(grid={"seeds": [2**32 - 1]}).runs[0].seed == 2**32 - 1


def test_a_file_that_is_no_config_is_named(tmp_path):
    with pytest.raises(BlindspotError, match=r"nothere\.yaml: no such config file"):
        Study.load(BASE, [tmp_path / "nothere.yaml"])
    bad = tmp_path / "bad.yaml"
    bad.write_text("study: [")
    with pytest.raises(BlindspotError, match=r"bad\.yaml: line 1: not valid YAML"):
        Study.load(BASE, [bad])
    bad.write_text("- a list")
    with pytest.raises(BlindspotError, match="expected keys with values"):
        Study.load(BASE, [bad])


def test_a_study_that_lists_one_cell_means_that_cell(tmp_path):
    """S-07a: Snakemake's own merge would keep the other six."""
    file = tmp_path / "mine.yaml"
    file.write_text("study: mine\ncells:\n  perloop-raw:\n")
    study = Study.load(BASE, [file])
    assert {r.cell for r in study.runs} == {"perloop-raw"}
    assert names(study) < names(load())
    assert study.results.as_posix() == "results/mine"


def test_settings_of_a_command_line_are_read_as_those_of_a_file():
    """S-07c: Snakemake's own reading of `--config 'model={loops: 3}'` has "3" as text."""
    study = load(**command_line(["model={loops: 3}", "training={epochs: null, steps: 7}"]))
    assert study.config.model.loops == 3
    assert study.config.training.steps == 7
    seeds = load(**command_line(["grid={seeds: [7, 8]}", "device=cpu"])).config.grid.seeds
    assert seeds == (7, 8)
    with pytest.raises(BlindspotError, match=r"model.loops.*true"):
        load(**command_line(["model={loops: true}"]))
    with pytest.raises(BlindspotError, match=r"--config: key 'work' is given twice"):
        command_line(["work=a", "work=b"])


def test_merging_replaces_corpora_and_lists_and_joins_the_rest():
    base = {"corpus": {"kind": "a", "x": 1}, "training": {"lr": 1, "clip": 2}, "seeds": [1, 2]}
    over = {"corpus": {"kind": "b"}, "training": {"lr": 3}, "seeds": [5]}
    assert merge(base, over) == {
        "corpus": {"kind": "b"},
        "training": {"lr": 3, "clip": 2},
        "seeds": [5],
    }


def test_a_size_may_have_seeds_of_its_own():
    base = yaml.safe_load(BASE.read_text())
    base["sizes"]["129m"]["seeds"] = [7]
    runs = Study.of(base).runs
    assert {r.seed for r in runs if r.size == "129m"} == {7}
    assert {r.seed for r in runs if r.size == "44m"} == {42, 101, 202}


def test_a_cell_may_choose_its_initialization():
    base = yaml.safe_load(BASE.read_text())
    base["model"]["init_std"] = 0.05
    base["cells"] = {
        "a": {"loss": "terminal", "readout": "rms"},
        "b": {"loss": "terminal", "readout": "rms", "init_std": 0.02},
        "c": {"loss": "terminal", "readout": "rms", "init_std": "default"},
    }
    found = {r.cell: r.spec.model.init_std for r in Study.of(base).runs}
    assert found == {"a": 0.05, "b": 0.02, "c": None}


def test_local_text_is_known_by_its_content(tmp_path):
    for folder, text in (("one", "a"), ("two", "a"), ("three", "b")):
        (tmp_path / folder).mkdir()
        for split in ("train", "validation", "test"):
            (tmp_path / folder / f"{split}.txt").write_text(text + split)

    def local(folder, **more):
        files = {s: str(tmp_path / folder / f"{s}.txt") for s in ("train", "validation", "test")}
        return load(corpus={"kind": "local"} | files | more)

    assert names(local("one")) == names(local("two")) != names(local("three"))
    assert str(tmp_path) not in local("one").runs[0].spec.canonical()
    with pytest.raises(BlindspotError, match=r"corpus.sha256.*pins 0000"):
        local("one", sha256="0" * 64)
    (tmp_path / "one/test.txt").unlink()
    with pytest.raises(BlindspotError, match=r"corpus.test: .*test.txt: no such file"):
        local("one")


def test_paths_are_those_that_a_shell_would_make_and_that_is_said(monkeypatch, tmp_path):
    for split in ("a", "b", "c"):
        (tmp_path / f"{split}.txt").write_text(split)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MINE", "deep/er")
    typed = {
        "work": "~/scratch",
        "results": "${HOME}/$MINE/results",
        "corpus": {"kind": "local", "train": ["~/a.txt"], "validation": "$HOME/b.txt",
                   "test": str(tmp_path / "c.txt")},
    }  # fmt: skip
    study = load(**typed)
    assert study.work == tmp_path / "scratch" and load(work="a~b").config.work == "a~b"
    assert study.results == tmp_path / "deep/er/results/paper"
    assert study.config.corpus.files("train") == [str(tmp_path / "a.txt")]
    assert study.notes == (
        f"work: ~/scratch is {tmp_path}/scratch",
        f"results: ${{HOME}}/$MINE/results is {tmp_path}/deep/er/results",
        f"corpus.train: ['~/a.txt'] is ['{tmp_path}/a.txt']",
        f"corpus.validation: $HOME/b.txt is {tmp_path}/b.txt",
    )
    assert load(work="here/", results="./there").notes == ()
    hub = yaml.safe_load(BASE.read_text())["corpus"]
    assert load(corpus=hub | {"path": "~/hub"}).config.corpus.path == f"{tmp_path}/hub"
    (tmp_path / "t.json").write_text("{}")
    given = load(tokenizer={"kind": "file", "path": "~/t.json", "vocab_size": 5})
    assert given.config.tokenizer.path == f"{tmp_path}/t.json"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ({"work": "$NOT_SET_HERE/x"}, r"work: \$NOT_SET_HERE is not set here; .*NOT_SET_HERE/x"),
        ({"results": "${NOT_SET}"}, r"results: \$\{NOT_SET\} is not set here"),
        ({"work": "~nobody-of-this-name/x"}, r"work: ~nobody-of-this-name is not a user here"),
        (
            {"corpus": {"kind": "local", "train": "$NOT_SET", "validation": 0.1, "test": 0.1}},
            r"corpus\.train: \$NOT_SET is not set here; [^\n]*$",
        ),
    ],
)
def test_a_path_that_says_nothing_here_is_refused(override, said):
    with pytest.raises(BlindspotError, match=said):
        load(**override)


def test_cells_that_differ_in_loss_alone_share_an_architecture():
    study = load()
    assert list(study.architectures("44m")) == ["final-only-rms", "raw", "rms"]
    assert study.throughput_hash("44m") != study.throughput_hash("129m")
    assert study.throughput_hash("44m") == load(model={"init_std": 0.02}).throughput_hash("44m")


def test_reuse_names_all_runs_or_those_of_a_cell():
    assert load().remade == load(reuse={"perloop-raw": True}).remade == []
    assert load(**command_line(["reuse=false"])).remade == load().runs
    mine = load(**command_line(["reuse={perloop-raw: false}"])).remade
    assert [run.cell for run in mine] == ["perloop-raw"] * 6
    assert load(reuse=False, work="/elsewhere").config.identity() == load().config.identity()


@pytest.mark.parametrize("typed", [".nan", "~", "Upper", "a_b", '""', "x" * 61])
def test_a_name_that_could_be_no_folder_is_refused_with_what_to_do(tmp_path, typed):
    overlay = tmp_path / "odd.yaml"
    overlay.write_text(f"study: x\ncells:\n  {typed}: {{loss: per-loop, readout: rms}}\n")
    with pytest.raises(BlindspotError, match=r": cells: a name has at most 60 of a-z") as error:
        Study.load(ROOT / "config.yaml", [overlay])
    shown = typed.strip('"')
    assert str(error.value).endswith(f'(got "{shown}")')


def test_a_name_is_the_text_that_was_typed(tmp_path):
    overlay = tmp_path / "odd.yaml"
    names = ["nan", "na", "none", "1e5", "inf", "null", "12"]
    cells = "".join(f"  {name}: {{loss: per-loop, readout: rms}}\n" for name in names)
    overlay.write_text(f"study: x\ncells:\n{cells}")
    assert list(Study.load(ROOT / "config.yaml", [overlay]).config.cells) == names


def cells(**settings):
    return {"perloop-rms": None, "other": {"loss": "per-loop", "readout": "rms"} | settings}


def test_a_cell_says_its_own_loops_model_and_training():
    """Laid over the study's; the other cells keep their names."""
    one = {"sizes": {"44m": None}}
    before = names(load(cells={"perloop-rms": None}, **one))
    study = load(
        **one,
        cells=cells(
            loops=8,
            model={"dropout": {"rate": 0.2}, "d_model": 256, "heads": 4},
            training={"learning_rate": 1e-3, "steps": 50},
        ),
    )
    runs = {run.cell: run.spec for run in study.runs if run.size == "44m"}
    own, base = runs["other"], runs["perloop-rms"]
    assert before < names(study)
    assert (own.model.loops, own.model.d_model, own.model.heads, own.model.layers) == (8, 256, 4, 8)
    assert (own.model.dropout.rate, own.model.dropout.at) == (0.2, base.model.dropout.at)
    assert (own.training.learning_rate, own.training.steps, own.training.epochs) == (1e-3, 50, None)
    assert own.training.betas == base.training.betas
    # Who says what the study says anyway is the same run.
    same = load(
        **one, cells=cells(loops=4, model={"d_model": 512}, training={"learning_rate": 3e-4})
    )
    hashes = {run.cell: run.spec.hash for run in same.runs if run.size == "44m" and run.seed == 42}
    assert hashes["other"] == hashes["perloop-rms"]


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"training": {"learning_rat": 1}}, "cells.other.training.learning_rat: unknown key"),
        ({"training": {"learning_rate": -1}}, "cells.other.training.learning_rate: .* (got -1)"),
        ({"model": {"loops": 0}}, r"cells.other.model.loops: .* \(got 0\)"),
        ({"model": {"dropout": {"rate": 2}}}, r"cells.other.model.dropout.rate: "),
        ({"model": {"heads": 7}}, r"cells.other.model: heads 7 does not divide d_model 512"),
        ({"model": {"vocab_size": 7}}, r"cells.other.model.vocab_size: unknown key"),
        ({"loops": 2, "model": {"loops": 3}}, r"cells.other.model.loops: the cell says loops"),
        ({"loops": "2"}, r"cells.other.loops: "),
        ({"init_std": 1, "model": {"init_std": 1}}, r"cells.other.model.init_std: the cell says"),
    ],
)
def test_faults_in_a_cells_own_settings_name_cell_and_key(settings, fault):
    with pytest.raises(BlindspotError, match=fault.replace("(got -1)", r"\(got -1\)")):
        load(cells=cells(**settings))


def test_architectures_that_differ_have_labels_that_differ():
    different = [
        {},
        {"loops": 8},
        {"model": {"d_model": 256}},
        {"model": {"heads": 4}},
        {"model": {"layers": 4}},
        {"model": {"norm_eps": 0}},
    ]
    many = {f"c{i}": {"loss": "terminal", "readout": "rms", **x} for i, x in enumerate(different)}
    many["same"] = {"loss": "per-loop", "readout": "rms", "training": {"learning_rate": 1}}
    study = load(cells=many, sizes={"44m": None})
    found = study.architectures("44m")
    assert (
        len(found) == len(different) == len({canonical(s.architecture()) for s in found.values()})
    )
    assert study.architecture("same") == study.architecture("c0") == "rms"
    assert found[study.architecture("c1")].loops == 8
    assert study.architecture("c2") == "rms+d256"
