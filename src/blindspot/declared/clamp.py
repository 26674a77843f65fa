"""Does the scale matter to what is predicted? Interventions on the norm while the loops run."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blindspot.declared.columns import Context, File, real, unequal, word
from blindspot.declared.common import EXIT, TOKENS, VALIDATION
from blindspot.declared.measurement import Measurement, Sample

if TYPE_CHECKING:
    import pandas as pd


def _clamp(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    yield from unequal(frame, {"change_mean": frame["ce_edited"] - frame["ce"]})
    if (frame.loc[frame["k"] == 1, "change_mean"].abs() > 1e-6).any():
        yield "has a change at depth 1, which no intervention touches"


MEASUREMENT = Measurement(
    "clamp",
    "Clamping the scale",
    (
        File(
            "clamp",
            "an intervention x depth",
            (
                VALIDATION,
                word(
                    "intervention",
                    "`norm`: after each loop k > 1 a token's state is scaled to the norm it had "
                    "after loop 1; `radial`: of each update of loops k > 1, the part along the "
                    "state before it is removed",
                    *("norm", "radial"),
                ),
                EXIT,
                TOKENS,
                real("ce", "cross-entropy without the intervention", "nats/token", low=0),
                real("ce_edited", "with it", "nats/token", low=0),
                real("change_mean", "mean over tokens of (edited - unedited)", "nats/token"),
                real(
                    "change_se",
                    "its standard error over tokens, as if they were independent: the spread "
                    "within one run, not over seeds",
                    "nats/token",
                ),
                real("norm", "mean |H_k| without the intervention", low=0),
                real("norm_edited", "with it", low=0),
            ),
            ("split", "intervention", "k"),
            depths=1,
            check=_clamp,
        ),
    ),
    revision=4,
    settings=("intervention_tokens",),
    sample=Sample("Interventions", "intervention_tokens"),
)
