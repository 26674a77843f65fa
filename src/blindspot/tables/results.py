"""Tables of perplexity: at the last loop, at each exit, and with the speed of each exit."""

import pandas as pd

from blindspot.collected import Collected
from blindspot.stats import over_seeds
from blindspot.tables.table import KEYS, Table, controls, every_cell, lead, spreads, wide
from blindspot.typeset import ABSENT, number, spread


def scored(c: Collected) -> pd.DataFrame:
    """exits.csv of the validation split, protocol full."""
    e = c.frame("exits")
    return e[(e["split"] == "validation") & (e["protocol"] == "full")]


def main(c: Collected) -> Table:
    """Perplexity and norm at the last loop: the 2 x 2 of loss and readout, and the controls."""
    e, n = scored(c), c.frame("norms")
    e = e[e["k"] == c.loops]
    n = n[(n["split"] == "validation") & (n["k"] == c.loops)].rename(columns={"l2_mean": "norm"})
    both = over_seeds(e, KEYS, ["ppl"]).merge(
        over_seeds(n, KEYS, ["norm"]).drop(columns="seeds"), on=KEYS, validate="one_to_one"
    )
    both = every_cell(c, both)
    raw = both[both["cell"] == "perloop-raw"].set_index("size")["norm"]
    kind = controls(c)
    data = pd.DataFrame(
        {
            "size": both["size"],
            "cell": both["cell"],
            "loss": [kind[cell][0] for cell in both["cell"]],
            "readout": [kind[cell][1] for cell in both["cell"]],
            "control": [kind[cell][2].replace(ABSENT, "") for cell in both["cell"]],
            "seeds": both["seeds"].fillna(0).astype(int),
            "failed": [
                c.failed.get(key, 0) for key in zip(both["size"], both["cell"], strict=True)
            ],
            "protocol": "full",
            "ppl": both["ppl"],
            "ppl_ci": both["ppl_ci"],
            "norm": both["norm"],
            "norm_ci": both["norm_ci"],
            "norm_to_raw": both["norm"] / both["size"].map(raw),
        }
    )
    shown = pd.DataFrame(
        {
            "Size": data["size"],
            "Cell": data["cell"],
            "Loss": data["loss"],
            "Readout": data["readout"],
            "Control": data["control"].replace("", ABSENT),
            "Seeds": lead(c, data)["Seeds"],
            "PPL": spreads(data, "ppl"),
            "Norm": spreads(data, "norm"),
            "Norm / raw": data["norm_to_raw"].map(number),
        }
    )
    return Table(data, shown)


def loss_placement(c: Collected) -> Table:
    """CE at each exit: where the loss is placed decides which exits live."""
    e = scored(c)
    e = e[e["k"] <= c.loops]
    mean = over_seeds(e, [*KEYS, "k"], ["ce"])
    data = every_cell(c, mean[[*KEYS, "k", "seeds", "ce", "ce_ci"]], ["k"])
    kind = controls(c)
    text = data.assign(text=spreads(data, "ce", 3))
    shown = wide(text, "text", "k", KEYS).rename(columns=lambda k: f"k = {k}").reset_index()
    seeds = data.groupby(KEYS, sort=False)["seeds"].max().reset_index()
    shown.insert(1, "loss", [kind[cell][0] for cell in shown["cell"]])
    shown = shown.rename(columns=lambda name: str(name).capitalize() if name[0] != "k" else name)
    shown.insert(3, "Seeds", lead(c, seeds)["Seeds"])
    return Table(data.assign(loss=[kind[cell][0] for cell in data["cell"]]), shown)


def depth(c: Collected) -> Table:
    """Every exit under every split and protocol."""
    values = ["ce", "ppl", "word_ppl", "bits_per_byte"]
    keys = ["size", "cell", "k", "split", "protocol"]
    mean = over_seeds(c.frame("exits"), keys, values)
    data = mean[[*keys, "seeds", *(f"{v}{end}" for v in values for end in ("", "_ci"))]]
    leading = ["size", "split", "protocol", "cell"]
    text = mean.assign(
        text=spreads(mean, "ppl"),
        split=pd.Categorical(mean["split"], ["validation", "test"]),
        size=pd.Categorical(mean["size"], c.sizes),
        cell=pd.Categorical(mean["cell"], c.cells),
    )
    table = text.pivot(index=leading, columns="k", values="text").sort_index().fillna(ABSENT)
    # A dagger on depths that no run was trained for: they are extrapolation (L-05).
    table.columns = [f"k = {k}" + ("†" if k > c.loops else "") for k in table.columns]
    names = {name: name.capitalize() for name in leading}
    shown = table.reset_index().astype(str).rename(columns=names)
    deeper = any("†" in name for name in table.columns)
    note = f"† Deeper than the {c.loops} loops of training: extrapolation." if deeper else ""
    return Table(data, shown, note)


def variable_depth(c: Collected) -> Table:
    """Perplexity of each exit beside its measured speed."""
    e = scored(c)
    e = e[e["k"] <= c.loops]
    last = e[e["k"] == c.loops].set_index(["size", "cell", "seed"])["ce"]
    ids = pd.MultiIndex.from_frame(e[["size", "cell", "seed"]])
    e = e.assign(ce_to_last=e["ce"].to_numpy() - last.reindex(ids).to_numpy())
    mean = over_seeds(e, [*KEYS, "k"], ["ppl", "ce_to_last"])
    t = c.frame("throughput")[[*KEYS, "k", "tokens_per_s"]]
    full = t[t["k"] == c.loops].set_index(KEYS)["tokens_per_s"].rename("full").reset_index()
    t = t.merge(full, on=KEYS)
    t = t.assign(speedup=t["tokens_per_s"] / t["full"]).drop(columns="full")
    columns = ["ppl", "ppl_ci", "ce_to_last", "ce_to_last_ci"]
    data = mean[[*KEYS, "k", "seeds", *columns]].merge(t, on=[*KEYS, "k"], how="left")
    rows = []
    for (size, cell), part in data.groupby(KEYS, sort=False):
        by_k = part.set_index("k")
        row = {"Size": size, "Cell": cell}
        for k, at in by_k.iterrows():
            row[f"PPL k = {k}"] = spread(at["ppl"], at["ppl_ci"])
        gain = by_k.loc[1]
        row["CE gain"] = spread(gain["ce_to_last"], gain["ce_to_last_ci"], 3)
        for name, column in (("Tokens/s", "tokens_per_s"), ("Speed-up", "speedup")):
            known = by_k[column].dropna()
            row[name] = " / ".join(number(x) for x in known) if len(known) else ABSENT
        rows.append(row)
    return Table(data, pd.DataFrame(rows), f"Tokens/s and speed-up at k = 1 to {c.loops}.")
