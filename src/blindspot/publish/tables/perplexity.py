"""The table of perplexity in every unit: by token, by word of the original, by byte."""

import numpy as np
import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.declared.exits import PROTOCOLS
from blindspot.publish.tables.table import (
    KEYS,
    Table,
    contexts,
    every_cell,
    lead,
    means,
    of_protocol,
    protocol_note,
    spreads,
    weak,
    weak_note,
)
from blindspot.publish.typeset import number

#: Columns of exits.csv, their headers, decimals.
UNITS = {
    "ppl": ("Token PPL", 2),
    "word_ppl": ("Word PPL", 2),
    "bits_per_byte": ("Bits/byte", 4),
}
#: Behind what no other tokenizer's number may stand beside.
MARK = "†"


def perplexity(c: Collected) -> Table:
    """Units side by side at the last loop, for each split and protocol."""
    e = c.frame("exits")
    e = c.last(e)
    more = ["split", "protocol"]
    keys = [*KEYS, *more]
    mean = means(e, keys, ["bits_per_byte"], ["ppl", "word_ppl"])
    # Properties of text and tokenizer: the same for all runs.
    fixed = e.groupby(more, sort=False)[["tokens", "words", "bytes", "unk_rate", "comparable"]]
    data = every_cell(c, mean, more).merge(fixed.first().reset_index(), on=more, how="left")
    data["protocol"] = pd.Categorical(data["protocol"], list(PROTOCOLS))
    data["split"] = pd.Categorical(data["split"], ["validation", "test"])
    data["size"] = pd.Categorical(data["size"], c.sizes)
    data["cell"] = pd.Categorical(data["cell"], c.cells)
    data = data.dropna(subset=more).sort_values(["size", *more, "cell"]).reset_index(drop=True)
    marks = ["" if ok else f" {MARK}" for ok in data["comparable"]]
    start = lead(c, data)
    shown: dict[str, list[str] | pd.Series] = {
        "Size": start["Size"],
        "Split": data["split"].astype(str),
        "Protocol": data["protocol"].astype(str),
        "Targets": [f"{n:,.0f}" for n in data["tokens"]],
        "Context": [contexts(c)[name] for name in data["protocol"]],
        **{key: start[key] for key in ("Cell", "K", "Seeds") if key in start},
    }
    for unit, (header, decimals) in UNITS.items():
        texts = spreads(data, unit, decimals)
        if unit == "ppl":
            shown[header] = weak(c, texts, np.log(data["ppl"]), shown["Split"])
        else:
            shown[header] = [t + m for t, m in zip(texts, marks, strict=True)]
        shown[header] = of_protocol(shown[header], list(data["protocol"]))
    shown["UNK"] = [f"{number(100 * share)} %" for share in data["unk_rate"]]
    notes = [weak_note(shown[UNITS["ppl"][0]]), protocol_note(data["protocol"])]
    if any(marks):
        notes.append(
            f"{MARK} Not comparable with other tokenizers: this one loses text, so its words and "
            f"bytes are those of an easier text."
        )
    return Table(data, pd.DataFrame(shown), " ".join(note for note in notes if note))
