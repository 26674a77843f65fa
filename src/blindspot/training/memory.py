"""Memory from one step to the next, on the CPU."""

import ctypes
from contextlib import suppress

#: Of malloc.h; and the largest threshold that every version of glibc takes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _LARGEST = -1, -3, 2**25


def keep() -> None:
    """Have this process keep what it frees, for its next step.

    glibc gives large blocks, and the top of its heap, back to the system; the next step takes them
    again, page by page, each set to zero. Here blocks of up to 32 MiB come from the heap, which is
    never trimmed, so the process holds its peak until it ends. Elsewhere than with glibc: nothing.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        # In this order: the second call alone would fix the first's value where it stands, low.
        if mallopt(_MMAP_THRESHOLD, _LARGEST):
            mallopt(_TRIM_THRESHOLD, -1)
