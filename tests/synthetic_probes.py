"""The diagnostics' part of `synthetic.py`: files of tails, gradients, updates, clamps, halting."""

import itertools
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from blindspot.config.study import Run
from blindspot.declared import lemma2
from blindspot.declared.scale_response import SCALES
from blindspot.declared.spectrum import DIRECTIONS, RANK

TOKENS = 8192
LOOPS = 30


@dataclass(frozen=True)
class Probe:
    """What the diagnostics of one cell find."""

    #: Mean |cos| of the immediate CE's gradient and the state.
    cos: float = 1e-16
    #: Change of CE at depth K when norms are clamped, nats.
    clamp: float = 0.0
    #: Mean loops of calibrated halting.
    loops: float = 2.0
    hill: float = 6.0
    #: Standard deviation over tokens of the logarithm of the norm's body.
    spread: float = 0.15
    #: Factor on angular step x norm, and on the radial increment, from one loop to the next.
    bend: float = 1.0


RAW, RMS = Probe(cos=1.1e-2, clamp=0.03, loops=2.16), Probe(clamp=0.003, loops=2.6)
PAPER: Mapping[str, Probe] = {
    "terminal-rms": Probe(clamp=0.004, loops=3.9, hill=3.5, bend=1.2),
    "terminal-raw": Probe(cos=0.9e-2, clamp=0.05, loops=3.9, bend=0.8),
    "terminal-rms-penalty": Probe(clamp=0.005, loops=3.9, bend=0.8),
    "perloop-rms": Probe(clamp=0.0012, loops=1.0, hill=2.6, spread=0.6, bend=1.02),
    "perloop-raw": RAW,
    "perloop-finalnorm": Probe(cos=1.3e-2, clamp=0.02, loops=1.78),
    "perloop-rms-penalty": RMS,
    "perloop-rms-interloop": Probe(loops=1.9, bend=0.5),  # comes to rest
}


def tables(run: Run, probe: Probe, ce: np.ndarray, norm: np.ndarray) -> dict[str, pd.DataFrame]:
    """The diagnostics of a run whose CE is `ce` at k = 1.. and whose norm is `norm` at k = 0.., by
    the name of the file."""
    rng = np.random.default_rng(zlib.crc32(f"{run.size}/{run.cell}/{run.seed}".encode()) + 1)
    loops = run.spec.model.loops
    noise = rng.normal(size=8)
    return {
        "norm_hist": _hist(norm, probe, rng),
        "norm_groups": _groups(norm),
        "norm_growth": _growth(norm),
        "gradients": _gradients(run, probe, noise),
        "gradient_eps": _eps(run, probe, norm),
        "updates": _updates(norm, probe, loops, noise),
        "update_fixed": _fixed(loops),
        **_lemma2(ce, norm),
        "clamp": _clamp(probe, ce, norm, noise),
        "scale_response": _response(run, ce),
        **_spectrum(run, noise),
        "windows": _windows(run, ce),
        **_halting(probe, ce, noise),
    }


def _hist(norm: np.ndarray, probe: Probe, rng: np.random.Generator) -> pd.DataFrame:
    rows = []
    for k, s in enumerate(norm):
        alpha = probe.hill if k else 30.0
        sample = (
            s
            * np.exp(rng.normal(0, probe.spread if k else 0.15, TOKENS))
            * (1 + rng.pareto(alpha, TOKENS))
            * 0.8
        )
        place = np.floor(np.log10(sample) * 50)
        for at, count in zip(*np.unique(place, return_counts=True), strict=True):
            low, high = 10 ** (at / 50), 10 ** ((at + 1) / 50)
            rows.append(("validation", k, TOKENS, low, high, count))
    return pd.DataFrame(rows, columns=["split", "k", "tokens", "low", "high", "count"])


