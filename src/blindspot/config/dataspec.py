"""Settings of a study's text: corpora, tokenizers, and `DataSpec`, what decides the token files.

Identities hold what decides the content and never where it lies.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from blindspot.config.localfiles import ENDINGS, TABLES, PathText, listing
from blindspot.config.revisions import DATA_REVISION, TOKENS_FORMAT
from blindspot.errors import BlindspotError
from blindspot.settings import Count, Name, Neutral, Settings, digest


class EnwikiSample(Settings):
    """The Wikipedia excerpt that the gensim wheel carries: real English without a data hub."""

    kind: Literal["enwiki-sample"]

    @property
    def label(self) -> str:
        return "enwiki-sample"


def _source(value: str | list[str] | float) -> str | list[str] | float:
    if isinstance(value, float) and not 0 < value < 1:
        raise ValueError("a share is between 0 and 1 (0.01 is every hundredth document)")
    return value


#: A split of a hub data set by its name there, or a share of the train documents.
HubSplit = Annotated[str | float, AfterValidator(_source)]
#: Files or folders of a split, or a share of the train documents.
LocalSplit = Annotated[PathText | list[PathText] | float, AfterValidator(_source)]


class Limit(Settings):
    """Where to stop reading a data set that is larger than wanted; exactly one of them.

    The corpus is fetched before there is a tokenizer, so `tokens` is a budget: four bytes of UTF-8
    a token, as English has with 50,000 entries, within a fifth. tokens.json has the true count.
    """

    documents: Count | None = None
    words: Count | None = None
    tokens: Count | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(value is not None for value in (self.documents, self.words, self.tokens)) != 1:
            raise ValueError("give exactly one of documents, words and tokens")
        return self


def _commit(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{7,40}", value):
        raise ValueError(
            "give a commit, 7 to 40 of its hexadecimal digits: a branch or a tag may move, and "
            "runs are named by it"
        )
    return value


def _full_name(value: str) -> str:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", value):
        raise ValueError(
            "give the full name, owner/name, such as Salesforce/wikitext: a bare one no longer "
            "resolves"
        )
    return value


#: A data set or a model on the hub.
HubName = Annotated[str, AfterValidator(_full_name)]
#: A commit on the hub.
Commit = Annotated[str, AfterValidator(_commit)]


class HubCorpus(Settings):
    """A data set of the Hugging Face hub, or a local folder of the same layout (`path`)."""

    #: The revision names the content, wherever the rows lie.
    NO_IDENTITY = frozenset({"path"})

    kind: Literal["hub"]
    name: HubName
    config: str | None = None
    revision: Commit
    column: str = "text"
    path: PathText | None = None
    train: Annotated[str, Neutral("train")] = "train"
    validation: Annotated[HubSplit, Neutral("validation")] = "validation"
    test: Annotated[HubSplit, Neutral("test")] = "test"
    #: Of the train split before shares are taken out; with a limit, rows are streamed.
    limit: Annotated[Limit | None, Neutral(None)] = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _leave_some(self.shares)
        return self

    @property
    def label(self) -> str:
        return re.sub(r"[^\w.-]+", "-", self.config or self.name.rpartition("/")[2])

    @property
    def shares(self) -> dict[str, float]:
        return _shares(self)


#: Files that are neither text nor such a table, but would pass for text or fail strangely.
REFUSED = {
    **dict.fromkeys((".csv", ".tsv", ".arrow"), "convert it to JSON lines or parquet"),
    **dict.fromkeys((".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".tgz"), "unpack it first"),
}


class LocalCorpus(Settings):
    """Files of your own: text, JSON lines or parquet, or folders of them; UTF-8."""

    kind: Literal["local"]
    name: Name = "local"
    train: PathText | list[PathText]
    validation: LocalSplit
    test: LocalSplit
    #: The column with the text, of JSON lines and parquet.
    column: str = "text"
    #: SHA-256 over the files' content; the study fills it in, a config may pin it.
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    #: Files and what is hidden, by split: folders are searched once.
    _found: dict[str, tuple[list[str], list[str]]] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _leave_some(self.shares)
        return self

    @property
    def label(self) -> str:
        return self.name

    @property
    def shares(self) -> dict[str, float]:
        return _shares(self)

    def files(self, split: Literal["train", "validation", "test"]) -> list[str]:
        """The files of a split, those of a folder sorted by path; none where it is a share."""
        return list(self._listed(split)[0])

    def hidden(self, split: Literal["train", "validation", "test"]) -> list[str]:
        """What is left out of the folders of a split because its name begins with a dot."""
        return list(self._listed(split)[1])

    def _listed(self, split: Literal["train", "validation", "test"]) -> tuple[list[str], list[str]]:
        if split not in self._found:
            self._found[split] = self._search(split)
        return self._found[split]

    def _search(self, split: Literal["train", "validation", "test"]) -> tuple[list[str], list[str]]:
        value: str | list[str] | float = getattr(self, split)
        if isinstance(value, float):
            return [], []
        found: list[str] = []
        hidden: list[str] = []
        for name in [value] if isinstance(value, str) else value:
            path = Path(name)
            if not name:
                raise BlindspotError(f"corpus.{split}: an empty name; give files or folders")
            if path.suffix.lower() in REFUSED:
                raise BlindspotError(
                    f"corpus.{split}: {name}: not read; text, JSON lines and parquet are: "
                    f"{REFUSED[path.suffix.lower()]}"
                )
            if not path.is_dir():
                found.append(name)
                continue
            try:
                inside = listing(path)
            except BlindspotError as error:
                raise BlindspotError(f"corpus.{split}: {error}") from None
            if not inside.files:
                raise BlindspotError(
                    f"corpus.{split}: {name}: a folder without text; it needs files that end in "
                    f"{', '.join(sorted(ENDINGS))}"
                )
            found += map(str, inside.files)
            hidden += map(str, inside.hidden)
        return found, hidden

    def identity(self) -> dict[str, Any]:
        value: dict[str, Any] = {"kind": "local", "sha256": self.sha256}
        # The digest is of content alone, and the same bytes are other documents to another reader.
        files = {split: self.files(split) for split in ("train", "validation", "test")}
        kinds = {s: [TABLES.get(Path(f).suffix.lower(), "text") for f in files[s]] for s in files}
        if any(kind != "text" for split in kinds.values() for kind in split):
            value |= {"column": self.column, "formats": kinds}
        return value | ({"shares": self.shares} if self.shares else {})


def _shares(corpus: "HubCorpus | LocalCorpus") -> dict[str, float]:
    """Splits that are shares of the train documents."""
    values = {"validation": corpus.validation, "test": corpus.test}
    return {split: value for split, value in values.items() if isinstance(value, float)}


def _leave_some(shares: dict[str, float]) -> None:
    if sum(shares.values()) >= 1:
        raise ValueError("the shares of validation and test leave nothing to train on")


Corpus = Annotated[EnwikiSample | HubCorpus | LocalCorpus, Field(discriminator="kind")]


class BpeTokenizer(Settings):
    """Byte-level BPE, fit on the train split; loses nothing."""

    kind: Literal["bpe"]
    vocab_size: Annotated[int, Field(strict=True, ge=257, le=2**32)]


#: The paper's words.
DEFAULT_PATTERN = r"\s+|[A-Za-z0-9_]+|[^\w\s]"


class WordsTokenizer(Settings):
    """The paper's words: pattern, most frequent words, the rest UNK. Loses rare words."""

    kind: Literal["words"]
    vocab_size: Annotated[int, Field(strict=True, ge=2, le=2**32)]
    min_frequency: Count = 2
    pattern: str = DEFAULT_PATTERN
    #: The release fits on validation text too.
    fit: Literal["train", "train+validation"] = "train"
    #: `text`: words are counted in the text as it is encoded, and all entries but UNK are words.
    #: `release`: they are counted document by document, before documents are joined, so the white
    #: space that joining makes is UNK; and four entries are special tokens, one of them UNK.
    vocabulary: Annotated[Literal["text", "release"], Neutral("text")] = "text"

    @property
    def words(self) -> int:
        """How many words the vocabulary has at most."""
        return self.vocab_size - (4 if self.vocabulary == "release" else 1)

    @model_validator(mode="after")
    def _some_words(self) -> Self:
        if self.words < 1:
            raise ValueError(
                f"vocab_size {self.vocab_size} has no room for words beside the special tokens of "
                f"vocabulary {self.vocabulary}; use at least {self.vocab_size - self.words + 1}"
            )
        return self


