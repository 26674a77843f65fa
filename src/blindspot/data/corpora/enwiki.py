"""The embedded corpus: the Wikipedia excerpt of the gensim wheel, as articles of prose."""

import bz2
import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from blindspot.data import wiki
from blindspot.errors import BlindspotError

GENSIM = "gensim==4.4.0"
#: One wheel for every machine: the excerpt is the same in all of them, and none is installed.
WHEEL = ["--implementation", "cp", "--python-version", "3.11", "--abi", "cp311"]
WHEEL += ["--platform", "manylinux_2_28_x86_64"]
EXCERPT = (
    "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
)
EXCERPT_SHA256 = "a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d"
#: Below the first, an article's hash puts it into validation; below the second, into test. Chosen
#: so that each gets about 40 kB of whole articles: scoring all of a split at every depth, once a
#: run, is a good part of the demo's time.
VALIDATION_SHARE, TEST_SHARE = 0.03, 0.0572


def tagged() -> Iterator[tuple[str, str]]:
    """(split, article), fetched through pip and its settings."""
    return _enwiki_documents(_excerpt())


def _excerpt() -> bytes:
    """Fetch the Wikipedia excerpt (bzip2) out of the gensim wheel, through pip and its settings."""
    way_out = (
        "check the network and pip's settings (index, proxy: `pip config list`), or use text files "
        "of your own: corpus: {kind: local, train: ..., validation: ..., test: ...}"
    )
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--only-binary=:all:", *WHEEL]
        done = subprocess.run(
            [*command, "--dest", temporary, GENSIM], capture_output=True, text=True, check=False
        )
        wheels = list(Path(temporary).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            said = [line for line in done.stderr.splitlines() if line.strip()]
            raise BlindspotError(
                f"corpus.kind enwiki-sample: pip could not download {GENSIM} "
                f"({said[-1].strip() if said else f'exit code {done.returncode}'}); {way_out}"
            )
        try:
            with zipfile.ZipFile(wheels[0]) as wheel:
                data = wheel.read(EXCERPT)
        except (zipfile.BadZipFile, KeyError) as error:
            raise BlindspotError(
                f"corpus.kind enwiki-sample: {wheels[0].name} does not hold the excerpt ({error}); "
                f"{way_out}"
            ) from None
    found = hashlib.sha256(data).hexdigest()
    if found != EXCERPT_SHA256:
        raise BlindspotError(
            f"corpus.kind enwiki-sample: the excerpt in {GENSIM} has SHA-256 {found}, expected "
            f"{EXCERPT_SHA256}: this is another file than the one results rest on; {way_out}"
        )
    return data


def _enwiki_documents(excerpt: bytes) -> Iterator[tuple[str, str]]:
    """(split, article) of every article in a bzip2 MediaWiki export that is prose."""
    with bz2.open(io.BytesIO(excerpt)) as dump:
        for title, markup in wiki.articles(dump):
            text = wiki.prose(title, markup)
            if text:
                yield split_of(title), text


def split_of(title: str) -> str:
    """The split an article belongs to, a function of its title alone."""
    share = int(hashlib.sha256(f"wiki{title}".encode()).hexdigest()[:8], 16) / 2**32
    return "validation" if share < VALIDATION_SHARE else "test" if share < TEST_SHARE else "train"
