"""Tables of perplexity: at the last loop, at each exit, and with the speed of each exit."""

import numpy as np
import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.publish.speeds import speeds
from blindspot.publish.tables.table import (
    KEYS,
    Table,
    contexts,
    controls,
    every_cell,
    lead,
    means,
    of_protocol,
    protocol_note,
    spreads,
    weak,
    weak_note,
    wide,
)
from blindspot.publish.typeset import ABSENT, number

#: What stands in the CSV of a mean of logarithms.
ENDS = ("", "_low", "_high")


def main(c: Collected) -> Table:
    """Perplexity and norm at the last loop: the 2 x 2 of loss and readout, and the controls."""
    e, n = c.exits(), c.frame("norms")
    e = c.last(e)
    n = c.last(n[n["split"] == "validation"]).rename(columns={"l2_mean": "norm"})
    both = means(e, KEYS, [], ["ppl"]).merge(
        means(n, KEYS, [], ["norm"]).drop(columns="seeds"), on=KEYS, validate="one_to_one"
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
            "loops": c.own(both),
            "seeds": both["seeds"].fillna(0).astype(int),
            **{
                name: [len(of.get(key, ())) for key in zip(both["size"], both["cell"], strict=True)]
                for name, of in (("failed", c.failures), ("outliers", c.outliers))
            },
            "protocol": "full",
            **{f"{v}{end}": both[f"{v}{end}"] for v in ("ppl", "norm") for end in ENDS},
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
            **{key: x for key, x in lead(c, data).items() if key in ("K", "Seeds")},
            "PPL": weak(c, spreads(data, "ppl"), np.log(data["ppl"]), ["validation"] * len(data)),
            "Norm": spreads(data, "norm"),
            "Norm / raw": data["norm_to_raw"].map(number),
        }
    )
    return Table(data, shown, weak_note(shown["PPL"]))


def loss_placement(c: Collected) -> Table:
    """CE at each exit: where the loss is placed decides which exits live."""
    e = c.trained(c.exits())
    data = every_cell(c, means(e, [*KEYS, "k"], ["ce"]), ["k"])
    kind = controls(c)
    text = data.assign(text=weak(c, spreads(data, "ce", 3), data["ce"], ["validation"] * len(data)))
    shown = wide(text, "text", "k", KEYS).rename(columns=lambda k: f"k = {k}").reset_index()
    seeds = data.groupby(KEYS, sort=False)["seeds"].max().reset_index()
    shown.insert(1, "loss", [kind[cell][0] for cell in shown["cell"]])
    shown = shown.rename(columns=lambda name: str(name).capitalize() if name[0] != "k" else name)
    shown.insert(3, "Seeds", lead(c, seeds)["Seeds"])
    data = data.assign(loss=[kind[cell][0] for cell in data["cell"]])
    return Table(data, shown, weak_note(text["text"]))


def depth(c: Collected) -> Table:
    """Every exit under every split and protocol."""
    keys = ["size", "cell", "k", "split", "protocol"]
    e = c.frame("exits")
    data = means(e, keys, ["ce", "bits_per_byte"], ["ppl", "word_ppl"])
    # Properties of the text: the same for all runs and depths.
    targets = e.groupby(["split", "protocol"])["tokens"].first().to_dict()
    pairs = list(zip(data["split"], data["protocol"], strict=True))
    data.insert(5, "tokens", [targets[pair] for pair in pairs])
    marked = weak(c, spreads(data, "ppl"), data["ce"], data["split"])
    text = data.assign(
        text=of_protocol(marked, data["protocol"]),
        split=pd.Categorical(data["split"], ["validation", "test"]),
        size=pd.Categorical(data["size"], c.sizes),
        cell=pd.Categorical(data["cell"], c.cells),
        targets=data["tokens"].map("{:,}".format),
        context=data["protocol"].map(contexts(c)),
    )
    leading = ["size", "split", "protocol", "targets", "context", "cell"]
    table = text.pivot(index=leading, columns="k", values="text").fillna(ABSENT)
    table = table.sort_index(level=["size", "split", "protocol", "cell"])
    # A dagger on depths that no run was trained for: they are extrapolation (L-05).
    own = np.array([c.loops_of[cell] for cell in table.index.get_level_values("cell")])
    for k in table.columns:
        beyond = (own < k) & (table[k] != ABSENT)
        table[k] = table[k].where(~beyond, table[k] + " †")
    table.columns = [f"k = {k}" for k in table.columns]
    names = {name: name.capitalize() for name in leading}
    shown = table.reset_index().astype(str).rename(columns=names)
    deeper = (e["k"] > c.own(e)).any()
    loops = "cell's own" if c.depth == "K" else c.depth
    notes = [f"† Deeper than the {loops} loops of training: extrapolation." if deeper else ""]
    notes += [weak_note(text["text"]), protocol_note(data["protocol"])]
    return Table(data, shown, " ".join(notes).strip())


def variable_depth(c: Collected) -> Table:
    """Perplexity of each exit beside its measured speed."""
    e = c.trained(c.exits())
    last = c.last(e).set_index(["size", "cell", "seed"])["ce"]
    ids = pd.MultiIndex.from_frame(e[["size", "cell", "seed"]])
    e = e.assign(ce_to_last=e["ce"].to_numpy() - last.reindex(ids).to_numpy())
    mean = means(e, [*KEYS, "k"], ["ce_to_last"], ["ppl"])
    t = speeds(c)[[*KEYS, "k", "tokens_per_s"]]
    full = c.last(t).set_index(KEYS)["tokens_per_s"].rename("full").reset_index()
    t = t.merge(full, on=KEYS)
    t = t.assign(speedup=t["tokens_per_s"] / t["full"]).drop(columns="full")
    data = mean.merge(t, on=[*KEYS, "k"], how="left")
    texts = pd.DataFrame(
        {
            "ppl": weak(c, spreads(data, "ppl"), np.log(data["ppl"]), ["validation"] * len(data)),
            "gain": spreads(data, "ce_to_last", 3),
        },
        index=data.index,
    )
    rows = []
    for (size, cell), part in data.groupby(KEYS, sort=False):
        by_k = part.set_index("k")
        row = {"Size": size, "Cell": cell}
        for k, text in zip(part["k"], texts.loc[part.index, "ppl"], strict=True):
            row[f"PPL k = {k}"] = text
        row["CE gain"] = texts.loc[part.index[part["k"] == 1][0], "gain"]
        for name, column in (("Tokens/s", "tokens_per_s"), ("Speed-up", "speedup")):
            known = by_k[column].dropna()
            row[name] = " / ".join(number(x) for x in known) if len(known) else ABSENT
        rows.append(row)
    notes = [f"Tokens/s and speed-up at k = 1 to {c.depth}.", weak_note(texts["ppl"])]
    shown = pd.DataFrame(rows)
    ends = ["CE gain", "Tokens/s", "Speed-up"]
    shown = shown[[name for name in shown if name not in ends] + ends].fillna(ABSENT)
    return Table(data, shown, " ".join(notes).strip())
