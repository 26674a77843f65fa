"""How fast text becomes tokens, and in how much memory: `python benchmarks/tokens.py`.

Reads WikiText-2 from BLINDSPOT_TEST_DATA (a folder in the hub's layout; by default the one that the
tests read) and writes `benchmarks/tokens.csv` and `tokens.md`:

- encoding WikiText-2's train split, text in memory: the paper's words by a plain loop over a regex,
  by this package on one thread and on all CPUs; byte-level BPE by the `tokenizers` library as it is
  and by this package. All five alternate; the limit is twice the loop, and 5 MB/s for BPE;
- `blindspot tokens` on the whole of WikiText-2, start to end: at most 15 s;
- with `--gigabyte`, a synthetic text of 1 GB, fetched and tokenized: at most 1.5 GB of memory.
"""

from __future__ import annotations

import csv
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from blindspot import provenance
from blindspot.config.dataspec import (
    DEFAULT_PATTERN,
    BpeTokenizer,
    DataSpec,
    HubCorpus,
    LocalCorpus,
    WordsTokenizer,
)
from blindspot.data import corpus, stream, tokenizer
from blindspot.data.encode import Encoder

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(
    os.environ.get("BLINDSPOT_TEST_DATA", ROOT.parent / "shared/data/hf/Salesforce/wikitext")
)
COLUMNS = ("what", "mb", "seconds", "mb_per_s", "spread", "peak_mb", "limit")
REPEATS = 5
WORDS = WordsTokenizer(kind="words", vocab_size=20_000)
BPE = BpeTokenizer(kind="bpe", vocab_size=8192)
WIKITEXT = HubCorpus(
    kind="hub",
    name="Salesforce/wikitext",
    config="wikitext-2-v1",
    revision="b08601e04326c79dfdd32d625aee71d232d685c3",
    path=str(DATA),
)


def encoding(texts: list[str]) -> list[dict[str, object]]:
    """Ways of encoding in turn, so that a busy neighbour slows all of them."""
    pieces = list(stream.pieces(texts))
    size = sum(len(piece.encode()) for piece in pieces) / 1e6
    words, bpe = tokenizer.train(WORDS, pieces), tokenizer.train(BPE, pieces)
    vocabulary, find = words.get_vocab(), re.compile(DEFAULT_PATTERN).findall
    text = "".join(pieces)
    batches = [batch.pieces for batch in stream._batches(iter(pieces))]
    cpus = provenance.cores()

    def ours(encoder: Encoder, threads: int) -> np.ndarray:
        with ThreadPoolExecutor(threads) as pool:
            return np.concatenate([encoded.ids for encoded in pool.map(encoder, batches)])

    def library() -> list[int]:
        encoded = (bpe.encode_batch_fast(batch, add_special_tokens=False) for batch in batches)
        return [i for batch in encoded for one in batch for i in one.ids]

    # A new encoder each time: it has met no unit yet.
    ways: dict[str, tuple[Callable[[], object], str]] = {
        "words, plain loop": (lambda: [vocabulary.get(word, 0) for word in find(text)], ""),
        "words, 1 thread": (lambda: ours(Encoder(words, WORDS), 1), "2 x the loop"),
        f"words, {cpus} threads": (lambda: ours(Encoder(words, WORDS), cpus), "2 x the loop"),
        "bpe, tokenizers as it is": (library, ""),
        f"bpe, {cpus} threads": (lambda: ours(Encoder(bpe, BPE), cpus), "5 MB/s"),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPEATS):
        results = []
        for name, (way, _) in ways.items():
            start = time.perf_counter()
            results.append(way())
            found[name].append(time.perf_counter() - start)
        same = [list(map(int, result)) for result in results]  # type: ignore[call-overload]
        if not (same[0] == same[1] == same[2] and same[3] == same[4]):
            raise SystemExit("the ways of encoding do not agree")
    return [
        {
            "what": name,
            "mb": round(size, 1),
            "seconds": round(statistics.median(times), 2),
            "mb_per_s": round(size / statistics.median(times), 1),
            "spread": f"{size / max(times):.1f} to {size / min(times):.1f}",
            "limit": ways[name][1],
        }
        for name, times in found.items()
    ]


