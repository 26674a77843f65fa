"""Corpora from files and from the hub's layout: tables, folders, shares, limits, bad bytes."""

import hashlib
import json
import os
import subprocess
import sys
from itertools import chain

import pytest

from blindspot.config.dataspec import HubCorpus, LocalCorpus
from blindspot.config.study import Study
from blindspot.data import corpus
from blindspot.data.corpora import hub as hub_module
from blindspot.data.corpora import local as files
from blindspot.errors import BlindspotError
from test_corpus import REVISION, hub, layout
from test_tokenizer import ODD
from toys import ROOT

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
datasets = pytest.importorskip("datasets")

BASE = ROOT / "config.yaml"
DOCUMENTS = [f"Document {i}: {text}" for i in range(60) for text in ODD[:2]]
REST = {"validation": "some text", "test": "other text"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def write_table(path, documents, column="text"):
    """Documents as JSON lines or parquet, by the file's ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(pa.table({"id": list(range(len(documents))), column: documents}), path)
    else:
        lines = [json.dumps({"id": i, column: text}) for i, text in enumerate(documents)]
        path.write_text("\n\n".join(lines) + "\n")
    return str(path)


def fetched(folder, **values):
    corpus.fetch(LocalCorpus.model_validate({"kind": "local", **values}), folder)
    return {split: list(corpus.documents(folder, split)) for split in corpus.SPLITS}


@pytest.fixture
def rest(tmp_path):
    for split, text in REST.items():
        (tmp_path / f"{split}.txt").write_text(text)
    return {split: str(tmp_path / f"{split}.txt") for split in REST}


@pytest.mark.parametrize("ending", ["jsonl", "ndjson", "json", "parquet"])
def test_tables_are_a_document_a_row(tmp_path, rest, ending):
    documents = [*DOCUMENTS, "", " \n", "line\r\nend\rs"]
    train = write_table(tmp_path / f"train.{ending}", documents, "body")
    found = fetched(tmp_path / "c", train=train, column="body", **rest)
    assert found["train"] == [*DOCUMENTS, "line\nend\ns"]
    assert found["validation"] == ["some text"]


def test_a_folder_is_its_files_in_order(tmp_path, rest):
    folder = tmp_path / "many"
    write_table(folder / "b" / "0.parquet", DOCUMENTS[:7])
    write_table(folder / "a.jsonl", DOCUMENTS[7:9])
    (folder / "c.txt").write_bytes(b"\xef\xbb\xbfplain\r\ntext")
    (folder / ".hidden.txt").write_text("hidden")
    (folder / "notes.pdf").write_text("not text")
    found = fetched(tmp_path / "c", train=str(folder), **rest)
    assert found["train"] == [*DOCUMENTS[7:9], *DOCUMENTS[:7], "plain\ntext"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        BlindspotError, match=r"corpus\.train: .*empty: a folder without text; .*md"
    ):
        fetched(tmp_path / "d", train=str(tmp_path / "empty"), **rest)


def test_linked_folders_are_followed_and_hidden_ones_left_out_and_said(tmp_path, rest, capsys):
    folder, elsewhere = tmp_path / "many", tmp_path / "elsewhere"
    write_table(elsewhere / "deep" / "x.jsonl", DOCUMENTS[:2])
    (elsewhere / ".hidden.md").write_text("hidden")
    for name in (".git/a.txt", ".ipynb_checkpoints/b.txt", ".cache/nothing.bin", "c.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"text of {name}")
    (folder / "b").symlink_to(elsewhere)
    found = fetched(tmp_path / "c", train=str(folder), **rest)
    assert found["train"] == [*DOCUMENTS[:2], "text of c.txt"]
    said = capsys.readouterr().err
    left = [folder / n for n in (".cache", ".git", ".ipynb_checkpoints", "b/.hidden.md")]
    assert f"train: left out, because hidden: {', '.join(map(str, left))}\n" in said
    study = Study.load(BASE, [], {"corpus": {"kind": "local", "train": str(folder), **rest}})
    assert study.notes == (f"corpus.train: left out, because hidden: {', '.join(map(str, left))}",)
    # A folder that is named itself may be hidden: that it is meant is plain.
    found = fetched(tmp_path / "d", train=str(folder / ".git"), **rest)
    assert found["train"] == ["text of .git/a.txt"]


@pytest.mark.parametrize(
    ("link", "to", "message"),
    [
        ("many/deep/up", "many", r"deep/up: a link to a folder that it is in, .*many; take it out"),
        ("many/gone", "nowhere", r"gone: a link to .*nowhere, which does not exist; repair it or"),
        ("many/again", "many/deep", r"deep/a\.txt and .*again/a\.txt are one file"),
        ("many/b.txt", "many/deep/a.txt", r"deep/a\.txt and .*many/b\.txt are one file"),
    ],
)
def test_links_that_lead_astray_are_named(tmp_path, rest, link, to, message):
    (tmp_path / "many" / "deep").mkdir(parents=True)
    (tmp_path / "many" / "deep" / "a.txt").write_text("a")
    (tmp_path / link).symlink_to(tmp_path / to)
    with pytest.raises(BlindspotError, match=rf"^corpus\.train: .*{message}"):
        fetched(tmp_path / "c", train=str(tmp_path / "many"), **rest)


@pytest.mark.parametrize("ending", ["txt", "jsonl", "parquet"])
def test_a_text_that_changes_while_it_is_read_is_refused(tmp_path, rest, ending, monkeypatch):
    """Even if it was put back: the study would carry the old text's digest, with the new text."""
    path = tmp_path / f"train.{ending}"

    def put(documents):
        if ending == "txt":
            path.write_text("".join(documents))
        else:
            write_table(path, documents)

    put(["before"])
    named = Study.load(BASE, [], {"corpus": {"kind": "local", "train": str(path), **rest}})
    spec = named.config.corpus
    corpus.fetch(spec, tmp_path / "c")
    assert list(corpus.documents(tmp_path / "c", "train")) == ["before"]
    read = files.read

    def changed(name, *more):
        if name == path:
            put(["meanwhile"])
        yield from read(name, *more)
        put(["before"])

    monkeypatch.setattr(files, "read", changed)
    with pytest.raises(BlindspotError, match=rf"what was read has digest .*{spec.sha256}: files"):
        corpus.fetch(spec, tmp_path / "c")
    assert not list((tmp_path / "c").iterdir())
    monkeypatch.undo()
    corpus.fetch(spec, tmp_path / "c")


def test_a_file_that_is_added_while_files_are_read_is_noticed(tmp_path, rest):
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "a.txt").write_text("a")
    values = {"kind": "local", "train": str(tmp_path / "many"), **rest}
    spec = Study.load(BASE, [], {"corpus": values}).config.corpus
    (tmp_path / "many" / "b.txt").write_text("b")
    again = LocalCorpus.model_validate(spec.model_dump())
    with pytest.raises(BlindspotError, match="files were changed, added or taken away"):
        corpus.fetch(again, tmp_path / "c")


