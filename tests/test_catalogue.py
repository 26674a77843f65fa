"""The catalogue: what a study can have, by its config; files and map agree with it."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

from blindspot.config.study import Study
from blindspot.publish import catalogue
from blindspot.publish.claim import claims
from blindspot.publish.item import two_initializations

ROOT = Path(__file__).parent.parent
DEMO, INIT = ROOT / "studies/demo.yaml", ROOT / "studies/init.yaml"

#: Items that a study has by the claims that it makes itself.
CAUSES = {"dose", "laws", "remedies", "horizon"}


def load(*overlays: Path) -> Study:
    return Study.load(ROOT / "config.yaml", overlays)


def test_the_init_study_is_the_demo_under_two_initializations():
    demo, init = load(DEMO), load(DEMO, INIT)
    assert init.config.study == "init"
    assert init.config.training == demo.config.training
    assert init.config.sizes["0.1m"] == demo.config.sizes["0.1m"]
    by_cell = {run.cell: run.spec for run in init.runs if run.seed == 42}
    assert len(by_cell) == 8 and len(init.runs) == 24
    for cell in ("perloop-rms", "perloop-raw", "perloop-rms-penalty", "terminal-rms"):
        default, small = by_cell[cell], by_cell[f"{cell}-std0.02"]
        assert (default.model.init_std, small.model.init_std) == (None, 0.02)
        alike = small.model.model_copy(update={"init_std": None})
        # Nothing else differs: the hashes are those of the demo's own runs.
        assert small.model_copy(update={"model": alike}).hash == default.hash
        assert default.hash in {run.spec.hash for run in demo.runs}


def test_what_a_study_cannot_have_is_no_target():
    for items in (catalogue.TABLES, catalogue.FIGURES):
        of_init = catalogue.of(items, load(DEMO, INIT).config)
        assert set(items) - set(of_init) == CAUSES
        for study in (load(), load(DEMO)):
            left_out = set(items) - set(catalogue.of(items, study.config))
            assert left_out == {"initialization", *CAUSES}
        for name in ("laws", "horizon"):
            study = load(ROOT / f"studies/{name}.yaml")
            assert set(catalogue.of(items, study.config)) & CAUSES == {name}


def test_two_initializations_are_those_of_one_cell():
    """Another cell with another initialization is not a partner; one named for the default is."""
    base = {"loss": "per-loop", "readout": "rms"}

    def asked(**cells: dict) -> bool:
        study = Study.load(ROOT / "config.yaml", override={"cells": cells})
        return two_initializations(study.config)

    assert not asked(a=base, b={"loss": "per-loop", "readout": "raw", "init_std": 0.02})
    assert not asked(a=base, b=base | {"init_std": "default"})
    assert asked(a=base, b=base | {"init_std": 0.02})


def test_every_item_reads_what_is_collected():
    for item in (*catalogue.TABLES.values(), *catalogue.FIGURES.values(), catalogue.CLAIMS):
        assert set(item.reads) <= set(catalogue.COLLECTED)


def test_the_map_names_every_table_and_figure():
    text = (ROOT / "docs/map.md").read_text(encoding="utf-8")
    columns = (ROOT / "docs/columns.md").read_text(encoding="utf-8")
    for kind, items in (("tables", catalogue.TABLES), ("figures", catalogue.FIGURES)):
        for name in items:
            # What the paper does not have may stand in the generated page alone.
            there = f"`{kind}/{name}`" in text or f"{kind[:-1]} `{name}`" in columns
            assert there, name
    for name in catalogue.COLLECTED:
        assert f"**`{name}.csv`**" in columns, name


def test_the_map_names_every_claim():
    """Some by a pattern, which stands for at least one."""
    text = (ROOT / "docs/map.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z0-9*-]+)`", text))
    for name in claims():
        assert any(fnmatchcase(name, pattern) for pattern in named), name
    for pattern in named:
        assert "*" not in pattern or any(fnmatchcase(n, pattern) for n in claims()), pattern