def _groups(norm: np.ndarray) -> pd.DataFrame:
    rows = []
    for k, s in enumerate(norm):
        for group, edges in (("position", (0, 1, 2, 4)), ("frequency", (0, 1, 10, 1000))):
            for low, high in itertools.pairwise(edges):
                part = {"low": low, "high": high, "tokens": TOKENS // 4 * (1 + (low == 0))}
                at = {"split": "validation", "k": k, "group": group}
                rows.append(at | part | {"l2_mean": s, "l2_p50": 0.95 * s, "l2_p99": 1.9 * s})
    return pd.DataFrame(rows)


def _growth(norm: np.ndarray) -> pd.DataFrame:
    start, first, last = norm[0], norm[1], norm[-1]
    parts, whole = (first - start, last - first), last - start
    shares = [p / whole if min(parts) >= 0 else math.nan for p in parts]
    row = {"split": "validation", "trained_k": len(norm) - 1, "tokens": TOKENS}
    row |= {"l2_0": start, "l2_1": first, "l2_k": last}
    row |= {"growth_1": parts[0], "growth_rest": parts[1]}
    row |= {"share_1": shares[0], "share_rest": shares[1]}
    row |= {"log_growth_1": np.log(first / start), "log_growth_rest": np.log(last / first)}
    return pd.DataFrame([row])


def _gradients(run: Run, probe: Probe, noise: np.ndarray) -> pd.DataFrame:
    width, loops = run.spec.model.d_model, run.spec.model.loops
    terminal = run.spec.objective.loss == "terminal"
    chance = math.sqrt(2 / math.pi / width)
    rows = []

    def add(k: int, source: str, path: str, dtype: str, cos: float, trained: bool) -> None:
        cos *= math.exp(0.05 * noise[0])
        rows.append(
            {"split": "validation", "k": k, "source": source, "path": path}
            | {"trained": int(trained), "dtype": dtype, "tokens": TOKENS, "width": width}
            | {"cos_abs_mean": cos, "cos_abs_p50": 0.85 * cos, "cos_abs_p90": min(2 * cos, 1)}
            | {"cos_mean": 0.1 * cos, "cos2_mean": cos**2, "cos2d_mean": cos**2 * width}
            | {"radial_mean": 0.01 * cos, "grad_norm_mean": 0.8}
            | {"chance_cos_abs": chance, "chance_cos2": 1 / width}
        )

    for k in range(1, loops + 1):
        last = run.spec.model.readout == "final-only-rms" and k == loops
        cos = 1e-16 if last else probe.cos
        for dtype, floor in (("float64", 0.0), ("float32", 6e-9)):
            add(k, "ce", "immediate", dtype, max(cos, floor), not terminal or k == loops)
            if k < loops:
                add(k, "ce", "recurrence", dtype, 0.02 + 0.004 * k, True)
            if run.spec.objective.penalty is not None:
                add(k, "penalty", "immediate", dtype, 0.9, True)
                if k < loops:
                    add(k, "penalty", "recurrence", dtype, 0.6, True)
    return pd.DataFrame(rows)


def _eps(run: Run, probe: Probe, norm: np.ndarray) -> pd.DataFrame:
    columns = ["split", "k", "eps", "norm_low", "norm_high", "tokens", "cos_abs_mean",
               "cos_abs_mean_eps0", "radial_mean", "radial_mean_eps0"]  # fmt: skip
    rows = []
    if run.spec.model.readout == "rms":
        for k, s in enumerate(norm[1:], start=1):
            low = 10 ** (math.floor(2 * math.log10(s)) / 2)
            edges = [low, low * math.sqrt(10)]
            rows.append(["validation", k, 1e-6, *edges, TOKENS, 1e-7 / s, probe.cos, 1e-7, 1e-18])
    return pd.DataFrame(rows, columns=columns)


def _updates(norm: np.ndarray, probe: Probe, loops: int, noise: np.ndarray) -> pd.DataFrame:
    steps = np.diff(norm)
    state, away, rows = norm[0], 0.0, []
    for k in range(LOOPS):
        radial = steps[k] if k == 0 else steps[min(1, len(steps) - 1)] * probe.bend ** (k - 1)
        scaled = 14.0 * probe.bend ** (k - 1) * math.exp(0.02 * noise[1])
        step = min(scaled / state, 1.9)
        away += step if k else 0.0
        rows.append(
            {"split": "validation", "k": k, "trained_k": loops, "tokens": TOKENS}
            | {"norm_mean": state, "norm_p50": 0.95 * state, "increment_mean": radial}
            | {"radial_mean": radial, "radial_p50": 0.98 * radial, "radial_std": 1.0}
            | {"update_mean": math.hypot(radial, scaled), "angular_step_mean": step}
            | {"angular_step_p50": 0.95 * step, "angle_mean": 2 * math.asin(step / 2)}
            | {"angular_step_norm_mean": scaled, "angular_step_norm_p50": 0.95 * scaled}
            | {"angular_step_norm_std": 2.0, "cos_successive_mean": 0.9 if k else math.nan}
            | {"angle_from_first_mean": min(away, 1.5) if k else math.nan}
        )
        state = max(state + radial, 1.0)
    return pd.DataFrame(rows)


def _fixed(loops: int) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"split": "validation", "k": k, "norm": 10.0**i, "tokens": TOKENS}
            | {"radial_mean": 2.0 + 10.0**-i, "radial_limit_mean": 2.0}
            | {"radial_rest_mean": 1.5 * 10.0**-i, "angular_step_norm_mean": 3 - 10.0**-i}
            | {"angular_limit_mean": 3.0, "angular_rest_mean": 2 * 10.0**-i}
            for k in sorted({1, loops})
            for i in range(7)
        ]
    )