def command(arguments: list[str]) -> tuple[float, float]:
    """Wall seconds and peak resident MB of a `blindspot` verb."""
    program = [sys.executable, "-c", "from blindspot.cli import main; main()", *arguments]
    start = time.perf_counter()
    process = subprocess.Popen(program)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"blindspot {arguments[0]} ended with {process.returncode}")
    return seconds, usage.ru_maxrss / 1024  # Linux counts in KiB


def whole(data: DataSpec, folder: Path, size: float, name: str, limits: str) -> list[dict]:
    """`blindspot corpus` and `blindspot tokens`, start to end."""
    rows = []
    corpus_spec, out = data.corpus.model_dump_json(), str(folder / "corpus")
    steps = [["corpus", "--spec", corpus_spec, "--out", out]] if not Path(out).exists() else []
    tokens = str(folder / f"tokens-{data.tokenizer.kind}")
    steps += [["tokens", "--spec", data.model_dump_json(), "--corpus", out, "--out", tokens]]
    for arguments in steps:
        seconds, peak = command(arguments)
        what = f"blindspot {arguments[0]}, {name}"
        what += f", {data.tokenizer.kind}" if arguments[0] == "tokens" else ""
        rows.append(
            {
                "what": what,
                "mb": round(size, 1),
                "seconds": round(seconds, 1),
                "mb_per_s": round(size / seconds, 1),
                "peak_mb": round(peak),
                "limit": limits if arguments[0] == "tokens" or "GB" in limits else "",
            }
        )
    return rows


def synthetic(path: Path, size: int) -> None:
    """A text of `size` bytes: words of a Zipf law over 300,000, sentences, paragraphs."""
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    lengths = rng.integers(2, 12, size=300_000)
    words = np.array(["".join(rng.choice(letters, n)) for n in lengths])
    law = 1 / np.arange(1, len(words) + 1)
    places = np.cumsum(law / law.sum())
    with open(path, "w", encoding="utf-8") as handle:
        while handle.tell() < size:
            chosen = words[np.searchsorted(places, rng.random(100_000)).clip(max=len(words) - 1)]
            ends = np.where(rng.random(len(chosen)) < 0.05, " .\n\n", " ")
            handle.write("".join(np.char.add(chosen, ends)))


def main() -> None:
    """Measure, and write the table."""
    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = DataSpec(corpus=WIKITEXT, tokenizer=WORDS)
        rows += whole(data, folder, 13.2, "WikiText-2", "15 s")
        data = DataSpec(corpus=WIKITEXT, tokenizer=BPE)
        rows += whole(data, folder, 13.2, "WikiText-2", "15 s")
        rows += encoding(list(corpus.documents(folder / "corpus", "train")))
    if "--gigabyte" in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            synthetic(folder / "text.txt", 10**9)
            local = LocalCorpus(
                kind="local", train=str(folder / "text.txt"), validation=0.001, test=0.001
            )
            for settings in (WORDS, BPE):
                data = DataSpec(corpus=local, tokenizer=settings)
                rows += whole(data, folder, 1000.0, "1 GB", "1.5 GB")
    with open(ROOT / "benchmarks" / "tokens.csv", "w", newline="") as handle:
        writer = csv.DictWriter(handle, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    lines = ["| what | MB | s | MB/s | spread | peak MB | limit |", "|---|" + "---:|" * 6]
    for row in rows:
        lines.append("| " + " | ".join(str(row.get(column, "")) for column in COLUMNS) + " |")
    text = "\n".join(lines) + "\n"
    (ROOT / "benchmarks" / "tokens.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
