"""The model card of an exported run: what it is, what was measured, how to use it."""

import csv
import math
from pathlib import Path
from typing import Any

import yaml

from blindspot.measure.finished import Finished

BODY = """
# {name}

A looped language model of the [blindspot](https://arxiv.org/abs/2606.24898) study: one stack
(depth {layers}, width {d_model}) applied {loops} times; {parameters:,} parameters. It was trained
with {objective} and is read through {readout}{interloop}, on {corpus}, seed {seed}. It is an object
of study, small and undertrained, and no use as a language model.

{measured}
## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # this one
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
ids = tokenizer("The state of", return_tensors="pt").input_ids
model(ids).logits                               # after {loops} loops
model(ids, loops=2).logits                      # read after loop 2
model(ids, output_exits=True).exits             # read after each loop
model.generate(ids, loops=2, max_new_tokens=20)
model.generate(ids, halt=0.5, max_new_tokens=20)  # a token stops looping once it is sure
```

A token is sure once the probability of its best next token leads the second's by `halt`; the loops
that are left are then not computed. The model reads at most {context} tokens and has no cache. A
stream of the study begins with the token `bos_token`, which the tokenizer does not add.

`model.safetensors` has the run's specification and hash ({hash}) in its metadata, under
`blindspot`.
"""
READOUTS = {
    "rms": "RMSNorm at every loop",
    "layernorm": "LayerNorm at every loop",
    "raw": "the raw state",
    "power": "the state divided by a power of its RMS",
    "final-only-rms": "the raw state before the last loop and RMSNorm at it",
}


def render(run: Finished, parameters: int) -> str:
    """README.md."""
    spec, rows = run.spec, exits(run.folder)
    objective = {
        "terminal": "cross-entropy after the last loop",
        "per-loop": "the mean cross-entropy of all loops",
    }[spec.objective.loss]
    if spec.objective.penalty is not None:
        objective += " and a penalty on the state's norm"
    norm = {"none": "", "rms": ", normalized between loops"}
    interloop = norm.get(spec.model.interloop, ", normalized between loops with a trained gain")
    body = BODY.format(
        name=run.name,
        parameters=parameters,
        objective=objective,
        readout=READOUTS[spec.model.readout],
        interloop=interloop,
        corpus=run.tokens.meta["corpus"],
        measured=_table(rows) if rows else "It has not been measured.\n",
        seed=spec.seed,
        hash=spec.hash,
        layers=spec.model.layers,
        d_model=spec.model.d_model,
        loops=spec.model.loops,
        context=spec.model.context,
    )
    head = yaml.safe_dump(metadata(run, rows), sort_keys=False, allow_unicode=True)
    return f"---\n{head}---\n{body}"


def exits(folder: Path) -> list[dict[str, str]]:
    """Rows of the run's newest exits.csv, protocol `full`; none where it was not measured."""
    found = sorted(folder.rglob("exits.csv"), key=lambda path: path.stat().st_mtime)
    if not found:
        return []
    with open(found[-1], encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["protocol"] == "full"]


def metadata(run: Finished, rows: list[dict[str, str]]) -> dict[str, Any]:
    """The card's head; `model-index` has the perplexity of each exit."""
    head: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "license": "mit",
        "language": ["en"],
        "tags": ["looped-transformer", "blindspot"],
    }
    finite = [row for row in rows if math.isfinite(float(row["ppl"]))]
    splits = list(dict.fromkeys(row["split"] for row in finite))
    if not splits:
        return head
    corpus = str(run.tokens.meta["corpus"])
    results = [
        {
            "task": {"type": "text-generation"},
            "dataset": {"name": corpus, "type": corpus, "split": split},
            "metrics": [
                {
                    "type": "perplexity",
                    "name": f"perplexity per token of its tokenizer, exit {row['k']}",
                    "value": float(row["ppl"]),
                }
                for row in finite
                if row["split"] == split
            ],
        }
        for split in splits
    ]
    return head | {"model-index": [{"name": run.name, "results": results}]}


def _table(rows: list[dict[str, str]]) -> str:
    lines = ["| split | exit | cross-entropy, nats | perplexity |", "|---|---:|---:|---:|"]
    for row in rows:
        more = "" if int(row["k"]) <= int(row["trained_k"]) else " (beyond training)"
        numbers = f"{float(row['ce']):.4f} | {float(row['ppl']):.4g}"
        lines.append(f"| {row['split']} | {row['k']}{more} | {numbers} |")
    said = "Measured, per token of its tokenizer, every token of a split scored once:"
    return "\n".join([said, "", *lines, ""])
