"""The table of units: values against plain loops, and a mark on what cannot be compared."""

import math

import pandas as pd
import pytest

import synthetic
from blindspot.collect.collect import collect
from blindspot.publish import tables


@pytest.fixture(scope="module", params=[1, 0], ids=["lossless", "lossy"])
def made(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    study = synthetic.make_study(folder, steps=200)
    synthetic.write(study)
    for path in folder.rglob("exits.csv"):
        frame = pd.read_csv(path)
        frame["comparable"] = request.param
        frame["unk_rate"] = 0.0 if request.param else 0.0625
        frame.to_csv(path, index=False)
    synthetic.pin(study.results)
    collect(study, folder / "collected")
    tables.write("perplexity", folder / "collected", folder / "tables")
    return study, folder, request.param


def test_one_sum_of_nats_over_three_counts(made):
    study, folder, _ = made
    table = pd.read_csv(folder / "tables" / "perplexity.csv")
    assert list(table["protocol"].unique()) == ["full", "paper", "release-figure"]
    for _, row in table[table["protocol"] == "full"].iterrows():
        own = []
        for run in study.runs:
            if (run.size, run.cell) == (row["size"], row["cell"]):
                path = next((study.results / "runs" / run.name).glob("measure/*/exits.csv"))
                e = pd.read_csv(path).query(
                    f"k == 4 and protocol == 'full' and split == '{row['split']}'"
                )
                own.append(e.iloc[0])
        assert row["seeds"] == len(own) > 0
        for unit, count in [("ppl", "tokens"), ("word_ppl", "words")]:
            assert row[unit] == pytest.approx(
                math.exp(sum(e["nll"] / e[count] for e in own) / len(own))
            )
        bits = sum(e["nll"] / math.log(2) / e["bytes"] for e in own) / len(own)
        assert row["bits_per_byte"] == pytest.approx(bits)


def test_what_is_not_comparable_says_so(made):
    _, folder, comparable = made
    text = (folder / "tables" / "perplexity.md").read_text()
    assert ("†" in text) == ("Not comparable with other tokenizers" in text) == (not comparable)
    lines = [line for line in text.splitlines() if line.startswith("|") and " full " in line]
    assert len(lines) == 2 * 2 * 7
    for line in lines:
        assert "§" not in line
        *_, token, word, bits, unk = [cell.strip() for cell in line.strip("|").split("|")]
        assert not token.endswith("†")
        assert word.endswith("†") == bits.endswith("†") == (not comparable)
        assert unk == ("0.00 %" if comparable else "6.25 %")


@pytest.mark.parametrize("name", ["perplexity", "depth"])
def test_each_number_says_its_protocol(made, name):
    """240,000 targets after 128 tokens, or 40,960 after one: beside the number, not in a key."""
    _, folder, _ = made
    tables.write(name, folder / "collected", folder / "tables")
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (folder / "tables" / f"{name}.md").read_text().splitlines()
        if line.startswith("|")
    ]
    first = header.index("k = 1" if name == "depth" else "Token PPL")
    for row in rows:
        at = dict(zip(header, row, strict=True))
        whole = "240,000" if at["Split"] == "validation" else "270,000"
        of = {"full": (whole, "128 to 256")}.get(at["Protocol"], ("40,960", "1 to 256"))
        assert (at["Targets"], at["Context"]) == of
        numbers = [x for x in row[first : first + 3] if x.strip("† ") != "—"]
        assert numbers and all(("§" in x) == (at["Protocol"] != "full") for x in numbers)
    assert {row[2] for row in rows} == {"full", "paper", "release-figure"}
    note = (folder / "tables" / f"{name}.md").read_text().splitlines()[-1]
    assert "§ Of paper and release-figure: other targets, with other context" in note
    assert "\\S{}" in (folder / "tables" / f"{name}.tex").read_text()
