"""A stream of token ids as a row of files, so that a kill loses one of them at most.

    {split}-00000.bin         ids, little-endian uint16 or uint32, no header
    {split}-00000.documents   where documents begin: positions in this shard, uint32
    {split}-00000.spans       (n, 2) uint32: bytes and words of the text by token (see `Encoded`);
                              of validation and test alone, since only they are scored
    {split}-00000.json        a finished shard's counts and digests, until index.json has them all

Shards end where a batch of documents does, so they are a function of the text alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindspot.errors import BlindspotError
from blindspot.files import atomic_path, read_json, sha256_file, write_json

Ids = NDArray[np.unsignedinteger]

#: Ids that a shard holds at least, but for the last one.
SHARD = 1 << 24
#: Ids that are checked at a time.
CHUNK = 1 << 22
#: What a shard's parts hold.
DTYPES = {"documents": np.dtype("<u4"), "spans": np.dtype("<u4")}


def dtype_of(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """The smaller of little-endian uint16 and uint32 that holds ids 0 .. vocab_size - 1."""
    if not 1 <= vocab_size <= 2**32:
        raise BlindspotError(f"tokenizer.vocab_size: {vocab_size} is outside 1 to 2**32")
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def shard_path(folder: Path, split: str, number: int, part: str = "bin") -> Path:
    return folder / f"{split}-{number:05d}.{part}"


def write_ids(path: Path, ids: Ids, vocab_size: int) -> str:
    """Write ids atomically; return the file's SHA-256.

    Raises `BlindspotError` on an id outside the vocabulary: it would wrap around unseen.
    """
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
        raise BlindspotError(
            f"{path}: id {int(ids.max())} is outside the vocabulary of {vocab_size} "
            f"(ids 0 to {vocab_size - 1}); set tokenizer.vocab_size to the tokenizer's own"
        )
    return _write(path, ids.astype(dtype_of(vocab_size)))


def write_shard(
    folder: Path,
    split: str,
    number: int,
    vocab_size: int,
    arrays: dict[str, NDArray[Any]],
    counts: dict[str, Any],
) -> dict[str, Any]:
    """Write a shard's parts (`bin`, `documents`, perhaps `spans`), then its record; return that."""
    digests = {
        part: write_ids(shard_path(folder, split, number), array, vocab_size)
        if part == "bin"
        else _write(shard_path(folder, split, number, part), array.astype(DTYPES[part]))
        for part, array in arrays.items()
    }
    record = {"length": len(arrays["bin"]), "documents": len(arrays["documents"])}
    record |= {"sha256": digests} | counts
    write_json(shard_path(folder, split, number, "json"), record)
    return record


def finished(folder: Path, split: str, number: int) -> dict[str, Any] | None:
    """The record of a shard that an earlier, interrupted run finished; None if it is not whole."""
    path = shard_path(folder, split, number, "json")
    if not path.is_file():
        return None
    record: dict[str, Any] = read_json(path)
    for part, digest in record["sha256"].items():
        part_path = shard_path(folder, split, number, part)
        if not part_path.is_file() or sha256_file(part_path) != digest:
            return None
    return record


def check(
    folder: Path, split: str, index: Sequence[dict[str, Any]], vocab: int, deep: bool
) -> None:
    """Raise `BlindspotError` naming the first shard that is missing, cut, altered or out of range.

    `deep` reads everything; else only sizes are compared.
    """
    again = f"delete {folder} and build the tokens again"
    dtype = dtype_of(vocab)
    for number, shard in enumerate(index):
        sizes = {"bin": shard["length"] * dtype.itemsize}
        sizes |= {"documents": shard["documents"] * 4, "spans": shard["length"] * 8}
        for part, digest in shard["sha256"].items():
            path = shard_path(folder, split, number, part)
            if not path.is_file():
                raise BlindspotError(f"{path}: no such file; {again}")
            size = path.stat().st_size
            if size != sizes[part]:
                raise BlindspotError(
                    f"{path}: {size} bytes long, {sizes[part]} expected ({shard['length']} ids of "
                    f"{dtype.name}): cut, or of another type; {again}"
                )
            if deep and part == "bin":
                ids = _mapped(path, dtype, shard["length"])
                for at in range(0, len(ids), CHUNK):
                    highest = int(ids[at : at + CHUNK].max())
                    if highest >= vocab:
                        raise BlindspotError(
                            f"{path}: id {highest} is outside the vocabulary of {vocab}; {again}"
                        )
            if deep and sha256_file(path) != digest:
                raise BlindspotError(f"{path}: its content was altered (SHA-256 differs); {again}")