def test_shares_part_the_documents_by_their_text_alone(tmp_path):
    documents = [*DOCUMENTS, DOCUMENTS[3], DOCUMENTS[5]]
    shares = {"validation": 0.2, "test": 0.1}
    train = write_table(tmp_path / "all.jsonl", documents)
    found = fetched(tmp_path / "c", train=train, **shares)
    for text in documents:
        place = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32
        split = "validation" if place < 0.2 else "test" if place < 0.2 + 0.1 else "train"
        assert text in found[split]
    assert sorted(chain.from_iterable(found.values())) == sorted(documents)
    assert all(found.values()) and len(found["validation"]) == pytest.approx(0.2 * 122, abs=12)
    # Order does not matter, and equal documents never meet in two splits.
    backwards = write_table(tmp_path / "backwards.parquet", documents[::-1])
    turned = fetched(tmp_path / "d", train=backwards, **shares)
    assert {k: sorted(v) for k, v in turned.items()} == {k: sorted(v) for k, v in found.items()}


def test_a_share_that_takes_nothing_says_of_how_many(tmp_path):
    train = write_table(tmp_path / "all.jsonl", DOCUMENTS[:3])
    with pytest.raises(
        BlindspotError, match=r"corpus\.validation: 0\.0001 .* are none, of 3; use a"
    ):
        fetched(tmp_path / "c", train=train, validation=0.0001, test=0.5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.csv", r"corpus\.train: .*x\.csv: not read; .*: convert it to JSON lines or parquet"),
        ("x.txt.gz", r"corpus\.train: .*x\.txt\.gz: not read; .*: unpack it first"),
        ("", r"corpus\.train: an empty name"),
    ],
)
def test_files_that_are_no_text_are_refused(rest, tmp_path, name, message):
    with pytest.raises(BlindspotError, match=message):
        fetched(tmp_path / "c", train=name and str(tmp_path / name), **rest)


def test_utf16_is_recognised(rest, tmp_path):
    (tmp_path / "x.txt").write_text("hello", encoding="utf-16")
    with pytest.raises(BlindspotError, match=r"x\.txt: not UTF-8 at byte 0 .*iconv -f utf-16"):
        fetched(tmp_path / "c", train=str(tmp_path / "x.txt"), **rest)


