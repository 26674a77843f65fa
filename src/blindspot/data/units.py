"""Units: a text cut before white space, its distinct parts numbered.

Natural text repeats itself: ten million characters are two million units, of which some thirty
thousand are distinct. Whoever may look at units one by one looks at the distinct ones alone.
"""

import numpy as np
from numpy.typing import NDArray

# Classes of UTF-8 bytes. A cut has, on its right, white space that every engine calls so, and on
# its left a character that none does: not \x1c-\x1f (white space to Python alone), and no byte that
# ends U+0085, U+00A0, U+1680, U+180E, U+2000-U+200A, U+2028, U+2029, U+202F, U+205F or U+3000.
# Other characters end in those bytes too: then there is a cut less, and the ids are the same.
_SPACE, _MAYBE, _OTHER = 0, 1, 2
_CLASS = bytearray([_OTHER] * 256)
for _byte in b"\x1c\x1d\x1e\x1f\x85\x8e\x9f\xa0\xa8\xa9\xaf" + bytes(range(0x80, 0x8B)):
    _CLASS[_byte] = _MAYBE
for _byte in b" \t\n\r\x0b\x0c":
    _CLASS[_byte] = _SPACE


def cut(text: bytes) -> NDArray[np.int64]:
    """Where the units of a UTF-8 text begin: 0, and before white space where all engines agree."""
    kind = np.frombuffer(text.translate(_CLASS), dtype=np.uint8)
    return np.append(0, np.flatnonzero((kind[1:] == _SPACE) & (kind[:-1] == _OTHER)) + 1)


def units(text: bytes) -> tuple[NDArray[np.int32], list[bytes]]:
    """The units of a text: numbers of the distinct ones, in order; the distinct, as they appear."""
    import pyarrow as pa

    if not text:
        return np.empty(0, dtype=np.int32), []
    offsets = np.append(cut(text), len(text)).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    coded = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers).dictionary_encode()
    return coded.indices.to_numpy(), coded.dictionary.to_pylist()
