"""A folder from which a stranger redraws every figure: results, config, workflow, code of a study.

`snakemake figures` in it needs no other file. It holds neither a text of a corpus nor weights.
"""

import shutil
from pathlib import Path
from typing import Any

import yaml

from blindspot.config.dataspec import FileTokenizer, LocalCorpus
from blindspot.config.study import Study
from blindspot.errors import BlindspotError
from blindspot.files import write_text

#: What is taken of the checkout, where it is there.
CODE = (
    "workflow", "envs", "src", "slurm", "packages/snakemake-executor-plugin-submitit",
    "pyproject.toml", "Makefile", "LICENSE", "CITATION.cff", "CHANGELOG.md",
)  # fmt: skip
IGNORED = shutil.ignore_patterns(
    "__pycache__", "*.egg-info", "tests", ".snakemake", "build", "dist"
)
README = """# Study {study}: results, and what redraws them

`results/{study}/` is the study: its figures, tables, ledger of claims, the CSV files behind them
and the record of every run. `config.yaml` is its config, `src/` and `workflow/` the code that was
beside it when this archive was made. `ro-crate-metadata.json` says the same to machines: what ran,
with which code, on what, giving what.

To draw every table and figure again (no GPU, no corpus, no torch; Python 3.11 or later):

    python3 -m venv .venv
    .venv/bin/pip install -r envs/requirements-publish.txt && .venv/bin/pip install --no-deps -e .
    rm -r results/{study}/figures results/{study}/collected
    .venv/bin/snakemake --cores 1 figures tables claims

With the pinned versions the figures are the same, byte for byte.
"""


def lay_out(study: Study, values: dict[str, Any], checkout: Path, out: Path) -> None:
    """Write the archive of a study into the new folder `out`.

    `values`: its config as it was merged from files, not validated. `checkout`: where the workflow
    and its code are. Raises `BlindspotError` where code is not there, or the study has no figures.
    """
    figures = study.results / "figures"
    if not any(figures.glob("*.pdf")):
        raise BlindspotError(f"{figures}: no figures to archive; first run: snakemake figures")
    for needed in ("workflow/Snakefile", "src/blindspot", "envs"):
        if not (checkout / needed).exists():
            raise BlindspotError(
                f"{checkout / needed}: not there, and an archive needs it; run this at the top of "
                f"a clone, or name it with --checkout"
            )
    out.mkdir(parents=True)
    shutil.copytree(study.results, out / "results" / study.config.study, ignore=IGNORED)
    for name in CODE:
        source = checkout / name
        if source.is_dir():
            shutil.copytree(source, out / name, ignore=IGNORED)
        elif source.exists():
            shutil.copy2(source, out / name)
    own = own_config(study, values)
    write_text(out / "config.yaml", yaml.safe_dump(own, sort_keys=False, allow_unicode=True))
    write_text(out / "README.md", README.format(study=study.config.study))


def own_config(study: Study, values: dict[str, Any]) -> dict[str, Any]:
    """The study's config in one file. What is local to a machine is left out, or pinned."""
    own = values | {"results": "results", "work": "work"}
    for key in ("reuse", "runs"):
        own.pop(key, None)
    corpus, tokenizer = study.config.corpus, study.config.tokenizer
    if isinstance(corpus, LocalCorpus):
        texts = {k: "not-in-this-archive.txt" for k in ("train", "validation", "test")}
        shares = {k: v for k, v in corpus.shares.items() if k in texts}
        own["corpus"] = corpus.model_dump(mode="json") | texts | shares
    if isinstance(tokenizer, FileTokenizer):
        own["tokenizer"] = tokenizer.model_dump(mode="json") | {"path": "not-in-this-archive.json"}
    return own
