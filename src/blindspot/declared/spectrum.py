"""Directions of a state: how much the readout sees of each, and how much a loop makes of it. The
radial direction is one that a normalized readout hides; are there others, and are they active?"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blindspot.declared.columns import FINITE, Context, File, integer, real, word
from blindspot.declared.common import EXIT, VALIDATION
from blindspot.declared.measurement import Measurement, Sample

if TYPE_CHECKING:
    import pandas as pd

#: States that are looked at, at most.
STATES = 128
#: Dimension of the least visible and of the most active subspace, at most d.
RANK = 8
#: A direction is hidden where its eigenvalue is at most so much of the largest.
HIDDEN = 1e-10
#: In the order of the rows.
DIRECTIONS = ("radial", "random", "ones", "mean-state", "least-visible", "most-active")

PLACES = integer("tokens", "states that were looked at", "tokens")


def _depths(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    found, expected = sorted(set(frame["k"])), sorted({1, at.loops})
    if found != expected:
        yield f"has k = {found}, expected {expected}"


def _directions(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    yield from _depths(frame, at)
    if len(frame) != len(DIRECTIONS) * frame["k"].nunique():
        yield f"has {len(frame)} rows, expected each of {list(DIRECTIONS)} at each k"
    for column in ("in_least_visible", "in_most_active"):
        if (frame[column] > 1 + 1e-6).any():
            yield f"has {column} {frame[column].max()}, which cannot be above 1"


def _hidden(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    yield from _depths(frame, at)
    if (frame["width"] != at.spec.model.d_model).any():
        yield f"is of another width than {at.spec.model.d_model}"
    for low, high in (
        ("hidden_min", "hidden_mean"), ("hidden_mean", "hidden_max"), ("hidden_max", "width")
    ):  # fmt: skip
        if (frame[low] > frame[high]).any():
            yield f"has a {low} above its {high}"


MEASUREMENT = Measurement(
    "spectrum",
    "Spectrum of blind directions",
    (
        File(
            "spectrum",
            "an exit x direction",
            (
                VALIDATION,
                EXIT,
                word(
                    "direction",
                    "`radial`: of each state's own u = H / |H|; `random`: all directions alike; "
                    "`ones`: all entries alike, which LayerNorm hides; `mean-state`: of the mean "
                    "of the states; `least-visible`, `most-active`: all directions of a subspace "
                    "alike, of the eigenvectors of the mean operators",
                    *DIRECTIONS,
                ),
                PLACES,
                real(
                    "visibility",
                    "Fisher norm of the change of the predictions for a change of the state by its "
                    "own norm along the direction, to first order: the standard deviation of the "
                    "change of the logits under the model's predictions. A change by e |H_k| has "
                    "KL = (e visibility)^2 / 2. Root of the mean square over states, and over "
                    "directions where there are several",
                    "nats",
                    low=0,
                ),
                real(
                    "activity",
                    "|D v| / |v|, D the derivative of H_{k+1} by H_k of the same token, what other "
                    "tokens give held: by which factor loop k + 1 stretches a small change. At "
                    "k = K the loop after the last trained one. Root of the mean square, too",
                    low=0,
                ),
                real(
                    "in_least_visible",
                    "share of the direction (its squared projection) in the subspace "
                    "`least-visible`, mean over states: chance is that of `random`",
                    low=0,
                ),
                real(
                    "in_most_active",
                    "the same in the subspace `most-active`; of `least-visible` it is the overlap "
                    "of the two",
                    low=0,
                ),
            ),
            ("split", "k", "direction"),
            check=_directions,
            note="In float64 at the model's own eps, at k = 1 and k = K. A spread of directions is "
            "exact, by traces, without drawing any. The subspaces are one for all states: what is "
            "hidden in each state is in spectrum_hidden.csv.",
        ),
        File(
            "spectrum_hidden",
            "an exit",
            (
                VALIDATION,
                EXIT,
                PLACES,
                integer("width", "d"),
                integer("rank", "dimension of `least-visible` and of `most-active`"),
                real(
                    "hidden_mean",
                    "dimensions of a single state that change no prediction to first order, mean "
                    f"over states: eigenvalues at most {HIDDEN:g} of the largest, of the squared "
                    "change of the logits without what all of them share",
                    low=0,
                ),
                integer("hidden_min", "least over states", low=0),
                integer("hidden_max", "greatest", low=0),
                real(
                    "hidden_radial",
                    "share of the radial direction in a state's hidden dimensions: mean over "
                    "states",
                    low=0,
                ),
                real(
                    "overlap",
                    "of the least visible and the most active subspace, U and V: |U^T V|^2 / rank, "
                    "1 where they are the same",
                    low=FINITE,
                ),
                real("overlap_chance", "the same of random subspaces: rank / d", low=0),
            ),
            ("split", "k"),
            check=_hidden,
        ),
    ),
    revision=1,
    settings=("probe_tokens",),
    sample=Sample(f"Directions (float64) at up to {STATES} places", "probe_tokens"),
)