def test_a_file_of_two_splits_is_refused(rest, tmp_path):
    """E-07: a folder for training that holds the file to be scored."""
    (tmp_path / "many").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "many" / name).write_text(name)
    splits = rest | {"train": str(tmp_path / "many"), "test": str(tmp_path / "many" / "b.txt")}
    with pytest.raises(BlindspotError, match=r"corpus\.test: .*b\.txt is a file of corpus\.train"):
        Study.load(
            ROOT / "config.yaml", [], {"corpus": {"kind": "local", "sha256": None, **splits}}
        )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"validation": 0.5, "test": 0.5}, "nothing to train on"),
        ({"validation": 1.5, "test": 0.1}, "a share is between 0 and 1"),
    ],
)
def test_impossible_shares_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        LocalCorpus.model_validate({"kind": "local", "train": "x", **values})


BAD = {
    "not JSON": (b'{"text": "a"}\n{"text": \n', r"x\.jsonl: line 2 is not a JSON object"),
    "an array": (b'[{"text": "a"}]\n', r"x\.jsonl: line 1 has no key 'text', only no keys"),
    "other key": (b'{"a": 1, "b": 2}\n', r"x\.jsonl: line 1 has no key 'text', only a, b; set"),
    "not UTF-8": (b'{"text": "a"}\n{"text": "\xe9"}\n', r"x\.jsonl: line 2 .*utf-8.*in UTF-8"),
    "half a pair": (b'{"text": "\\ud83d"}\n', r"x\.jsonl: line 1 holds half of a surrogate pair"),
    "a number": (b'{"text": 3}\n', r"x\.jsonl: line 1 holds int, not text"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_line_is_named(tmp_path, rest, fault):
    data, message = BAD[fault]
    (tmp_path / "x.jsonl").write_bytes(data)
    with pytest.raises(BlindspotError, match=message):
        fetched(tmp_path / "c", train=str(tmp_path / "x.jsonl"), **rest)
    assert not (tmp_path / "c" / "corpus.json").exists()
    assert not list((tmp_path / "c").glob("*.jsonl"))


def test_a_bad_parquet_is_named(tmp_path, rest):
    path = tmp_path / "x.parquet"
    path.write_bytes(b"no parquet")
    with pytest.raises(BlindspotError, match=r"x\.parquet: not readable as parquet"):
        fetched(tmp_path / "c", train=str(path), **rest)
    write_table(path, ["a"], "body")
    with pytest.raises(BlindspotError, match=r"'text' is not a column of .*it has id, body"):
        fetched(tmp_path / "c", train=str(path), **rest)
    bad = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xe9")]
    )
    parquet.write_table(pa.table({"text": bad}), path)
    with pytest.raises(BlindspotError, match=r"x\.parquet: row 2 is not UTF-8"):
        fetched(tmp_path / "c", train=str(path), **rest)


def test_the_same_bytes_read_in_another_way_are_another_corpus(tmp_path):
    values = {"validation": 0.1, "test": 0.1, "sha256": "0" * 64}
    specs = [
        LocalCorpus.model_validate({"kind": "local", **values, **change})
        for change in (
            {"train": "x.txt"},
            {"train": "x.jsonl"},
            {"train": "x.jsonl", "column": "body"},
            {"train": "x.txt", "test": 0.2},
            {"train": "x.txt", "test": "y.txt"},
        )
    ]
    assert len({json.dumps(spec.identity()) for spec in specs}) == 5
    # As it always was: plain files are their content, wherever they lie.
    plain = LocalCorpus(
        kind="local", train="a.txt", validation="b.txt", test="c.txt", sha256="1" * 64
    )
    assert plain.identity() == {"kind": "local", "sha256": "1" * 64}


# --- the hub's layout ------------------------------------------------------------------------

ROWS = {"train": DOCUMENTS, "validation": ["v"], "test": ["t"]}


def test_a_limit_streams_and_stops_within_it(tmp_path, monkeypatch):
    folder = layout(tmp_path / "hub", ROWS)
    calls = []
    for name in ("as_streaming_dataset", "as_dataset"):
        method = getattr(datasets.DatasetBuilder, name)
        monkeypatch.setattr(
            datasets.DatasetBuilder,
            name,
            lambda *a, _name=name, _method=method: (calls.append(_name), _method(*a))[1],
        )
    words = [len(text.split()) for text in DOCUMENTS]
    for limit, count in [
        ({"documents": 7}, 7),
        ({"words": sum(words[:9])}, 9),
        ({"words": sum(words[:9]) - 1}, 8),
        ({"tokens": len("".join(DOCUMENTS[:5]).encode()) // 4 + 1}, 5),
        ({"documents": 10**6}, len(DOCUMENTS)),
    ]:
        corpus.fetch(hub(folder, limit=limit), tmp_path / "c")
        assert list(corpus.documents(tmp_path / "c", "train")) == DOCUMENTS[:count], limit
        assert list(corpus.documents(tmp_path / "c", "test")) == ["t"]
        assert calls == ["as_streaming_dataset"] and not calls.clear()
    corpus.fetch(hub(folder), tmp_path / "c")
    assert calls == ["as_dataset"]


def test_a_data_set_with_train_alone_gives_shares(tmp_path):
    """What FineWeb needs: no validation, no test, rows streamed up to a budget."""
    folder = layout(tmp_path / "hub", {"train": DOCUMENTS})
    values = {"validation": 0.2, "test": 0.2, "limit": {"documents": 100}}
    corpus.fetch(hub(folder, **values), tmp_path / "c")
    found = {s: list(corpus.documents(tmp_path / "c", s)) for s in corpus.SPLITS}
    assert all(found.values())
    assert sorted(chain.from_iterable(found.values())) == sorted(DOCUMENTS[:100])
    assert "rows" not in corpus.read(tmp_path / "c")["splits"]["train"]
    with pytest.raises(BlindspotError, match=r"no split 'test', only train; .*share .*test: 0.01"):
        corpus.fetch(hub(folder, validation=0.2), tmp_path / "c")


def test_fineweb_is_asked_for_by_name_and_revision(tmp_path, monkeypatch):
    calls = []

    def offline(*args, **named):
        calls.append((args, named))
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset_builder", offline)
    spec = HubCorpus(
        kind="hub", name="HuggingFaceFW/fineweb", config="sample-10BT", revision="9bb295ddab0e05",
        validation=0.001, test=0.001, limit={"tokens": 10**9},
    )  # fmt: skip
    assert spec.label == "sample-10BT"
    with pytest.raises(BlindspotError, match="Three ways out"):
        corpus.fetch(spec, tmp_path)
    named = {"revision": "9bb295ddab0e05"}
    assert calls == [(("HuggingFaceFW/fineweb", "sample-10BT"), named)]


def test_a_folder_of_that_name_is_not_the_hub(tmp_path, monkeypatch):
    """`datasets` takes a folder of the current one for the data set of that name."""
    layout(tmp_path / "Salesforce" / "wikitext", ROWS)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BlindspotError, match="the current folder has a folder of that name"):
        corpus.fetch(hub(tmp_path, path=None), tmp_path / "c")


def test_a_config_that_must_be_chosen_is_told_with_the_choice(tmp_path):
    """E-06: several configs, none chosen."""
    folder = layout(tmp_path / "hub", ROWS)
    card = (folder / "README.md").read_text()
    more = card.split("configs:\n")[1].removesuffix("---\n").replace("toy\n", "other\n", 1)
    (folder / "README.md").write_text(card.removesuffix("---\n") + more + "---\n")
    for config in (None, "wrong"):
        with pytest.raises(BlindspotError, match=r"'toy', 'other'\].*Three ways out"):
            corpus.fetch(hub(folder, config=config), tmp_path / "c")


def test_a_stream_that_breaks_off_is_told(tmp_path, monkeypatch):
    folder = layout(tmp_path / "hub", ROWS)

    def breaking(self, batch_size):
        yield {"text": ["some"]}
        raise ConnectionError("line cut")

    monkeypatch.setattr(datasets.IterableDataset, "iter", breaking)
    with pytest.raises(BlindspotError, match=r"ConnectionError: line cut\)\. Three ways out"):
        corpus.fetch(hub(folder, limit={"documents": 9}), tmp_path / "c")
    assert not list((tmp_path / "c").glob("*"))


def test_a_bare_alias_and_two_limits_are_refused(tmp_path):
    """E-06: `wikitext` no longer resolves; a branch or a tag moves."""
    with pytest.raises(ValueError, match="give the full name, owner/name, such as Salesforce"):
        hub(tmp_path, name="wikitext")
    for revision in ("main", "refs/convert/parquet", "v1.0.0-final", "abc12", "g" * 40):
        with pytest.raises(ValueError, match="give a commit, 7 to 40 of its hexadecimal digits"):
            hub(tmp_path, revision=revision)
    with pytest.raises(ValueError, match="exactly one of"):
        hub(tmp_path, limit={"documents": 1, "words": 1})
    assert hub(tmp_path).identity().keys() == {"kind", "name", "config", "revision", "column"}


def test_without_network_the_ways_out_are_named(tmp_path):
    """E-06: the real call, offline and with an empty cache; nothing of it is made up."""
    program = (
        "import sys, pathlib; from blindspot.data import corpus\n"
        "from blindspot.config.dataspec import HubCorpus\n"
        "spec = HubCorpus(kind='hub', name='Salesforce/wikitext', config='wikitext-103-raw-v1',"
        f" revision='{REVISION}')\n"
        "try: corpus.fetch(spec, pathlib.Path(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "empty")}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "c")],
        env=environment, capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.startswith("BlindspotError corpus.name Salesforce/wikitext, config wiki")
    assert hub_module.WAYS_OUT in done.stdout and not (tmp_path / "c" / "corpus.json").exists()
