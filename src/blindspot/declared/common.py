"""Columns that many files have."""

from blindspot.declared.columns import integer, word

#: All but halting and exits read the validation split alone.
VALIDATION = word("split", "part of the corpus", "validation")
SPLITS = word("split", "part of the corpus", "validation", "test")
K = integer("k", "the loop; 0 is H_0, the state before the first")
#: Of files without H_0.
EXIT = integer("k", "the loop after which the state is read")
TOKENS = integer("tokens", "tokens that were read", "tokens")
TRAINED_K = integer("trained_k", "the K of training; greater k are extrapolation")
DEVICE = (
    word("device", "what it was timed on"),
    integer("threads", "threads of the CPU"),
)