def open_ids(folder: Path, split: str, index: Sequence[dict[str, Any]], vocab_size: int) -> Ids:
    """The ids of a split, memory-mapped and read-only: an array, or `Shards` that read like one."""
    dtype = dtype_of(vocab_size)
    parts = [
        _mapped(shard_path(folder, split, number), dtype, shard["length"])
        for number, shard in enumerate(index)
    ]
    return parts[0] if len(parts) == 1 else Shards(parts)  # type: ignore[return-value]


def open_spans(folder: Path, split: str, index: Sequence[dict[str, Any]]) -> NDArray[np.uint32]:
    """(bytes, words) by position of a split: shape (length, 2)."""
    return np.concatenate(
        [
            np.fromfile(shard_path(folder, split, number, "spans"), "<u4").reshape(-1, 2)
            for number in range(len(index))
        ]
    )


def open_documents(folder: Path, split: str, index: Sequence[dict[str, Any]]) -> NDArray[np.int64]:
    """Positions in the stream of the token that holds each document's first byte, in order."""
    before, found = 0, []
    for number, shard in enumerate(index):
        inside = np.fromfile(shard_path(folder, split, number, "documents"), "<u4")
        found.append(inside.astype(np.int64) + before)
        before += shard["length"]
    return np.concatenate(found)


class Shards:
    """Memory-mapped arrays laid end to end, read like one array of shape (n,).

    Knows what a reader of tokens needs: length, and an integer, a slice or an array of positions
    as index. What comes back is a new array that holds those ids and no more.
    """

    def __init__(self, parts: Sequence[Ids]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])
        self.dtype = parts[0].dtype
        self.size = int(self._ends[-1])
        self.shape, self.ndim = (self.size,), 1

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(self.size)
            if step != 1:
                return self[np.arange(start, stop, step)]
            return self._run(start, max(start, stop))
        at = np.asarray(index)
        if at.dtype == bool:
            at = np.flatnonzero(at)
        if at.size and not (-self.size <= at.min() and at.max() < self.size):
            raise IndexError(f"index {index} is out of bounds for {self.size} ids")
        at = np.where(at < 0, at + self.size, at).astype(np.int64)
        owner = np.searchsorted(self._ends, at, side="right")
        found = np.empty(at.shape, dtype=self.dtype)
        for number in np.unique(owner):
            here = owner == number
            begin = self._ends[number] - len(self._parts[number])
            found[here] = self._parts[number][at[here] - begin]
        return found[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self._run(0, self.size), dtype=dtype)

    def _run(self, start: int, stop: int) -> Ids:
        """Ids start .. stop - 1."""
        first = int(np.searchsorted(self._ends, start, side="right"))
        pieces = []
        for part, end in zip(self._parts[first:], self._ends[first:], strict=True):
            begin = int(end) - len(part)
            if begin >= stop:
                break
            pieces.append(part[max(0, start - begin) : stop - begin])
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=self.dtype)


def _mapped(path: Path, dtype: np.dtype[np.unsignedinteger], length: int) -> Ids:
    if not length:  # an empty file cannot be mapped
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r", shape=(length,))


def _write(path: Path, array: NDArray[Any]) -> str:
    with atomic_path(path) as temporary:
        array.tofile(temporary)
        return sha256_file(temporary)
