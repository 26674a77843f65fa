"""Does a readout see the norm of a state, and does the loss hold it? Cross-entropy along the
radial direction."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blindspot.declared.columns import FINITE, Context, File, real, unequal, word
from blindspot.declared.common import EXIT, TOKENS
from blindspot.declared.measurement import Measurement, Sample

if TYPE_CHECKING:
    import pandas as pd

#: Factors on H_k.
SCALES = tuple(2.0**i for i in range(-4, 5))


def _response(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    found = sorted(set(frame["scale"]))
    if found != list(SCALES):
        yield f"has scales {found}, expected {list(SCALES)}"
        return
    plain = frame[frame["scale"] == 1].set_index("k")["ce"]
    yield from unequal(frame, {"change_mean": frame["ce"] - frame["k"].map(plain)}, absolute=1e-5)


MEASUREMENT = Measurement(
    "scale_response",
    "Response to the scale",
    (
        File(
            "scale_response",
            "an exit x scale",
            (
                word("split", "part of the corpus", "test"),
                EXIT,
                real("scale", "the factor a on every token's H_k, 2^-4 to 2^4", low=0),
                TOKENS,
                real("ce", "cross-entropy of r(a H_k)", "nats/token", low=0),
                real(
                    "change_mean",
                    "mean over tokens of (CE of r(a H_k) - CE of r(H_k)); at a = 1/2 and 2 it says "
                    "whether the readout sees the norm",
                    "nats/token",
                    low=FINITE,
                ),
                real(
                    "change_se",
                    "its standard error over tokens, as if they were independent",
                    "nats/token",
                ),
                real(
                    "slope",
                    "d CE / d log a at a, exact: negative where the loss falls when the state "
                    "grows. A restoring force has a negative slope at small a and a positive one "
                    "at large a",
                    "nats/token",
                    low=FINITE,
                ),
            ),
            ("split", "k", "scale"),
            depths=1,
            check=_response,
            note="The readout alone: the loops are not run on the scaled state. "
            "Under a scale-invariant readout it is flat but for eps and rounding (float32).",
        ),
    ),
    revision=1,
    settings=("intervention_tokens",),
    sample=Sample("Response to the scale", "intervention_tokens", "test"),
)