class FileTokenizer(Settings):
    """A `tokenizer.json` of the `tokenizers` library, whoever made it."""

    NO_IDENTITY = frozenset({"path"})

    kind: Literal["file"]
    path: PathText
    vocab_size: Annotated[int, Field(strict=True, ge=2, le=2**32)]
    #: The token that starts a stream; null is its only special token.
    start: str | None = None
    #: SHA-256 of the file; the study fills it in, a config may pin it.
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")


class HubTokenizer(Settings):
    """The `tokenizer.json` of a model on the Hugging Face hub."""

    kind: Literal["hub"]
    name: HubName
    revision: Commit
    vocab_size: Annotated[int, Field(strict=True, ge=2, le=2**32)]
    start: str | None = None


class Gpt2Tokenizer(Settings):
    """GPT-2's byte-level BPE, from the hub; loses nothing."""

    kind: Literal["gpt2"]
    name: Literal["openai-community/gpt2"] = "openai-community/gpt2"
    #: What many public projects, and examples in the hub library itself, give as its `main`.
    revision: Commit = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
    vocab_size: Literal[50257] = 50257
    start: Literal["<|endoftext|>"] = "<|endoftext|>"


Tokenizer = Annotated[
    BpeTokenizer | WordsTokenizer | FileTokenizer | HubTokenizer | Gpt2Tokenizer,
    Field(discriminator="kind"),
]
#: Tokenizers that come as a file which someone else made.
GivenTokenizer = FileTokenizer | HubTokenizer | Gpt2Tokenizer


class DataSpec(Settings):
    """What decides the token files."""

    revision: int = DATA_REVISION
    corpus: Corpus
    tokenizer: Tokenizer

    def identity(self) -> dict[str, Any]:
        return {
            "revision": self.revision,
            "corpus": self.corpus.identity(),
            "tokenizer": self.tokenizer.identity(),
        }

    @property
    def fetched_tokenizer(self) -> str | None:
        """Folder of a tokenizer that comes from the hub; None where nothing is to be fetched."""
        if not isinstance(self.tokenizer, HubTokenizer | Gpt2Tokenizer):
            return None
        return f"{self.tokenizer.name.replace('/', '--')}-{digest(self.tokenizer.identity())}"

    @property
    def name(self) -> str:
        """Folder of the token files: `{corpus}-{hash8}`; another format is another folder."""
        return f"{self.corpus.label}-{digest({**self.identity(), 'format': TOKENS_FORMAT})}"
