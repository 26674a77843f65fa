"""The text that a model is audited on, and its ids by a tokenizer file."""

import os
from pathlib import Path

import numpy as np

from blindspot.errors import BlindspotError


def read_text(path: Path | None) -> tuple[str, str]:
    """Name and content of the user's file, or of the embedded excerpt (fetched once by pip)."""
    if path is not None:
        try:
            return str(path), path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BlindspotError(f"--text {path}: not readable as UTF-8 text ({error})") from None
    from blindspot.data.corpora import enwiki
    from blindspot.files import write_text

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = cache / "blindspot" / "enwiki-validation.txt"
    if not kept.exists():
        try:
            found = [article for split, article in enwiki.tagged() if split == "validation"]
        except BlindspotError as error:
            raise BlindspotError(f"--text: give a file of your own; {error}") from None
        write_text(kept, "\n\n".join(found))
    return "enwiki-sample, validation", kept.read_text(encoding="utf-8")


def encode_file(tokenizer: Path, text: str, name: str) -> np.ndarray:
    """Ids of a text by a tokenizer.json."""
    from blindspot.data.tokenizer import load as load_tokenizer

    ids = np.array(load_tokenizer(tokenizer).encode(text, add_special_tokens=False).ids)
    if not ids.size:
        raise BlindspotError(f"{name}: the text is empty")
    return ids
