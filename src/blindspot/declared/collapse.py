"""Do all tokens share one direction? Collapse looks like freezing, since directions that have come
together do not move apart; it says nothing of a readout that is blind to scale."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blindspot.declared.columns import Context, File, real
from blindspot.declared.common import TOKENS, VALIDATION, K
from blindspot.declared.measurement import Measurement, Sample

if TYPE_CHECKING:
    import pandas as pd


def _collapse(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    for column, most in (("shared_direction", 1), ("effective_rank", at.spec.model.d_model)):
        if (frame[column] > most * (1 + 1e-6)).any():
            yield f"has {column} {frame[column].max()}, which cannot be above {most}"


MEASUREMENT = Measurement(
    "collapse",
    "Collapse to one direction",
    (
        File(
            "collapse",
            "a loop",
            (
                VALIDATION,
                K,
                TOKENS,
                real(
                    "shared_direction",
                    "|mean over tokens of u_k|^2: 1 where all tokens have one direction, 1 / "
                    "tokens where directions are random",
                    low=0,
                ),
                real(
                    "effective_rank",
                    "exp of the entropy of the eigenvalues of the mean of u_k u_k^T: 1 where "
                    "all tokens share one direction or its opposite, at most d",
                    low=1,
                ),
            ),
            ("split", "k"),
            depths=0,
            check=_collapse,
        ),
    ),
    revision=1,
    settings=("norm_tokens",),
    sample=Sample("Directions", "norm_tokens"),
)
