"""Tables of the mechanism: gradients, updates, clamps, halting."""

import pandas as pd

from blindspot.claims import judge
from blindspot.collected import Collected
from blindspot.stats import over_seeds, summarize
from blindspot.tables.table import KEYS, Table, every_cell, lead, spreads
from blindspot.typeset import ABSENT, number, spread

#: Changes of CE within this are called negligible (claims.yaml has the same).
EQUIVALENT = 0.01
_SAYS = {"supported": "yes", "contradicted": "no", "inconclusive": "open"}


def radial(c: Collected) -> Table:
    """Radial part of the gradient: immediate and through the recurrence, CE and penalty."""
    g = c.frame("gradients")
    keys = [*KEYS, "k", "source", "path", "trained", "dtype"]
    values = ["cos_abs_mean", "cos2_mean", "cos2d_mean", "cos_mean", "radial_mean"]
    mean = over_seeds(g, keys, [*values, "chance_cos_abs", "chance_cos2"])
    ends = ("", "_ci")
    data = mean[[*keys, "seeds", *(f"{v}{end}" for v in values for end in ends)]].assign(
        chance_cos_abs=mean["chance_cos_abs"], chance_cos2=mean["chance_cos2"]
    )

    def part(
        source: str, path: str, k: int, value: str = "cos_abs_mean", dtype: str = "float64"
    ) -> list[str]:
        chosen = data[(data["source"] == source) & (data["path"] == path) & (data["k"] == k)]
        return spreads(every_cell(c, chosen[chosen["dtype"] == dtype]), value, 4)

    seeds = every_cell(c, c.runs.groupby(KEYS, sort=False).size().rename("seeds").reset_index())
    chance = data.groupby("size")["chance_cos_abs"].first()
    K = c.loops
    shown = pd.DataFrame(
        lead(c, seeds)
        | {
            "CE |cos|": part("ce", "immediate", K),
            "cos²·d": part("ce", "immediate", K, "cos2d_mean"),
            "Signed": part("ce", "immediate", K, "cos_mean"),
            "float32": part("ce", "immediate", K, dtype="float32"),
            "Recurrence": part("ce", "recurrence", K - 1),
            "Penalty": part("penalty", "immediate", K),
            "Chance": [number(chance.get(size, float("nan")), 4) for size in seeds["size"]],
        }
    )
    note = (
        f"Immediate parts at k = {K}, recurrence at k = {K - 1}; other loops are in the CSV. "
        f"cos²·d is 1 for a random direction."
    )
    return Table(data, shown, note)


def updates(c: Collected) -> Table:
    """Radial increment and angular step x norm, along the loops."""
    u = c.frame("updates")
    values = ["norm_mean", "radial_mean", "angular_step_norm_mean", "angle_mean"]
    mean = over_seeds(u, [*KEYS, "k"], [*values, "cos_successive_mean"])
    ends = ("", "_ci")
    kept = [f"{v}{end}" for v in [*values, "cos_successive_mean"] for end in ends]
    data = mean[[*KEYS, "k", "seeds", *kept]]
    inside = u[(u["k"] >= 1) & (u["k"] < c.loops)]
    last = c.loops - 1
    rows = every_cell(c, data[data["k"] == last])
    first = every_cell(c, data[data["k"] == min(1, last)])
    shown = lead(c, rows)
    for value, heading in (
        ("radial_mean", "Radial"),
        ("angular_step_norm_mean", "Angular × s"),
        ("angle_mean", "Angle"),
    ):
        digits = 4 if value == "angle_mean" else 2
        shown[f"{heading}, loop 2"] = spreads(first, value, digits)
        shown[f"{heading}, loop {c.loops}"] = spreads(rows, value, digits)
        if value != "angle_mean":
            by_seed = inside.groupby([*KEYS, "seed"], sort=False)[value]
            ratio = (by_seed.max() - by_seed.min()) / by_seed.mean().abs()
            over = ratio.groupby(KEYS, sort=False).mean().rename("ratio").reset_index()
            shown[f"{heading}, range"] = [number(x) for x in every_cell(c, over)["ratio"]]
    note = (
        f"Range: (max − min) / |mean| over loops 2 to {c.loops}. Loops beyond the trained "
        f"{c.loops} are in the CSV."
    )
    return Table(data, pd.DataFrame(shown), note)


def clamp(c: Collected) -> Table:
    """Change of CE under the two interventions, with an equivalence test over seeds."""
    frame = c.frame("clamp")
    keys = [*KEYS, "intervention", "k"]
    mean = over_seeds(frame, keys, ["ce", "change_mean", "norm", "norm_edited"])
    data = mean[[*keys, "seeds", "ce", "change_mean", "change_mean_ci", "norm", "norm_edited"]]
    tests = {
        key: judge(summarize(values["change_mean"]), -EQUIVALENT, EQUIVALENT)
        for key, values in frame.groupby(keys, sort=False)
    }
    data = data.assign(
        equivalent=[_SAYS[tests[key]] for key in data[keys].itertuples(index=False, name=None)]
    )
    last = data[data["k"] == c.loops]
    shown: dict[str, list[str]] = {}
    for name, heading in (("norm", "Norm clamped"), ("radial", "Radial removed")):
        rows = every_cell(c, last[last["intervention"] == name])
        shown = shown or lead(c, rows) | {"CE": [number(x, 3) for x in rows["ce"]]}
        shown[heading] = spreads(rows, "change_mean", 4)
        shown[f"Negligible ({name})"] = [ABSENT if pd.isna(x) else x for x in rows["equivalent"]]
    return Table(data, pd.DataFrame(shown), f"At depth {c.loops}; other depths are in the CSV.")


def halting(c: Collected) -> Table:
    """Calibrated halting on test: oracle and realised, with the realised one's measured speed."""
    h, t = c.frame("halting"), c.frame("halting_timing")
    keys = [*KEYS, "score"]
    mean = over_seeds(h, [*keys, "variant"], ["relative_ppl", "mean_loops", "ppl"])
    # A ratio of two timings on one machine can be averaged; speeds of two machines cannot.
    alike = t["device"].nunique() <= 1
    timed = over_seeds(t, keys, ["speedup", "tokens_per_s"])
    timed["variant"] = "realised"
    kept = ["speedup", "speedup_ci", "tokens_per_s", "tokens_per_s_ci"]
    data = mean[
        [*keys, "variant", "seeds"]
        + [f"{v}{end}" for v in ("mean_loops", "relative_ppl", "ppl") for end in ("", "_ci")]
    ].merge(timed[[*keys, "variant", *kept]], on=[*keys, "variant"], how="left")
    if not alike:
        data[["tokens_per_s", "tokens_per_s_ci"]] = float("nan")
    shown: dict[str, list[str]] = {}
    for variant in ("oracle", "realised"):
        rows = every_cell(c, data[data["variant"] == variant], ["score"])
        if not shown:
            shown = lead(c, rows) | {"Score": list(rows["score"])}
        name = variant.capitalize()
        shown[f"{name} loops"] = spreads(rows, "mean_loops")
        shown[f"{name} PPL"] = spreads(rows, "relative_ppl", 3)
        if variant == "realised":
            shown["Speed-up"] = [
                spread(x, ci) for x, ci in zip(rows["speedup"], rows["speedup_ci"], strict=True)
            ]
    devices = ", ".join(sorted(set(t["device"])))
    note = (
        f"Perplexity is relative to depth {c.loops} of the plain pass. Speed-up is measured "
        f"against that pass, in float32, on {devices}."
    )
    return Table(data, pd.DataFrame(shown), note)
