"""Tables of cost: throughput by depth, training, and cells at equal budgets."""

import numpy as np
import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.config.devices import peak
from blindspot.publish.matched import BUDGETS, REFERENCE, alike, matched
from blindspot.publish.tables.table import KEYS, Table, every_cell, lead
from blindspot.publish.typeset import ABSENT, number, spread


def throughput(c: Collected) -> Table:
    """Tokens/s at each depth, by architecture."""
    t = c.frame("throughput")
    last = c.last(t).drop_duplicates(["size", "architecture"])
    t = t.drop(columns="cell").drop_duplicates(["size", "architecture", "k"], ignore_index=True)
    speeds = last.set_index(["size", "architecture"])["tokens_per_s"].to_dict()
    full = pd.MultiIndex.from_frame(t[["size", "architecture"]]).map(speeds)
    data = t.assign(speedup=t["tokens_per_s"] / np.asarray(full, dtype=float))
    shown = pd.DataFrame(
        {
            "Size": data["size"],
            "Architecture": data["architecture"],
            "k": data["k"].map(str),
            "Tokens/s": data["tokens_per_s"].map(number),
            "Quartiles": [
                f"{number(a)} – {number(b)}"
                for a, b in zip(data["tokens_per_s_q25"], data["tokens_per_s_q75"], strict=True)
            ],
            "Speed-up": [f"{number(x)}×" for x in data["speedup"]],
            "MFLOPs/token": (data["flops_per_token"] / 1e6).map(number),
        }
    )
    return Table(data, shown, _timing_note(t))


def _timing_note(t: pd.DataFrame) -> str:
    """How it was timed, and where architectures that do the same work differ beyond the noise."""
    if t.empty:
        return ""
    one = t.iloc[0]
    text = (
        f"Batch {one['batch']} x {one['context']} tokens, {one['repeats']} timings, "
        f"{one['threads']} CPU thread{'s' if one['threads'] > 1 else ''}."
    )
    odd = []
    for (size, k), group in t.groupby(["size", "k"], sort=False):
        if group["tokens_per_s_q25"].max() > group["tokens_per_s_q75"].min():
            gap = group["tokens_per_s"].max() / group["tokens_per_s"].min() - 1
            odd.append(f"{size} k = {k} ({gap:.1%})")
    if odd:
        text += f" Architectures differ by more than their quartiles at: {', '.join(odd)}."
    return text


def cost(c: Collected) -> Table:
    """Tokens, FLOPs, hours, speed and utilization of training; compiling is counted apart."""
    runs = c.runs.assign(device=c.runs["device"].fillna(""))
    runs["flops"] = runs["tokens_seen"] * runs["train_flops_per_token"]
    runs["hours"] = runs["seconds"] / 3600
    runs["compile_seconds"] = runs["compile_seconds"].astype(float)
    # The peaks are of bf16; float32 has others.
    peaks = runs["device"].map(peak).astype(float) if c.study["precision"] == "bf16" else np.nan
    runs["mfu"] = runs["tokens_per_s"] * runs["train_flops_per_token"] / peaks
    groups = runs.groupby(KEYS, sort=False)
    # pandas averages what is there; a run without a time (of an older record) is no zero.
    means = ["parameters", "steps", "tokens_seen", "train_flops_per_token", "flops", "hours",
             "compile_seconds", "tokens_per_s", "mfu"]  # fmt: skip
    data = groups[means].mean().reset_index()
    data.insert(2, "seeds", groups.size().to_numpy())
    data["device"] = groups["device"].agg(lambda x: "; ".join(sorted({*x} - {""}))).to_numpy()
    rows = every_cell(c, data)
    shown = pd.DataFrame(
        lead(c, rows)
        | {
            "Parameters": [_whole(x) for x in rows["parameters"]],
            "Steps": [_whole(x) for x in rows["steps"]],
            "Tokens": [_whole(x) for x in rows["tokens_seen"]],
            "FLOPs/token": [number(x) for x in rows["train_flops_per_token"]],
            "FLOPs": [number(x) for x in rows["flops"]],
            "Hours": [number(x) for x in rows["hours"]],
            "Tokens/s": [number(x) for x in rows["tokens_per_s"]],
            "MFU": [ABSENT if np.isnan(x) else f"{100 * x:.1f}%" for x in rows["mfu"]],
        }
    )
    devices = ", ".join(sorted({*runs["device"]} - {""})) or "an unknown device"
    note = f"Means a run. Trained on {devices}. MFU where the device's dense bf16 peak is known."
    compiling = runs["compile_seconds"].mean()
    if compiling > 0:
        note += f" Compiling, {number(compiling, 0)} s a run more, is in no hours and no speed."
    return Table(data, shown, note)


def _whole(x: float) -> str:
    """A count, in full."""
    return ABSENT if np.isnan(x) else f"{x:,.0f}"


def compared(c: Collected) -> Table:
    """CE at equal steps, FLOPs and device time, and its difference from the reference cell."""
    data = matched(c)
    shown: dict[str, list[str]] = {}
    for budget in BUDGETS:
        rows = every_cell(c, data[data["budget"] == budget])
        if not shown:
            shown = lead(c, rows)
        pairs = zip(rows["ce"], rows["difference"], rows["difference_ci"], strict=True)
        cells = [(number(ce, 3), spread(d, ci, 3)) for ce, d, ci in pairs]
        shown[f"CE, {budget}"] = [ce for ce, _ in cells]
        shown[f"Diff., {budget}"] = [d for _, d in cells]
    budgets = [
        f"{size}: {', '.join(f'{number(at, 0)} {budget}' for budget, at in own)}"
        for size, own in (
            (size, part.drop_duplicates("budget")[["budget", "at"]].itertuples(index=False))
            for size, part in data.groupby("size", sort=False)
        )
    ]
    untimed = [size for size in c.sizes if size not in alike(c)]
    noise = data.drop_duplicates("size").set_index("size")["noise_sd"].dropna()
    parts = [f"Diff.: less {REFERENCE}'s. Budgets: {'; '.join(budgets)}."]
    if len(noise):
        shown_noise = ", ".join(f"{number(sd, 3)} at {size}" for size, sd in noise.items())
        parts.append(f"Noise of a replicate (standard deviation over seeds): {shown_noise}.")
    if untimed:
        parts.append(f"No equal device time at {', '.join(untimed)}: runs of different machines.")
    return Table(data, pd.DataFrame(shown), " ".join([*parts, *_turned(data)]))


def _turned(data: pd.DataFrame) -> list[str]:
    """Cells whose difference from the reference changes its sign with the budget."""
    signs = data.dropna(subset=["difference"]).groupby(KEYS, sort=False)["difference"]
    turned = [f"{cell} at {size}" for (size, cell), d in signs if d.min() < 0 < d.max()]
    return [f"The sign turns with the budget: {', '.join(turned)}."] if turned else []
