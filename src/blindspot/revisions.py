"""Integers that stand for behaviour in the hash of a result.

Raise one only when results really change: everything it covers is then made anew. A comment or a
refactoring leaves it alone and costs nothing. Golden tests fail when behaviour moves without it.
"""

#: How a corpus becomes token files (cleaning, splitting, tokenizing).
DATA_REVISION = 1
#: How a run specification and tokens become weights and a trajectory.
TRAINING_REVISION = 2
#: How weights become measurements.
MEASUREMENT_REVISION = 1
#: How an architecture becomes a throughput table.
THROUGHPUT_REVISION = 1
