"""The embedded corpus: a small dump by hand, and the real excerpt where pip can fetch it."""

import bz2
import io
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from blindspot.config.dataspec import EnwikiSample
from blindspot.data import corpus, wiki
from blindspot.data.corpora import enwiki
from blindspot.errors import BlindspotError

mwparserfromhell = pytest.importorskip("mwparserfromhell")

#: Filler, so that an article is long enough to be one.
LONG = "The quick brown fox jumps over the lazy dog and then rests for a while. " * 15

MARKUP = f"""{{{{Infobox thing|name=X|text='''hidden'''}}}}<!-- a comment -->
'''Albedo''' is the ''[[whiteness|brightness]]'' of a [[surface]]{{{{fact}}}}.<ref>R</ref>
It wraps to a second line<ref name="a" /> and measures {{{{convert|5|km|mi}}}} (; {{{{IPA-en|x}}}}).

[[File:X.jpg|thumb|A caption with a [[link]] that is long enough to look like a sentence.]]
{{| class="wikitable"
! head
|-
| cell one || cell two
|}}

== Empty ==
{{{{see also|Nothing}}}}
=== Also empty ===
* short item

== Kept &amp; sound ==
{LONG}
* A list item that is a whole sentence of some length is kept.
* not a sentence
: <math>E = mc^2</math>
where <math>c</math> is a speed, and this paragraph has a formula in it, so it goes as a whole.

=== Deeper ===
See {{{{lang|fr|le mot}}}} and [http://example.org the site], H<sub>2</sub>O&nbsp;too.

== See also ==
* [[Other]] is a whole sentence that would be kept if it were not in an appendix here.
=== Below it ===
Also dropped with it, although this paragraph is a sentence of some length, as you can see.
[[Category:Things]]
"""


def page(title, text, ns=0, redirect=False):
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    mark = '<redirect title="Y" />' if redirect else ""
    return (
        f"<page><title>{title}</title><ns>{ns}</ns>{mark}"
        f"<revision><text>{escaped}</text></revision></page>"
    )


def dump(*pages):
    space = 'xmlns="http://www.mediawiki.org/xml/export-0.10/"'
    text = f"<mediawiki {space}><siteinfo><base>x</base></siteinfo>{''.join(pages)}</mediawiki>"
    return io.BytesIO(text.encode())


def test_an_article_becomes_prose():
    assert wiki.prose("Albedo", MARKUP).split("\n\n") == [
        " = Albedo = ",
        "Albedo is the brightness of a surface. It wraps to a second line and measures 5 km.",
        " = = Kept & sound = = ",
        LONG.strip(),
        "A list item that is a whole sentence of some length is kept.",
        " = = = Deeper = = = ",
        "See le mot and the site, H2O too.",
    ]


def test_lists_of_links_are_no_articles():
    assert wiki.prose("List", "* [[One]]\n" * 500) == ""
    assert wiki.prose("Short", "It is a short page with one sentence.") == ""


def test_redirects_and_other_namespaces_are_skipped():
    pages = [
        page("Kept & sound <1>".replace("&", "&amp;").replace("<", "&lt;"), "a & b"),
        page("Gone", "#REDIRECT [[Y]]", redirect=True),
        page("Talk:X", "talk", ns=1),
        page("Last", "z"),
    ]
    assert list(wiki.articles(dump(*pages))) == [("Kept & sound <1>", "a & b"), ("Last", "z")]


def test_articles_go_to_splits_by_title_alone():
    titles = [f"Title {i}" for i in range(40)]
    packed = bz2.compress(dump(*(page(title, LONG + title) for title in titles)).read())
    found = {text.split(" = ")[1]: split for split, text in enwiki._enwiki_documents(packed)}
    assert found == {title: enwiki.split_of(title) for title in titles}
    assert set(found.values()) == set(corpus.SPLITS)
    few = bz2.compress(dump(page(titles[7], LONG)).read())
    assert [split for split, _ in enwiki._enwiki_documents(few)] == [found[titles[7]]]


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (enwiki.EXCERPT, "has SHA-256 [0-9a-f]{64}, expected"),
        ("other", "does not hold the excerpt"),
    ],
)
def test_another_wheel_is_refused(monkeypatch, tmp_path, member, message):
    def download(command, **_):
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "gensim.whl", "w") as wheel:
            wheel.writestr(member, b"other bytes")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(enwiki.subprocess, "run", download)
    with pytest.raises(BlindspotError, match=message) as error:
        corpus.fetch(EnwikiSample(kind="enwiki-sample"), tmp_path)
    assert "kind: local" in str(error.value) and not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    folder = tmp_path_factory.mktemp("enwiki")
    try:
        corpus.fetch(EnwikiSample(kind="enwiki-sample"), folder)
    except BlindspotError as error:
        pytest.skip(f"pip cannot fetch here: {error}")
    return folder


def test_the_real_excerpt_is_the_text_that_results_rest_on(sample):
    """Golden: when this moves, DATA_REVISION must be raised."""
    splits = corpus.read(sample)["splits"]
    assert {s: (v["documents"], v["bytes"], v["sha256"][:16]) for s, v in splits.items()} == {
        "train": (90, 2_667_659, "71a980319d97df4f"),
        "validation": (3, 44_631, "b7f0a4b149f24f81"),
        "test": (2, 38_815, "4be97e9e58a2ead4"),
    }


def test_the_real_excerpt_is_prose(sample):
    texts = {s: list(corpus.documents(sample, s)) for s in corpus.SPLITS}
    titles = [d.split(" = ")[1] for documents in texts.values() for d in documents]
    assert len(set(titles)) == len(titles) == 95
    everything = "\n\n".join(d for documents in texts.values() for d in documents)
    for markup in ("[[", "]]", "{{", "}}", "''", "<ref", "</", "http", "&nbsp", "|thumb", "\ue000"):
        assert markup not in everything, markup
    assert not re.search(r"\(\s*[,;)]| ,| \.(?!\.)\s|\n\n\n", everything)
    blocks = everything.split("\n\n")
    headings = [b for b in blocks if b.startswith(" =")]
    assert all(re.fullmatch(r" (= )+\S.*\S( =)+ | (= )+\S( =)+ ", h) for h in headings)
    prose = [b for b in blocks if not b.startswith(" =")]
    assert sum(b[-1] in ".!?\"')]”" for b in prose) > 0.97 * len(prose)
    assert sum(map(len, prose)) > 0.97 * sum(map(len, blocks))
