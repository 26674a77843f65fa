"""Corpora: rules for rows and line ends, real WikiText's counts, and what is refused."""

import hashlib
import json
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindspot.config.dataspec import BpeTokenizer, DataSpec, EnwikiSample, HubCorpus, LocalCorpus
from blindspot.data import corpus
from blindspot.data.corpora import enwiki
from blindspot.data.corpora import local as files
from blindspot.data.tokens import build
from blindspot.errors import BlindspotError
from test_tokenizer import ODD
from toys import WIKITEXT

real = pytest.mark.skipif(not WIKITEXT.is_dir(), reason="no WikiText here")
REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def hub(folder, **changes):
    values = {"name": "Salesforce/wikitext", "config": "toy", "revision": REVISION}
    return HubCorpus.model_validate({"kind": "hub", **values, "path": str(folder), **changes})


def local(folder, texts):
    """A local corpus of files with these bytes or texts, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, text in texts.items():
        (folder / split).write_bytes(text if isinstance(text, bytes) else text.encode())
    return LocalCorpus(kind="local", **{split: str(folder / split) for split in texts})


def texts_of(folder):
    return {s: "\n\n".join(corpus.documents(folder, s)) for s in corpus.SPLITS}


def layout(folder, rows, column="text"):
    """A local folder in the hub's layout: parquet files, and a card that names the splits."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    card = ["---", "configs:", "- config_name: toy", "  data_files:"]
    for split, values in rows.items():
        path = folder / "toy" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.table({column: values}), path)
        card += [f"  - split: {split}", f"    path: toy/{split}-*"]
    (folder / "README.md").write_text("\n".join([*card, "---", ""]))
    return folder


ROWS = {
    "train": ["", *ODD, " ", "\n", ODD[1], "end\r\n"],
    "validation": ["a row without newline", "", " next \n"],
    "test": ["\n  \n", "  one  "],
}


def test_rows_are_joined_and_blank_ones_dropped(tmp_path):
    corpus.fetch(hub(layout(tmp_path / "hub", ROWS)), tmp_path / "c")
    assert texts_of(tmp_path / "c") == {
        "train": "\n\n".join([*ODD[:3], ODD[3][:-2] + "\n", ODD[4], ODD[1], "end\n"]),
        "validation": "a row without newline\n\n next \n",
        "test": "  one  ",
    }
    description = corpus.read(tmp_path / "c")
    assert description["label"] == "toy" and "path" not in description["identity"]
    splits = description["splits"]
    assert {s: (v["rows"], v["documents"]) for s, v in splits.items()} == {
        "train": (10, 7),
        "validation": (3, 2),
        "test": (2, 1),
    }
    for split, text in texts_of(tmp_path / "c").items():
        assert splits[split]["bytes"] == len(text.encode())
        assert splits[split]["words"] == len(text.split())
        assert splits[split]["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert splits["train"]["unk_words"] == 1 and splits["train"]["joined_words"] == 0


def test_rows_and_text_files_give_the_same_ids(tmp_path):
    """E-05: the same text as rows of a data set, as a file with LF, and as one with CRLF."""
    corpora = {"rows": hub(layout(tmp_path / "hub", ROWS))}
    corpus.fetch(corpora["rows"], tmp_path / "rows")
    texts = texts_of(tmp_path / "rows")
    corpora["lf"] = local(tmp_path / "files-lf", texts)
    crlf = {split: text.replace("\n", "\r\n") for split, text in texts.items()}
    corpora["crlf"] = local(tmp_path / "files-crlf", crlf)
    streams = []
    for way, spec in corpora.items():
        corpus.fetch(spec, tmp_path / way)
        data = DataSpec(corpus=spec, tokenizer=BpeTokenizer(kind="bpe", vocab_size=270))
        build(data, tmp_path / way, tmp_path / f"tokens-{way}")
        streams.append([p.read_bytes() for p in sorted(tmp_path.glob(f"tokens-{way}/*.bin"))])
    assert len(streams[0]) == 3 and streams[0] == streams[1] == streams[2]


@given(st.lists(st.text(st.sampled_from("ab \n\r\ufeff\u2028\u00e9\U0001f600")), max_size=40))
def test_blocks_are_the_file_wherever_it_is_cut(tmp_path_factory, parts):
    text = "".join(parts)
    path = tmp_path_factory.mktemp("f") / "file"
    path.write_bytes(text.encode())
    expected = path.read_text(encoding="utf-8-sig")  # Python's own rules for marks and line ends
    assert "".join(files._decoded(path, hashlib.sha256(), size=3)) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK", 4)
        blocks = list(files.blocks(path))
    assert "\n\n".join(blocks) == expected
    assert all(len(block) >= 4 for block in blocks[:-1])
    assert len(blocks) == 1 or not any(block == "" or block.isspace() for block in blocks[1:-1])


@pytest.mark.parametrize("before", [0, 5, (1 << 20) - 1, 1 << 20])
def test_invalid_utf8_names_file_and_offset(tmp_path, before):
    spec = local(tmp_path, {"train": b"a" * before + "\u00e9".encode()[:1] + b"b",
                            "validation": "v", "test": "t"})  # fmt: skip
    with pytest.raises(BlindspotError, match=rf"train: not UTF-8 at byte {before} "):
        corpus.fetch(spec, tmp_path / "c")
    assert not (tmp_path / "c" / "corpus.json").exists()
    assert not list((tmp_path / "c").glob("*.jsonl"))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"train": "", "validation": "v", "test": "t"}, "split 'train' is empty"),
        ({"train": "x", "validation": "v", "test": " \r\n\t\n"}, "split 'test' is empty"),
        ({"train": "x", "validation": "v", "test": "v"}, "'validation' and 'test' are the same"),
    ],
)
def test_empty_and_equal_splits_are_refused(tmp_path, texts, message):
    spec = local(tmp_path, texts)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "corpus.json").write_text("{}")  # of an earlier fetch
    with pytest.raises(BlindspotError, match=message):
        corpus.fetch(spec, tmp_path / "c")
    assert not (tmp_path / "c" / "corpus.json").exists()


