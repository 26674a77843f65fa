"""Halting: a token stops looping as soon as its readout is confident enough.

    margin      probability of the best token minus that of the second; stops at `threshold` or more
    entropy     of the predicted distribution, nats; stops at `threshold` or less

The threshold is calibrated on the validation split: it is the one with the fewest mean loops at
which perplexity is at most `target` times that of depth K. It is then scored on the test split.
Text that is in both splits is refused. There are two variants:

    oracle      all depths are computed in a plain pass; a token is read at the first depth where
                its criterion holds. One token's stop does not affect another. Saves no compute.
    realised    a token's state is frozen where it stops, later tokens attend to the frozen state,
                only active tokens are computed (`frozen.py`). Calibrated on its own passes.

`halting_timing.csv` compares measured tokens/s: the realised variant at its threshold against the
plain pass to depth K with one head. The two take turns; speeds are medians of `repeats`, in
float32, with `batch` x `context` tokens at a time. The realised variant computes the head at every
loop for the active tokens. This is the only file here that is not a function of the weights.
"""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from blindspot import provenance
from blindspot.errors import BlindspotError
from blindspot.measure import frozen
from blindspot.measure.subject import Ids, Row, Subject, number, token_nll

CALIBRATION, SCORED = "validation", "test"
#: The realised variant tries every fourth threshold: each one costs a pass.
STEP = 4
REPEATS = 3
#: Two texts are compared by runs of ids of this length; a larger share in common is an overlap.
GRAM, OVERLAP = 32, 0.01

Numbers = NDArray[np.float64]


class Outcome(NamedTuple):
    """Mean cross-entropy (nats a token) and mean loops of a policy."""

    ce: float
    loops: float


class Observed(NamedTuple):
    """From a plain pass: NLL at k = 1..K, (K, N), and for each score the confidence at k < K,
    (K - 1, N)."""

    nll: Numbers
    confidence: dict[str, Numbers]

    def outcome(self, score: str, threshold: float) -> Outcome:
        """The oracle: each token is read at the first depth with enough confidence, else at K."""
        sure = np.vstack([self.confidence[score] >= threshold, np.ones(self.nll.shape[1], bool)])
        depth = sure.argmax(axis=0)
        chosen = np.take_along_axis(self.nll, depth[None], axis=0)
        return Outcome(float(chosen.mean()), float(depth.mean()) + 1)

    @property
    def full(self) -> float:
        """CE at depth K."""
        return float(self.nll[-1].mean())


def margin(logits: Tensor) -> Tensor:
    """Probability of the best token minus that of the second, from logits (..., V): shape (...)."""
    best = torch.softmax(_precise(logits), dim=-1).topk(2, dim=-1).values
    return best[..., 0] - best[..., 1]


def certainty(logits: Tensor) -> Tensor:
    """Negative entropy in nats of logits (..., V): shape (...)."""
    logp = torch.log_softmax(_precise(logits), dim=-1)
    return (logp.exp() * logp).sum(-1)


