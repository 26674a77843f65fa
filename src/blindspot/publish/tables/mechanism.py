"""Tables of the mechanism: gradients, updates, clamps, halting."""

import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.collect.stats import EQUIVALENT, judge, summarize
from blindspot.publish.frames import without_eps
from blindspot.publish.tables.table import KEYS, Table, every_cell, lead, means, spreads
from blindspot.publish.typeset import ABSENT, number

_SAYS = {"supported": "yes", "contradicted": "no", "inconclusive": "open"}


def radial(c: Collected) -> Table:
    """Radial part of the gradient: immediate and through the recurrence, CE and penalty."""
    g = c.frame("gradients")
    keys = [*KEYS, "k", "source", "path", "trained", "dtype"]
    sizes = ["cos_abs_mean", "cos2_mean", "cos2d_mean"]
    data = means(g, keys, ["cos_mean", "radial_mean"], sizes)
    chances = ["chance_cos_abs", "chance_cos2"]  # a function of the width
    by_group = g.groupby(keys, sort=False)[chances].first().reset_index()
    data = data.merge(by_group, on=keys, validate="one_to_one")

    def part(
        source: str, path: str, before: int, value: str = "cos_abs_mean", dtype: str = "float64"
    ) -> list[str]:
        chosen = c.last(data[(data["source"] == source) & (data["path"] == path)], before)
        return spreads(every_cell(c, chosen[chosen["dtype"] == dtype]), value, 4)

    exact = means(without_eps(c), [*KEYS, "k"], [], ["cos_abs_mean", "eps_share"])
    data = data.merge(
        exact.drop(columns="seeds")
        .rename(columns=lambda name: name.replace("abs_mean", "abs_mean_eps0"))
        .assign(source="ce", path="immediate", dtype="float64"),
        on=[*KEYS, "k", "source", "path", "dtype"],
        how="left",
        validate="one_to_one",
    )
    seeds = every_cell(c, c.runs.groupby(KEYS, sort=False).size().rename("seeds").reset_index())
    chance = data.groupby("size")["chance_cos_abs"].first()
    shown = pd.DataFrame(
        lead(c, seeds)
        | {
            "CE |cos|": part("ce", "immediate", 0),
            "eps = 0": part("ce", "immediate", 0, "cos_abs_mean_eps0"),
            "eps/(v + eps)": part("ce", "immediate", 0, "eps_share"),
            "cos²·d": part("ce", "immediate", 0, "cos2d_mean"),
            "Signed": part("ce", "immediate", 0, "cos_mean"),
            "float32": part("ce", "immediate", 0, dtype="float32"),
            "Recurrence": part("ce", "recurrence", 1),
            "Penalty": part("penalty", "immediate", 0),
            "Chance": [number(chance.get(size, float("nan")), 4) for size in seeds["size"]],
        }
    )
    note = (
        f"Immediate parts at k = {c.depth}, recurrence one loop before; others are in the CSV. "
        f"cos²·d is 1 for a random direction."
    )
    return Table(data, shown, note)


def updates(c: Collected) -> Table:
    """Radial increment and angular step x norm, along the loops."""
    u = c.frame("updates")
    sizes = ["norm_mean", "angular_step_norm_mean", "angle_mean"]
    data = means(u, [*KEYS, "k"], ["radial_mean", "cos_successive_mean"], sizes)
    inside = u[(u["k"] >= 1) & (u["k"] < c.own(u))]
    rows = every_cell(c, c.last(data, 1))
    first = every_cell(c, data[data["k"] == (c.own(data) - 1).clip(upper=1)])
    shown = lead(c, rows)
    for value, heading in (
        ("radial_mean", "Radial"),
        ("angular_step_norm_mean", "Angular × s"),
        ("angle_mean", "Angle"),
    ):
        digits = 4 if value == "angle_mean" else 2
        shown[f"{heading}, loop 2"] = spreads(first, value, digits)
        shown[f"{heading}, loop {c.depth}"] = spreads(rows, value, digits)
        if value != "angle_mean":
            by_seed = inside.groupby([*KEYS, "seed"], sort=False)[value]
            ratio = (by_seed.max() - by_seed.min()) / by_seed.mean().abs()
            over = ratio.groupby(KEYS, sort=False).mean().rename("ratio").reset_index()
            shown[f"{heading}, range"] = [number(x) for x in every_cell(c, over)["ratio"]]
    note = (
        f"Range: (max − min) / |mean| over loops 2 to {c.depth}. Loops beyond the trained "
        f"{c.depth} are in the CSV."
    )
    return Table(data, pd.DataFrame(shown), note)


def clamp(c: Collected) -> Table:
    """Change of CE under the two interventions, with an equivalence test over seeds."""
    frame = c.frame("clamp")
    keys = [*KEYS, "intervention", "k"]
    data = means(frame, keys, ["ce", "change_mean"], ["norm", "norm_edited"])
    tests = {
        key: judge(summarize(values["change_mean"]), -EQUIVALENT, EQUIVALENT)
        for key, values in frame.groupby(keys, sort=False)
    }
    data = data.assign(
        equivalent=[_SAYS[tests[key]] for key in data[keys].itertuples(index=False, name=None)]
    )
    last = c.last(data)
    shown: dict[str, list[str]] = {}
    for name, heading in (("norm", "Norm clamped"), ("radial", "Radial removed")):
        rows = every_cell(c, last[last["intervention"] == name])
        shown = shown or lead(c, rows) | {"CE": [number(x, 3) for x in rows["ce"]]}
        shown[heading] = spreads(rows, "change_mean", 4)
        shown[f"Negligible ({name})"] = [ABSENT if pd.isna(x) else x for x in rows["equivalent"]]
    return Table(data, pd.DataFrame(shown), f"At depth {c.depth}; other depths are in the CSV.")


def halting(c: Collected) -> Table:
    """Calibrated halting on test: oracle and realised, with the realised one's measured speed."""
    h, t = c.frame("halting"), c.frame("halting_timing")
    keys = [*KEYS, "score"]
    mean = means(h, [*keys, "variant"], ["mean_loops"], ["relative_ppl", "ppl"])
    # A ratio of two timings on one machine can be averaged; speeds of two machines cannot.
    alike = t["device"].nunique() <= 1
    timed = means(t, keys, [], ["speedup", "tokens_per_s"]).drop(columns="seeds")
    timed["variant"] = "realised"
    data = mean.merge(timed, on=[*keys, "variant"], how="left")
    if not alike:
        data[[name for name in data if name.startswith("tokens_per_s")]] = float("nan")
    shown: dict[str, list[str]] = {}
    for variant in ("oracle", "realised"):
        rows = every_cell(c, data[data["variant"] == variant], ["score"])
        if not shown:
            shown = lead(c, rows) | {"Score": list(rows["score"])}
        name = variant.capitalize()
        shown[f"{name} loops"] = spreads(rows, "mean_loops")
        shown[f"{name} PPL"] = spreads(rows, "relative_ppl", 3)
        if variant == "realised":
            shown["Speed-up"] = spreads(rows, "speedup")
    devices = ", ".join(sorted(set(t["device"])))
    note = (
        f"Perplexity is relative to depth {c.depth} of the plain pass. Speed-up is measured "
        f"against that pass, in float32, on {devices}."
    )
    return Table(data, pd.DataFrame(shown), note)
