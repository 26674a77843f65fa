"""The way of the data has one direction: which folder of the package may import which."""

import ast
from pathlib import Path

import pytest

import blindspot

PACKAGE = Path(blindspot.__file__).parent
#: Beside the ground that all may use.
MAY_IMPORT = {
    "declared": set(),
    "config": {"declared"},
    "data": {"config"},
    "lm": {"config"},
    "training": {"declared", "config", "data", "lm"},
    "measure": {"declared", "config", "data", "lm"},
    "collect": {"declared", "config"},
    "publish": {"declared", "config", "collect"},
    "plan": {"declared", "config", "lm", "training", "publish"},
    "audit": {"declared", "config", "data", "lm", "measure", "publish"},
    "export": {"declared", "config", "data", "measure"},
    "share": {"declared", "config"},
    "workflow": set(),
}
GROUND = {
    "errors": set(),
    "settings": set(),
    "files": {"errors", "settings"},
    "provenance": set(),
    "tensorfile": {"errors", "files"},
    "locks": {"errors", "provenance"},
}


def imported(path: Path) -> set[str]:
    """What a file imports of the package, wherever in it: `lm.model`, `errors`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path} has a relative import"
            assert not node.level, f"{path} has a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        parts = [name.split(".") for name in names]
        found |= {".".join(p[1:3]) for p in parts if p[0] == "blindspot" and p[1:]}
    return found


def test_every_module_has_its_place():
    assert {path.parent.name for path in PACKAGE.glob("*/*.py")} == set(MAY_IMPORT)
    # The command line alone knows all.
    assert {path.stem for path in PACKAGE.glob("*.py")} == {*GROUND, "__init__", "cli", "watch"}
    assert not imported(PACKAGE / "watch.py")  # for training loops that know nothing of us


@pytest.mark.parametrize("module", GROUND)
def test_the_ground_knows_no_stage(module):
    names = {name.partition(".")[0] for name in imported(PACKAGE / f"{module}.py")}
    assert names <= GROUND[module]


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_go_one_way(folder):
    may = MAY_IMPORT[folder] | GROUND.keys() | {folder}
    for path in (PACKAGE / folder).rglob("*.py"):
        wrong = {name for name in imported(path) if name.partition(".")[0] not in may}
        assert not wrong, f"{path.relative_to(PACKAGE)} imports {wrong}"
        if folder == "audit":
            assert {n for n in imported(path) if n.startswith("publish")} <= {"publish.style"}
        if folder == "publish":
            assert "tensorfile" not in {n.partition(".")[0] for n in imported(path)}