def _precise(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


#: Scores of confidence: higher means more certain.
SCORES: dict[str, Callable[[Tensor], Tensor]] = {"margin": margin, "entropy": certainty}


@torch.no_grad()
def measure(subject: Subject) -> dict[str, list[Row]]:
    """All three files."""
    budget, target = subject.settings.intervention_tokens, subject.settings.halting_target
    rows = {split: subject.sample(split, budget) for split in (CALIBRATION, SCORED)}
    require_disjoint(*map(subject.tokens.split, (CALIBRATION, SCORED)))
    tried, scored = (observe(subject, rows[split]) for split in (CALIBRATION, SCORED))
    tables: dict[str, list[Row]] = {"halting": [], "halting_curve": [], "halting_timing": []}
    for score in SCORES:
        grid = thresholds(tried.confidence[score])
        for threshold in grid:
            found = scored.outcome(score, threshold)
            lead = [SCORED, score, _shown(score, threshold), scored.nll.shape[1]]
            numbers = (found.ce, _relative(found.ce, scored.full), found.loops)
            tables["halting_curve"].append([*lead, *map(number, numbers)])

        def oracle(split: str, threshold: float, score: str = score) -> Outcome:
            return (tried if split == CALIBRATION else scored).outcome(score, threshold)

        def realised(split: str, threshold: float, score: str = score) -> Outcome:
            return realise(subject, rows[split], score, threshold)

        limit = tried.full + math.log(target)
        # Stopping always (-inf) needs no pass: every token is read at depth 1.
        every = [*grid[1:-1:STEP], grid[-1]] if tried.nll[0].mean() > limit else grid[:1]
        threshold = first(every, partial(realised, CALIBRATION), limit)
        for variant, policy, chosen in (
            ("oracle", oracle, best(grid, partial(oracle, CALIBRATION), limit)),
            ("realised", realised, threshold),
        ):
            before, after = policy(CALIBRATION, chosen), policy(SCORED, chosen)
            lead = [score, variant, subject.loops, number(target), _shown(score, chosen)]
            lead += [CALIBRATION, tried.nll.shape[1]]
            lead += map(number, (_relative(before.ce, tried.full), before.loops))
            lead += [SCORED, scored.nll.shape[1]]
            lead += map(number, (scored.full, after.ce, math.exp(min(after.ce, 709))))
            lead += map(number, (_relative(after.ce, scored.full), after.loops))
            tables["halting"].append(lead)
        timed = time_halting(subject, rows[SCORED], score, threshold)
        tables["halting_timing"].append(timed)
    return tables


def observe(subject: Subject, rows: Ids) -> Observed:
    """NLL and confidence of each target of windows (n, T + 1), at every depth of a plain pass."""
    model, loops = subject.model, subject.loops
    nll: list[Tensor] = []
    confidence: dict[str, list[Tensor]] = {name: [] for name in SCORES}
    for inputs, targets in subject.chunks(rows):
        states = model(inputs)
        nll.append(
            torch.stack(
                [token_nll(model, states[k], k, targets).flatten() for k in range(1, loops + 1)]
            )
        )
        for name, score in SCORES.items():
            found = [score(model.logits(states[k], k)).flatten() for k in range(1, loops)]
            confidence[name].append(
                torch.stack(found) if found else nll[-1].new_zeros(0, nll[-1].shape[1])
            )
    return Observed(_array(nll), {name: _array(pieces) for name, pieces in confidence.items()})


def _array(pieces: Sequence[Tensor]) -> Numbers:
    return torch.cat(list(pieces), dim=1).double().cpu().numpy()


def thresholds(confidence: Numbers) -> list[float]:
    """Candidate thresholds: -inf (always stop), percentiles of the scores, inf (never stop)."""
    if not confidence.size:
        return [-math.inf, math.inf]
    # Only observed values, so that comparisons in float32 and float64 have the same result.
    marks = np.unique(np.quantile(confidence, np.linspace(0, 1, 101), method="higher"))
    return [-math.inf, *marks.tolist(), math.inf]


def best(grid: Sequence[float], outcome: Callable[[float], Outcome], limit: float) -> float:
    """The threshold with the fewest mean loops whose CE is at most `limit`; inf (never stop) where
    there is none."""
    found = {t: outcome(t) for t in grid}
    fit = [t for t in grid if found[t].ce <= limit]
    return min(fit, key=lambda t: (found[t].loops, t), default=math.inf)


def first(grid: Sequence[float], outcome: Callable[[float], Outcome], limit: float) -> float:
    """The lowest threshold of an ascending grid with CE of at most `limit`, by bisection.

    Assumes that CE falls as the threshold rises. The last threshold (never stop) is not tried.
    """
    low, high = 0, len(grid) - 1
    while low < high:
        middle = (low + high) // 2
        if outcome(grid[middle]).ce <= limit:
            high = middle
        else:
            low = middle + 1
    return grid[low]


def realise(subject: Subject, rows: Ids, score: str, threshold: float) -> Outcome:
    """CE and mean loops of the frozen pass over windows (n, T + 1)."""
    total = loops = 0.0
    count = 0
    for inputs, targets in subject.chunks(rows):
        halted = frozen.run(subject.model, inputs, _decide(score, threshold))
        for k in range(1, subject.loops + 1):
            here = halted.depth == k
            if bool(here.any()):
                nll = token_nll(subject.model, halted.state[here], k, targets[here])
                total += float(nll.double().sum())
        loops += float(halted.depth.sum())
        count += targets.numel()
    return Outcome(total / count, loops / count)


def _decide(score: str, threshold: float) -> frozen.Decide:
    return lambda logits: SCORES[score](logits) >= threshold


def time_halting(subject: Subject, rows: Ids, score: str, threshold: float) -> Row:
    """The row of `halting_timing.csv`."""
    batch = next(subject.chunks(rows))[0].shape

    def halting() -> float:
        depths = [
            frozen.run(subject.model, inputs, _decide(score, threshold)).depth.double().sum()
            for inputs, _ in subject.chunks(rows)
        ]
        return float(torch.stack(depths).sum())

    def full() -> float:
        for inputs, _ in subject.chunks(rows):
            subject.model.logits(subject.model(inputs)[-1], subject.loops)
        return 0.0

    seconds: dict[str, list[float]] = {"halting": [], "full": []}
    tokens, loops = rows[:, 1:].size, 0.0
    for _ in range(REPEATS):
        for name, work in (("halting", halting), ("full", full)):
            _wait(subject.device)
            start = time.perf_counter()
            loops = work() or loops
            _wait(subject.device)
            seconds[name].append(time.perf_counter() - start)
    speed = {name: tokens / float(np.median(times)) for name, times in seconds.items()}
    lead = [SCORED, score, _shown(score, threshold), provenance.device_name(subject.device)]
    numbers = (loops / tokens, speed["halting"], speed["full"], speed["halting"] / speed["full"])
    return [*lead, torch.get_num_threads(), *batch, tokens, REPEATS, *map(number, numbers)]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _shown(score: str, threshold: float) -> str:
    """The threshold in the score's own units: the code compares the negative of the entropy."""
    return number(-threshold if score == "entropy" else threshold)


def _relative(ce: float, full: float) -> float:
    return math.exp(min(ce - full, 709))


def require_disjoint(calibration: NDArray[np.integer], scored: NDArray[np.integer]) -> None:
    """Refuse a calibration text that equals or overlaps the text that is scored.

    Compares runs of 32 ids at every offset. More than 1 % in common is an overlap; less is not,
    since natural text repeats a table row or a licence now and then. Raises `BlindspotError`.
    """
    length = min(GRAM, len(calibration), len(scored))
    ours, theirs = (_grams(ids, length) for ids in (calibration, scored))
    common = float(np.isin(ours, theirs).mean())
    if common > OVERLAP:
        raise BlindspotError(
            f"halting: {common:.0%} of the text that thresholds are calibrated on ({CALIBRATION}) "
            f"is in the text that is scored ({SCORED}); give the corpus splits that do not overlap"
        )


def _grams(ids: NDArray[np.integer], length: int) -> NDArray[np.uint64]:
    """Polynomial hashes modulo 2^64 of all runs of `length` ids."""
    runs = sliding_window_view(ids.astype(np.uint64), length).T
    total = np.zeros(runs.shape[1], dtype=np.uint64)
    for column in runs:
        total = total * np.uint64(0x9E3779B97F4A7C15) + column + np.uint64(1)
    return total
