"""The audit of one model: check it, look at it, judge it."""

from collections.abc import Callable

import numpy as np
import torch

from blindspot import provenance
from blindspot.audit import judge
from blindspot.audit.looped import Looped
from blindspot.audit.observe import Ids, Observed, Settings, exact, observe
from blindspot.audit.report import Model, Report, Text
from blindspot.errors import BlindspotError

#: Fewest windows, and tokens in a window, that intervals can be given for.
MIN_WINDOWS, MIN_LENGTH = 2, 8
#: How far the four functions may be from the model's own logits, as a share of their spread.
CLOSE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}


def cut(stream: np.ndarray, settings: Settings, context: int | None, name: str = "text") -> Ids:
    """Windows (n, T + 1) of a stream of ids, spread evenly over it; at least two.

    As `measure.subject.windows` cuts them, where the stream is long enough.
    """
    length = min(settings.length, context or settings.length, (len(stream) - 1) // MIN_WINDOWS)
    if length < MIN_LENGTH:
        raise BlindspotError(
            f"{name}: {len(stream)} tokens are too few; the audit needs at least "
            f"{MIN_WINDOWS * MIN_LENGTH + 1}, to cut {MIN_WINDOWS} windows of {MIN_LENGTH}"
        )
    room = (len(stream) - 1) // length
    n = min(max(MIN_WINDOWS, settings.tokens // length), room)
    starts = np.arange(n) * room // n * length
    return np.asarray(stream[starts[:, None] + np.arange(length + 1)], dtype=np.int64)


def check(model: Looped, windows: Ids) -> None:
    """Raise `BlindspotError` where model and text do not belong together, or the four functions
    are not the model."""
    model.check_loops()
    model.check_weights()
    highest = int(windows.max())
    if highest >= model.vocab_size:
        raise BlindspotError(
            f"{model.name}: the text has token {highest}, the model's vocabulary ends at "
            f"{model.vocab_size - 1}; it was encoded by another model's tokenizer"
        )
    if model.whole is None:
        return
    ids = torch.from_numpy(windows[:1, :-1]).to(model.device)
    with torch.no_grad():
        context, state = model.init(ids)
        for k in range(1, model.loops + 1):
            state = model.loop(context, state, k)
        ours = exact(model.read(context, state, model.loops))
        theirs = exact(model.whole(ids))
    away = (ours - theirs).abs().max() / theirs.std()
    dtype = model.vector(state).dtype
    if not away <= CLOSE[dtype]:
        raise BlindspotError(
            f"{model.name}: after {model.loops} loops the adapter's logits differ from the "
            f"model's own by {away:.2g} of their spread; its number of loops, or the code it came "
            f"with, is not what the adapter expects (docs/audit.md tells how to write one)"
        )


def audit(
    model: Looped,
    stream: np.ndarray,
    settings: Settings | None = None,
    text: str = "text",
    source: str = "Python object",
    advance: Callable[[float], None] = lambda _: None,
) -> tuple[Report, Observed]:
    """Audit a model on a stream of token ids: the report, and all that was observed.

    `advance` is told each part of the work that is done, in all 1. Raises `BlindspotError` with one
    message where it can't be done.
    """
    settings = settings or Settings()
    started = provenance.now()
    windows = cut(stream, settings, model.context, text)
    check(model, windows)
    torch.set_float32_matmul_precision("highest")
    seen = observe(model, windows, settings, advance)
    boundaries = judge.boundaries(seen)
    parameters = sum(p.numel() for p in model.module.parameters()) if model.module else None
    report = Report(
        model=Model(
            name=model.name,
            source=source,
            point=model.point,
            loops=model.loops,
            vocab_size=model.vocab_size,
            parameters=parameters,
            dtype=seen.dtype,
            device=str(model.device),
        ),
        text=Text(
            name=text,
            tokens=int(windows[:, :-1].size),
            windows=len(windows),
            length=windows.shape[1] - 1,
        ),
        verdict=judge.verdict(seen, boundaries),
        boundaries=boundaries,
        depths=judge.depths(seen),
        overflow=seen.overflow,
        provenance=provenance.collect() | {"started": started, "finished": provenance.now()},
    )
    return report, seen
