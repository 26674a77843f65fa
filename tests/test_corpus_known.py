"""A folder of another text is not taken for a revision whose text is known."""

import pytest

from blindspot.data import corpus
from blindspot.data.corpora import known
from blindspot.errors import BlindspotError
from test_corpus import hub, layout, own_cache  # noqa: F401
from toys import WIKITEXT

pytest.importorskip("datasets")
ROWS = {
    "train": [f"row {n}\n" for n in range(5)],
    "validation": ["some text\n"],
    "test": ["other text\n"],
}


def wikitext(folder, **changes):
    return hub(folder, config="wikitext-2-v1", **changes)


@pytest.fixture
def folder(tmp_path):
    """A folder of WikiText-2's layout and name, with another text."""
    made = layout(tmp_path / "wikitext", ROWS)
    card = (made / "README.md").read_text()
    (made / "README.md").write_text(card.replace("config_name: toy", "config_name: wikitext-2-v1"))
    return made


def test_another_text_is_refused_by_digest(folder, tmp_path):
    part = {"limit": {"documents": 3}}  # of train, whose number of rows is then no sign
    with pytest.raises(BlindspotError, match=r"'validation' of config wikitext-2-v1.*85d100d4"):
        corpus.fetch(wikitext(folder, **part), tmp_path / "c")
    with pytest.raises(
        BlindspotError, match=r"'train' of config wikitext-2-v1.* 5 rows, not 36718"
    ):
        corpus.fetch(wikitext(folder), tmp_path / "c")
    assert not (tmp_path / "c/corpus.json").exists()


@pytest.mark.parametrize("changes", [{"revision": "0" * 40}, {"validation": "test", "test": 0.3}])
def test_what_is_not_known_is_taken_at_its_word(folder, tmp_path, changes):
    corpus.fetch(wikitext(folder, **changes), tmp_path / "c")
    assert corpus.read(tmp_path / "c")["splits"]["train"]["documents"] > 0


def test_train_is_known_by_its_rows():
    splits = {
        s: {"sha256": d} for s, d in known.SHA256["Salesforce/wikitext", "wikitext-2-v1"].items()
    }
    known.check(wikitext("x"), splits | {"train": {"rows": 36_718, "sha256": "any"}})
    short = splits | {"train": {"rows": 36_717, "sha256": "any"}}
    with pytest.raises(BlindspotError, match="has 36717 rows, not 36718"):
        known.check(wikitext("x"), short)
    known.check(wikitext("x", limit={"documents": 10}), short)


@pytest.mark.skipif(not WIKITEXT.is_dir(), reason="no WikiText here")
def test_the_real_text_passes(tmp_path):
    """Its validation and test text, digested here from the rows; train is cut by a limit."""
    spec = wikitext(WIKITEXT, limit={"documents": 100})
    corpus.fetch(spec, tmp_path / "c")
    found = corpus.read(tmp_path / "c")["splits"]
    digests = {split: found[split]["sha256"] for split in ("validation", "test")}
    assert digests == known.SHA256["Salesforce/wikitext", "wikitext-2-v1"]
