"""Integers that stand for behaviour in the hash of a result.

Raise one only when results really change: everything it covers is then made anew. A comment or a
refactoring leaves it alone and costs nothing. Golden tests fail when behaviour moves without it.
Each measurement has a revision of its own, in its declaration (declared/).
"""

#: How a corpus becomes token files (cleaning, splitting, tokenizing).
DATA_REVISION = 1
#: How token files lie on disk: another format is built anew, and no run with it, since ids stay.
TOKENS_FORMAT = 2
#: How a run specification and tokens become weights and a trajectory.
TRAINING_REVISION = 3
#: How an architecture becomes a throughput table.
THROUGHPUT_REVISION = 1
