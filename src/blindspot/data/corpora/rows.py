"""What is done to a text that comes as a row of a table, and nothing else is."""

import re
from typing import Any

from blindspot.errors import BlindspotError


def lf(text: str) -> str:
    """Text with its line ends, CRLF and lone CR, as LF; other line marks (U+2028) are no ends."""
    return re.sub(r"\r\n?", "\n", text) if "\r" in text else text


def text_of(value: Any, where: str) -> str:
    """A row's text; a missing value is blank. `where` is for errors."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BlindspotError(f"{where} holds {type(value).__name__}, not text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BlindspotError(
            f"{where} holds half of a surrogate pair (at character {error.start}), which is no "
            f"text; repair or drop that row"
        ) from None
    return value
