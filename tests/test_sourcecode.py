"""Publishing is redone when its code changes: import closures against Python's own importing."""

import subprocess
import sys
from pathlib import Path

import pytest

from blindspot.errors import BlindspotError
from blindspot.publish import catalogue
from blindspot.publish.figures import DRAWN
from blindspot.publish.tables import MADE
from blindspot.workflow import sourcecode
from blindspot.workflow.sourcecode import MODULES, PACKAGE, closure

LOADED = """
import sys, importlib
importlib.import_module(sys.argv[1])
for name, module in sorted(sys.modules.items()):
    if name.split(".")[0] == "blindspot":
        print(module.__file__)
"""


@pytest.mark.parametrize("module", sorted(set(MODULES.values())))
def test_a_closure_holds_every_module_that_python_loads(module):
    """What importing loads is in it; what it has beyond that, some function imports."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, module], capture_output=True, text=True, check=True
    )
    loaded = {Path(line) for line in done.stdout.split()}
    found = {path for path in closure(module) if path.suffix == ".py"}
    assert loaded <= found
    # No training code: editing it is no reason to draw again.
    assert not {"model.py", "engine.py", "train.py", "objective.py"} & {p.name for p in found}


def test_holes_that_were_there_are_closed():
    def names(rule, folder):
        where = PACKAGE / folder
        found = [p for p in closure(MODULES[rule]) if p.is_relative_to(where)]
        return {p.relative_to(where).as_posix() for p in found}

    assert {"typeset.py", "claims.yaml", "quantities.py"} <= names("claims", "publish")
    assert {"tables/table.py", "matched.py", "catalogue.yaml"} <= names("table", "publish")
    assert "stats.py" in names("table", "collect")
    assert {"style.py", "figures/panels.py"} <= names("figure", "publish")
    assert "stats.py" in names("figure", "collect")
    assert {"showcase.py", "summary.py", "style.py", "tables/results.py"} <= names(
        "readme", "publish"
    )
    assert {"records.py", "stats.py"} <= names("collect", "collect")
    assert {"columns.py", "norms.py", "training.py"} <= names("collect", "declared")
    assert "flops.py" in names("collect", "config")


def test_how_figures_look_is_nothing_to_tables():
    assert PACKAGE / "publish/style.py" not in closure(MODULES["table"])


def test_modules_that_are_loaded_by_name_are_in_it():
    for rule, items in (("table", catalogue.TABLES), ("figure", catalogue.FIGURES)):
        found = {path.relative_to(PACKAGE).as_posix() for path in closure(MODULES[rule])}
        for item in items.values():
            assert f"publish/{rule}s/{item.made_by.partition('.')[0]}.py" in found, item.name
            assert callable({"table": MADE, "figure": DRAWN}[rule][item.name])


@pytest.fixture
def package(tmp_path):
    files = {
        "__init__.py": "",
        "a.py": "from p.sub import b\nimport os\n",
        "sub/__init__.py": "from p import d\n",
        "sub/b.py": "def f():\n    if 1:\n        import p.c\n    from numpy import p\n",
        "c.py": "try:\n    x = 1\nexcept ImportError:\n    from p.e import name\n",
        "c.yaml": "1",
        "d.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p import g\n",
        "e.py": "name = 1\n",
        "f.py": "from p import a\n",
        "g.py": "",
    }
    for name, text in files.items():
        path = tmp_path / "p" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path / "p"


def test_the_closure_of_a_small_package_by_hand(package):
    found = [path.relative_to(package).as_posix() for path in closure("p.a", package)]
    assert found == [
        "__init__.py", "a.py", "c.py", "c.yaml", "d.py", "e.py", "sub/__init__.py", "sub/b.py"
    ]  # fmt: skip
    with pytest.raises(FileNotFoundError, match=r"no module p\.z"):
        closure("p.z", package)


def test_each_file_of_a_closure_is_in_the_digest(monkeypatch):
    """Every one of them in turn, edited: the digests of exactly the rules that have it move."""
    rules = ("claims", "figure")
    before = {rule: sourcecode.of_rule.__wrapped__(rule) for rule in rules}
    whole = sourcecode._text
    publish = ("publish/typeset.py", "publish/style.py", "publish/claims.yaml")
    for name in (*publish, "collect/stats.py", "training/train.py"):
        edited = PACKAGE / name
        assert edited.exists()

        def other(path, edited=edited):
            return whole(path) + ("# edited\n" if path == edited else "")

        monkeypatch.setattr(sourcecode, "_text", other)
        for rule in rules:
            has = edited in closure(MODULES[rule])
            assert (sourcecode.of_rule.__wrapped__(rule) != before[rule]) == has, (rule, name)
        monkeypatch.undo()
    assert before["claims"] != before["figure"]


def test_the_code_of_another_checkout_is_refused(tmp_path):
    """A clone that was copied with its environment imports the original's code."""
    for name in ("original", "copy"):
        (tmp_path / name / "src" / "blindspot").mkdir(parents=True)
        (tmp_path / name / "pyproject.toml").touch()
    original, copy = tmp_path / "original", tmp_path / "copy"
    with pytest.raises(BlindspotError, match=r"make env") as error:
        sourcecode.refuse_other_checkout(copy, original / "src" / "blindspot")
    assert str(original) in str(error.value) and str(copy) in str(error.value)
    (tmp_path / "link").symlink_to(copy)
    installed = tmp_path / ".venv/lib/site-packages/blindspot"
    installed.mkdir(parents=True)
    for package in (copy / "src/blindspot", tmp_path / "link/src/blindspot", installed):
        sourcecode.refuse_other_checkout(copy, package)
        sourcecode.refuse_other_checkout(tmp_path / "link", package)
    # A copy of the workflow alone, without code.
    (tmp_path / "alone").mkdir()
    sourcecode.refuse_other_checkout(tmp_path / "alone", original / "src" / "blindspot")
