"""Texts of hub data sets whose content is known, so that a folder given by `path` can be told from
another of the same name and layout."""

from collections.abc import Mapping
from typing import Any

from blindspot.config.dataspec import HubCorpus
from blindspot.errors import BlindspotError

#: Commit of Salesforce/wikitext that is known here. Of train, neither variant's text was at hand.
WIKITEXT = "b08601e04326c79dfdd32d625aee71d232d685c3"
#: SHA-256 of a split's text as corpus.json has it, by name, config and split. Their rows are those
#: of the published raw files (tests/test_corpus.py has the digests of these).
SHA256 = {
    ("Salesforce/wikitext", "wikitext-103-raw-v1"): {
        "validation": "f3714de012180492efbcf4f0380322389a27f735ddb63e8c016a6a6285f50408",
        "test": "c5b5caea5bd655cb221545a484f2f0f59d35092a17a66840d7b9513d0b99687d",
    },
    ("Salesforce/wikitext", "wikitext-2-v1"): {
        "validation": "85d100d492c5134d57ff1c9e617a08ebaac01c89165cb34ec13c89354f1cb179",
        "test": "876a99963cb1d9dadfed4a18a7ee0d59849838e2a1f14b9fce7bf1d53d56eb0d",
    },
}
#: Rows of a split, blank ones included.
ROWS = {
    ("Salesforce/wikitext", "wikitext-103-raw-v1"): {"train": 1_801_350},
    ("Salesforce/wikitext", "wikitext-2-v1"): {"train": 36_718},
}


def check(corpus: HubCorpus, splits: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse splits that are not those of the revision that the config names, where it is known.
    A limit or shares make other texts of train."""
    key = (corpus.name, corpus.config or "")
    if not WIKITEXT.startswith(corpus.revision) or corpus.column != "text":
        return
    whole = corpus.limit is None and not corpus.shares
    for split, found in splits.items():
        if getattr(corpus, split) != split:
            continue
        expected = SHA256.get(key, {}).get(split)
        rows = ROWS.get(key, {}).get(split) if whole else None
        if expected not in (None, found["sha256"]) or rows not in (None, found.get("rows")):
            raise BlindspotError(
                f"{corpus.path or corpus.name}: split {split!r} of config {corpus.config} is not "
                f"that of revision {corpus.revision}: "
                + (
                    f"the SHA-256 of its text is {found['sha256']}, not {expected}"
                    if expected
                    else f"it has {found.get('rows')} rows, not {rows}"
                )
                + ". Runs are named by the revision, so they would pass for runs of that text. "
                "Point corpus.path to that revision, or use `kind: local`, which names runs by "
                "the files' content"
            )
