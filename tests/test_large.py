"""studies/1.4b.yaml: planned and priced as it is, and a shrunken copy of it trained."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from blindspot.config.flops import parameters, training_per_token
from blindspot.config.study import Study
from blindspot.plan.forecast import Forecast
from studies import checkout, environment
from toys import ROOT

FILE = ROOT / "studies" / "1.4b.yaml"


@pytest.fixture(scope="module")
def large() -> Study:
    return Study.load(ROOT / "config.yaml", [FILE])


def test_it_is_what_it_says(large: Study):
    assert len(large.runs) == 4 and {run.seed for run in large.runs} == {42}
    spec = large.runs[0].spec
    # 16 d^2 a layer and two gains; embedding of tokens and of positions; the readout's gain.
    by_hand = 20 * (16 * 2048**2 + 2 * 2048) + (50257 + 1024 + 1) * 2048
    assert parameters(spec.model) == by_hand and 1.4e9 < by_hand < 1.5e9
    tokens = (spec.training.steps or 0) * spec.batch * spec.windows.length
    limit = large.config.corpus.limit  # type: ignore[union-attr]
    assert tokens < limit.tokens * 0.998 < 1.05 * tokens  # once through, and no more fetched
    assert large.config.sizes["1.4b"].gpus == 8


def snakemake(where: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]
    done = subprocess.run(
        command, cwd=where, env=environment(where), capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def test_it_plans_and_forecasts(large: Study, tmp_path: Path):
    said = snakemake(checkout(tmp_path), "-n", "all", "--configfile", "studies/1.4b.yaml")
    assert "4 runs: 4 to train and measure" in said
    places = {"work": str(tmp_path / "work"), "results": str(tmp_path / "results")}
    rows = Forecast(Study.load(ROOT / "config.yaml", [FILE], places), cores=1).rows()
    assert [row.cell for row in rows] == list(large.config.cells)
    for row, run in zip(rows, large.runs, strict=True):
        spec = run.spec
        tokens = (spec.training.steps or 0) * spec.batch * spec.windows.length
        trained = training_per_token(spec.model, spec.objective) * tokens
        # Validation is beside it; GPU-seconds at the share of the peak that is assumed.
        assert row.flops == pytest.approx(trained, rel=0.05)
        assert row.train == pytest.approx(row.flops / (0.35 * 989e12), rel=0.1)


#: What differs on a laptop: where the text is, sizes, steps. All else is the file's.
SHRUNKEN: dict[str, Any] = {
    "study": "shrunken",
    "device": "cpu",
    "tokenizer": {"kind": "bpe", "vocab_size": 300},
    "windows": {"length": 32, "stride": 32},
    "sizes": {"1.4b": {"d_model": 16, "layers": 2, "heads": 2, "batch": 8, "gpus": 2}},
    "training": {"steps": 12, "log_every": 4, "validate_every": 6, "validation_windows": 8,
                 "precision": "float32"},
    "measurement": {"min_context": 16},
}  # fmt: skip


@pytest.mark.slow
def test_a_shrunken_copy_trains_on_two_ranks(tmp_path: Path):
    where = checkout(tmp_path / "here")
    folder = hub_layout(tmp_path / "fineweb")
    corpus = yaml.safe_load(FILE.read_text())["corpus"]
    small = corpus | {"path": str(folder), "validation": 0.1, "test": 0.1}
    small["limit"] = {"tokens": 30_000}
    overlay = where / "shrunken.yaml"
    overlay.write_text(yaml.safe_dump(SHRUNKEN | {"corpus": small}))
    study = Study.load(ROOT / "config.yaml", [FILE, overlay])
    run = next(run for run in study.runs if run.cell == "perloop-rms")
    # What the large one is, this is, but for its size.
    assert run.spec.training.schedule != "constant" and study.config.execution.recompute
    target = f"results/shrunken/runs/{run.name}/run.json"
    snakemake(where, target, "--configfile", "studies/1.4b.yaml", "shrunken.yaml")
    record = json.loads((where / target).read_text())
    assert record["steps"] == 12 and record["provenance"]["execution"]["ranks"] == 2
    (tokens,) = (where / "work/tokens").glob("*/tokens.json")
    splits = json.loads(tokens.read_text())["splits"]
    assert set(splits) == {"train", "validation", "test"}
    # The limit ended the stream: four bytes a token were read, of far more that is there.
    assert sum(split["bytes"] for split in splits.values()) == pytest.approx(120_000, rel=0.05)


def hub_layout(folder: Path) -> Path:
    """A folder as the hub lays FineWeb out: a card, and a train split alone in several files, with
    columns besides the text."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    words = (ROOT / "LICENSE").read_text().split()
    rng = np.random.default_rng(0)
    for part in range(3):
        texts = [" ".join(rng.choice(words, 60)) for _ in range(400)]
        table = pyarrow.table(
            {"text": texts, "id": [str(i) for i in range(400)], "token_count": [60] * 400}
        )
        path = folder / "sample" / "10BT" / f"{part:03d}_00000.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table, path)
    card = ["---", "configs:", "- config_name: sample-10BT", "  data_files:", "  - split: train"]
    card += ["    path: sample/10BT/*", "---", ""]
    (folder / "README.md").write_text("\n".join(card))
    return folder
