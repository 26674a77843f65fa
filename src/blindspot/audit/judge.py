"""From what was observed to numbers with intervals, and to a verdict.

A boundary between loops is

    visible    if the median KL of the prediction read there, with the state at twice or half its
               size, is above 1e-3 nats and above ten times what rounding does
    carried    if at least half of the scale (as an exponent) is left after the next loop; partly,
               if more than a tenth
    blind      if the scale is carried and not visible: nothing that is read there can hold it

A model is blind where a boundary is, and drifting where the mean norm grows geometrically, with the
lower bound above 1.1 a loop. The one does not follow from the other.
"""

import math

import numpy as np
from scipy.special import stdtrit

from blindspot.audit.observe import Array, Observed
from blindspot.audit.report import (
    DRIFT,
    USEFUL,
    VISIBLE,
    Boundary,
    Degree,
    Depth,
    Estimate,
    Factor,
    Growth,
    Verdict,
)
from blindspot.audit.wording import sentences

ROUNDING = 10
CARRIED, REMOVED = 0.5, 0.1


def estimate(values: Array, center: float | None = None) -> Estimate:
    """Mean of one value a window, with its interval; `center` is shown instead, if given."""
    mean = float(np.mean(values))
    shown = mean if center is None else center
    if not math.isfinite(shown) or not np.isfinite(values).all():
        return Estimate(value=shown if math.isfinite(shown) else None)
    if values.size < 2:
        return Estimate(value=shown)
    half = float(stdtrit(values.size - 1, 0.975) * values.std(ddof=1) / math.sqrt(values.size))
    return Estimate(value=shown, low=shown - half, high=shown + half)


def mean(tokens: Array) -> Estimate:
    """Mean over tokens (n, T)."""
    return estimate(tokens.mean(-1))


def median(tokens: Array) -> Estimate:
    """Median over all tokens (n, T); the interval is that of the windows' medians."""
    return estimate(np.median(tokens, axis=-1), float(np.median(tokens)))


def divergence(tokens: Array) -> Estimate:
    """Median KL over all tokens (n, T): as `median`, and no bound below 0."""
    found = median(tokens)
    return found if found.low is None else found.model_copy(update={"low": max(0.0, found.low)})


def geometric(ratios: Array) -> Estimate:
    """Geometric mean of one positive ratio a window; the interval is taken of logarithms."""
    if not (ratios > 0).all():
        return Estimate(value=None)
    logs = estimate(np.log(ratios))
    return Estimate(**{k: None if v is None else math.exp(v) for k, v in logs.model_dump().items()})


def crosses(x: Estimate, threshold: float) -> bool:
    return x.low is not None and x.high is not None and x.low < threshold < x.high


def degree(exponent: float | None) -> Degree:
    if exponent is None or exponent <= REMOVED:
        return "no"
    return "yes" if exponent >= CARRIED else "partly"


def boundaries(seen: Observed) -> list[Boundary]:
    """Those that were looked at."""
    return [_boundary(seen, i, k) for i, k in enumerate(seen.at)]


def _boundary(seen: Observed, i: int, k: int) -> Boundary:
    kl, log_ratio = seen.kl[i], seen.log_ratio[i]
    exponents = log_ratio / np.log(np.array(seen.factors))[:, None, None]
    twice, half = seen.factors.index(2.0), seen.factors.index(0.5)
    visible_kl = max((divergence(kl[j]) for j in (twice, half)), key=lambda e: e.value or 0.0)
    noise = divergence(seen.noise[i])
    threshold = max(VISIBLE, ROUNDING * (noise.value or 0.0))
    # A reading that is no longer finite has surely changed.
    visible = visible_kl.value is None or visible_kl.value > threshold
    exponent = median((exponents[twice] + exponents[half]) / 2)
    carried = degree(exponent.value)
    ends = seen.ce_end[i] - seen.ce[seen.loops - 1]
    return Boundary(
        k=k,
        visible=visible,
        visible_kl=visible_kl,
        noise_kl=noise,
        carried=carried,
        carried_exponent=exponent,
        blind="no" if visible else carried,
        sure=not (
            crosses(visible_kl, threshold)
            or crosses(exponent, CARRIED)
            or crosses(exponent, REMOVED)
        ),
        factors=[
            Factor(factor=a, kl=divergence(kl[j]), exponent=median(exponents[j]), end=mean(ends[j]))
            for j, a in enumerate(seen.factors)
        ],
    )


def depths(seen: Observed) -> list[Depth]:
    """k = 0..D."""
    return [_depth(seen, k) for k in range(len(seen.norms))]


def _depth(seen: Observed, k: int) -> Depth:
    norms = seen.norms[k]
    marks = [*np.quantile(norms, [0.5, 0.99]), norms.max()]
    p50, p99, top = (float(x) if math.isfinite(x) else None for x in marks)
    common, level, rank = (estimate(x) for x in seen.collapse[k])
    return Depth(
        k=k,
        trained=k <= seen.loops,
        norm=mean(norms),
        norm_p50=p50,
        norm_p99=p99,
        norm_max=top,
        angle=mean(seen.angles[k - 1]) if k else None,
        residual=mean(seen.residual[k - 1]) if k else None,
        ce=mean(seen.ce[k - 1]) if k else None,
        gain=mean(seen.ce[k - 2] - seen.ce[k - 1]) if k > 1 else None,
        shift=divergence(seen.shift[k - 2]) if k > 1 else None,
        clamp=mean(seen.clamped[k - 1] - seen.ce[k - 1]) if 1 < k <= seen.loops else None,
        common=common,
        level=level,
        rank=rank,
    )


def growth(seen: Observed, first: int, last: int) -> Growth:
    """Of the mean norm from loop `first` to loop `last`, a loop."""
    norms = seen.norms.mean(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = geometric((norms[last] / norms[first]) ** (1 / (last - first)))
    low = rate.value if rate.low is None else rate.low
    return Growth(rate=rate, drifting=low is not None and low > DRIFT)


def _use(worth: Estimate) -> str:
    low = worth.value if worth.low is None else worth.low
    high = worth.value if worth.high is None else worth.high
    if low is None or high is None or low < USEFUL <= high:
        return "unsure"
    return "yes" if low >= USEFUL else "no"


def verdict(seen: Observed, found: list[Boundary]) -> Verdict:
    """The verdict on all boundaries and depths."""
    K, D = seen.loops, len(seen.norms) - 1
    degrees = [boundary.blind for boundary in found]
    blind: Degree = "yes" if "yes" in degrees else "partly" if "partly" in degrees else "no"
    recurrence = growth(seen, 1, K)
    start = growth(seen, 0, 1)
    made = {
        (True, True): "both",
        (True, False): "loop 1",
        (False, True): "the recurrence",
        (False, False): "neither",
    }
    worth = mean(seen.ce[0] - seen.ce[K - 1])
    values = {
        "blind": blind,
        "blind_at": [boundary.k for boundary in found if boundary.blind == "yes"],
        "visible_at": [boundary.k for boundary in found if boundary.visible],
        "drifting": recurrence.drifting,
        "growth": recurrence,
        "growth_beyond": growth(seen, K, D) if D > K else None,
        "first_loop": start.rate,
        "norm_made_in": made[start.drifting, recurrence.drifting],
        "depth_use": _use(worth),
    }
    draft = Verdict.model_validate(values | {"sentences": []})
    return draft.model_copy(update={"sentences": sentences(draft, found, depths(seen), seen)})