def test_what_a_hub_folder_lacks_is_named(tmp_path):
    folder = layout(tmp_path / "hub", {k: ROWS[k] for k in ("validation", "test")})
    with pytest.raises(BlindspotError, match=r"has no split 'train', only .*enwiki-sample"):
        corpus.fetch(hub(folder), tmp_path / "c")
    folder = layout(tmp_path / "other", ROWS, column="body")
    with pytest.raises(BlindspotError, match=r"corpus\.column: 'text' is not a column .* body"):
        corpus.fetch(hub(folder), tmp_path / "c")
    with pytest.raises(BlindspotError, match=r"config nope: could not be loaded .*Three ways out"):
        corpus.fetch(hub(folder, config="nope"), tmp_path / "c")
    with pytest.raises(BlindspotError, match=r"corpus\.path: .*no such folder"):
        corpus.fetch(hub(tmp_path / "absent"), tmp_path / "c")
    folder = layout(tmp_path / "numbers", {split: [1, 2] for split in ROWS})
    with pytest.raises(BlindspotError, match="holds int, not text"):
        corpus.fetch(hub(folder), tmp_path / "c")


def test_the_hub_is_asked_by_full_name_config_and_revision(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    calls = []

    def offline(*args, **named):
        calls.append((args, named))
        raise ConnectionError("Couldn't reach 'Salesforce/wikitext' on the Hub\ntrace")

    monkeypatch.setattr(datasets, "load_dataset_builder", offline)
    spec = hub(tmp_path, path=None, config="wikitext-103-raw-v1")
    with pytest.raises(BlindspotError) as error:
        corpus.fetch(spec, tmp_path / "c")
    assert calls == [(("Salesforce/wikitext", "wikitext-103-raw-v1"), {"revision": REVISION})]
    message = str(error.value)
    assert "\n" not in message and "Couldn't reach" in message
    assert all(way in message for way in ("HF_HOME", "corpus.path", "enwiki-sample", "local"))


@real
def test_real_wikitext(tmp_path):
    """The literature's counts, and the raw files' digests, out of the rows that are there."""
    datasets = pytest.importorskip("datasets")
    spec = hub(WIKITEXT, config="wikitext-103-raw-v1")
    with pytest.raises(BlindspotError, match=r"no split 'train', only .*test"):
        corpus.fetch(spec, tmp_path / "c")
    dataset = datasets.load_dataset(str(WIKITEXT), "wikitext-103-raw-v1")
    for split, digest in [
        ("test", "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08"),
        ("validation", "4cd0f6876d07a413aa911261ff6d363c72d757d47f0fdd6015702014c89cb9c7"),
    ]:
        # A blank row is the raw file's line " \n".
        raw = "".join(row or " \n" for row in dataset[split]["text"])
        assert hashlib.sha256(raw.encode()).hexdigest() == digest

    corpus.fetch(hub(WIKITEXT, config="wikitext-2-v1"), tmp_path / "c")
    splits = corpus.read(tmp_path / "c")["splits"]
    assert splits["test"]["rows"] == 4358 and splits["train"]["rows"] == 36718
    assert splits["test"]["words"] == 241_211
    assert splits["test"]["words"] + splits["test"]["rows"] == 245_569
    assert splits["train"]["unk_words"] > 50_000  # the tokenized variant shows
    rows = datasets.load_dataset(str(WIKITEXT), "wikitext-2-v1")["test"]["text"]
    assert texts_of(tmp_path / "c")["test"] == "\n\n".join(row for row in rows if row)


def test_a_failed_download_names_the_way_out(tmp_path, monkeypatch):
    def no_network(command, **_):
        return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: no network\n")

    monkeypatch.setattr(enwiki.subprocess, "run", no_network)
    with pytest.raises(BlindspotError, match=r"gensim==4.4.0 \(ERROR: no network\).*kind: local"):
        corpus.fetch(EnwikiSample(kind="enwiki-sample"), tmp_path)
    assert not list(tmp_path.glob("*.json*"))


def test_documents_survive_json(tmp_path):
    path = tmp_path / "train.jsonl"
    texts = [*ODD, '"quoted" \\ \x00']
    corpus._write((("train", text) for text in texts), tmp_path)
    assert list(corpus.documents(tmp_path, "train")) == texts
    assert len(path.read_bytes().split(b"\n")) == len(texts) + 1
    assert json.loads(path.read_bytes().split(b"\n")[0]) == {"text": ODD[0]}
    path.unlink()
    with pytest.raises(BlindspotError, match=r"train\.jsonl: no such file"):
        list(corpus.documents(tmp_path, "train"))