def _lemma2(ce: np.ndarray, norm: np.ndarray) -> dict[str, pd.DataFrame]:
    """Exact: an update of length 5 across the state, whatever its norm."""
    rows, slopes, updates = [], [], []
    for eps in (0.0, 1e-6):
        for k, value in enumerate(ce, start=1):
            lead = {"split": "validation", "eps": eps, "k": k}
            for scale in lemma2.SCALES:
                angle = math.atan2(5.0, scale * norm[k - 1]) if k > 1 else math.nan
                rows.append(
                    {"split": "validation", "eps": eps, "scale": scale, "k": k, "tokens": TOKENS}
                    | {"ce": value, "norm_mean": scale * norm[k], "angle_mean": angle}
                    | {"angle_p50": angle, "far": float(scale * norm[1] >= 50)}
                )
            some, none = k > 1, math.nan
            slopes.append(
                lead
                | {"tokens": TOKENS if some else 0, "scales_mean": 6.0 if some else none}
                | {"slope_mean": -1.0 if some else none, "slope_p50": -1.0 if some else none}
                | {"slope_std": 0.01 if some else none}
            )
            updates.append(
                lead
                | {"tokens": TOKENS, "norm_mean": norm[k - 1], "b_mean": 5.0, "b_perp_mean": 5.0}
                | {"b_perp_p50": 5.0, "b_parallel_mean": 0.0, "scaled_tan_p50": 5.0}
                | {"limit_p50": 5.0, "ratio_p50": 1.0, "residual_p50": 0.001}
                | {"residual_p90": 0.01}
            )
    tables = {"lemma2": rows, "lemma2_slope": slopes, "lemma2_update": updates}
    return {name: pd.DataFrame(table) for name, table in tables.items()}


def _clamp(probe: Probe, ce: np.ndarray, norm: np.ndarray, noise: np.ndarray) -> pd.DataFrame:
    rows = []
    for name, factor in (("norm", 1.0), ("radial", 0.6)):
        for k, value in enumerate(ce, start=1):
            done = (k - 1) / max(len(ce) - 1, 1)
            change = factor * done * (probe.clamp + 2e-4 * noise[2])
            held = norm[1] if name == "norm" else 0.5 * (norm[1] + norm[k])
            rows.append(
                {"split": "validation", "intervention": name, "k": k, "tokens": TOKENS, "ce": value}
                | {"ce_edited": value + change, "change_mean": change, "change_se": 1e-4}
                | {"norm": norm[k], "norm_edited": held}
            )
    return pd.DataFrame(rows)


def _response(run: Run, ce: np.ndarray) -> pd.DataFrame:
    """Flat under RMSNorm; else a parabola of log a whose least value is at a = 1."""
    rows = []
    for k, value in enumerate(ce, start=1):
        last = k == run.spec.model.loops
        name = run.spec.model.readout
        raw = name == "raw" or (name == "final-only-rms" and not last)
        for scale in SCALES:
            log = math.log(scale)
            change = 0.2 * log**2 if raw else 0.0
            rows.append(
                {"split": "test", "k": k, "scale": scale, "tokens": TOKENS, "ce": value + change}
                | {"change_mean": change, "change_se": 1e-4, "slope": 0.4 * log if raw else 0.0}
            )
    return pd.DataFrame(rows)


def _spectrum(run: Run, noise: np.ndarray) -> dict[str, pd.DataFrame]:
    """A readout that normalizes hides the radial direction; behind a norm no loop sees it."""
    spec, rows, hidden = run.spec.model, [], []
    chance = RANK / spec.d_model
    for k in sorted({1, spec.loops}):
        blind = spec.readout == "rms" or (spec.readout == "final-only-rms" and k == spec.loops)
        factors = {
            "radial": (1e-10 if blind else 0.5, 1.2 if spec.interloop == "none" else 1e-8),
            "mean-state": (0.7, 1.1),
            "least-visible": (0.1, 0.9),
            "most-active": (0.9, 1.6),
        }
        for at, direction in enumerate(DIRECTIONS):
            seen, active = factors.get(direction, (1.0, 1.0))
            less, more = (1.0, 0.2) if direction == "least-visible" else (chance, chance)
            rows.append(
                {"split": "validation", "k": k, "direction": direction, "tokens": 128}
                | {"visibility": 3 * seen * math.exp(0.1 * noise[4] + 0.02 * at * noise[5])}
                | {"activity": active * math.exp(0.05 * noise[6] * at), "in_least_visible": less}
                | {"in_most_active": 1.0 if direction == "most-active" else more}
            )
        hidden.append(
            {"split": "validation", "k": k, "tokens": 128, "width": spec.d_model, "rank": RANK}
            | {"hidden_mean": float(blind), "hidden_min": int(blind), "hidden_max": int(blind)}
            | {"hidden_radial": float(blind), "overlap": 0.2, "overlap_chance": chance}
        )
    return {"spectrum": pd.DataFrame(rows), "spectrum_hidden": pd.DataFrame(hidden)}


def _windows(run: Run, ce: np.ndarray) -> pd.DataFrame:
    """Ten blocks of a text that is as hard for all runs; each run adds a little of its own."""
    text = np.random.default_rng(0).normal(0, 0.05, 10)
    own = np.random.default_rng(zlib.crc32(run.name.encode())).normal(0, 0.005, 10)
    own += text - (text + own).mean() + 0.01  # test is harder than validation, as in exits
    rows = [
        {"split": "test", "block": block, "k": k, "windows": 8, "tokens": 1024}
        | {"nll": (value + own[block]) * 1024}
        for block in range(10)
        for k, value in enumerate(ce, start=1)
    ]
    return pd.DataFrame(rows)


def _halting(probe: Probe, ce: np.ndarray, noise: np.ndarray) -> dict[str, pd.DataFrame]:
    K, full = len(ce), ce[-1]
    rows, curve, timing = [], [], []
    for score in ("margin", "entropy"):
        for variant, more in (("oracle", 0.0), ("realised", 0.15)):
            loops = min(max(probe.loops + more * (probe.loops > 1) + 0.02 * noise[3], 1), K)
            rows.append(
                {"score": score, "variant": variant, "trained_k": K, "target": 1.01}
                | {"threshold": 0.7, "calibrated_on": "validation", "calibration_tokens": TOKENS}
                | {"calibration_relative_ppl": 1.01, "calibration_mean_loops": loops}
                | {"scored_on": "test", "tokens": TOKENS, "ce_full": full, "ce": full + 0.011}
                | {"ppl": math.exp(full + 0.011), "relative_ppl": math.exp(0.011)}
                | {"mean_loops": loops}
            )
        lost = max(ce[0] - full, 0.001)
        for i, threshold in enumerate(np.linspace(0.0, 1.0, 21)):
            loops = 1 + (K - 1) * i / 20
            loss = full + min(lost, 20.0) * math.exp(-4 * (loops - 1) / max(probe.loops - 1, 0.3))
            at = {"split": "test", "score": score, "threshold": threshold, "tokens": TOKENS}
            relative = math.exp(loss - full)
            curve.append(at | {"ce": loss, "relative_ppl": relative, "mean_loops": loops})
        speed = 1.7 * 4 / rows[-1]["mean_loops"] / 2
        timing.append(
            {"split": "test", "score": score, "threshold": 0.7, "device": "NVIDIA H200"}
            | {"threads": 1, "batch": 64, "context": 256, "tokens": TOKENS, "repeats": 3}
            | {"mean_loops": rows[-1]["mean_loops"], "tokens_per_s": 9000.0 * speed}
            | {"tokens_per_s_full": 9000.0, "speedup": speed}
        )
    tables = {"halting": rows, "halting_curve": curve, "halting_timing": timing}
    return {name: pd.DataFrame(table) for name, table in tables.items()}
