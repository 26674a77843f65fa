"""The code behind what is published: the modules that a module imports, and those that they import.

Collecting, tabulating and drawing are cheap, so any change of their code makes anew what it made.
(What trains and measures has revisions instead.) Files are read, nothing is imported.
"""

import ast
from functools import cache
from pathlib import Path

from blindspot.errors import BlindspotError
from blindspot.settings import digest

PACKAGE = Path(__file__).parent.parent
#: What each publishing rule runs.
MODULES = {
    "collect": "blindspot.collect.collect",
    "table": "blindspot.publish.tables",
    "figure": "blindspot.publish.figures",
    "claims": "blindspot.publish.claims",
    "readme": "blindspot.publish.showcase",
    # Snakemake's own report: the captions.
    "report": "blindspot.publish.showcase",
}
#: Packages that load their modules by name: the catalogue says which one makes an item.
BY_NAME = ("blindspot.publish.tables", "blindspot.publish.figures")


def refuse_other_checkout(folder: Path, package: Path = PACKAGE) -> None:
    """Refuse to run the rules of `folder` with the code of another checkout: an environment that
    was copied with a clone leads back to the original, whose code would run under this name."""
    own, other = folder.resolve() / "src" / package.name, package.resolve()
    is_checkout = (other.parents[1] / "pyproject.toml").exists() and other.parent.name == "src"
    if own.is_dir() and is_checkout and own != other:
        raise BlindspotError(
            f"the workflow is that of {folder.resolve()}, but the blindspot that Python found is "
            f"that of {other.parents[1]}. Run `make env` here, then use .venv/bin/snakemake; to "
            f"run the code beside this workflow in any environment, set PYTHONPATH={own.parent}"
        )


@cache
def of_rule(rule: str) -> str:
    """The digest of the code that a publishing rule runs."""
    files = closure(MODULES[rule])
    return digest({path.relative_to(PACKAGE).as_posix(): _text(path) for path in files})


def closure(module: str, package: Path = PACKAGE) -> list[Path]:
    """The files of a module and, through all imports, of the modules of `package` it may run;
    wherever in a module an import stands, but not those for type checkers alone. With a module
    goes the data file of its name (claims.py: claims.yaml).

    Sorted. Raises `FileNotFoundError` for a module that is not there.
    """
    found: dict[str, list[Path]] = {}
    todo = [module]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        path = _file(name, package)
        if path is None:
            raise FileNotFoundError(f"{package}: no module {name}")
        # Without an ending that Python would make beside it.
        beside = [p for p in path.parent.glob(f"{path.stem}.*") if p.suffix not in (".pyc", ".pyi")]
        found[name] = [path] if path.stem == "__init__" else beside
        if name in BY_NAME:
            todo += [f"{name}.{p.stem}" for p in path.parent.glob("[!_]*.py")]
        # A module's packages run before it.
        parents = name.split(".")[:-1]
        todo += [".".join(parents[: n + 1]) for n in range(len(parents))]
        todo += [m for m in _imports(path, package.name) if _file(m, package) is not None]
    return sorted(path for files in found.values() for path in files)


def _file(name: str, package: Path) -> Path | None:
    """The file of a module `package.a.b`; None where there is none (a name in a module, say)."""
    path = package.joinpath(*name.split(".")[1:])
    for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
        if file.is_file():
            return file
    return None


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _imports(path: Path, package: str) -> tuple[str, ...]:
    """What the file imports of `package`, as if every imported name were a module."""
    found: list[str] = []
    todo: list[ast.AST] = [ast.parse(_text(path), str(path))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            todo += node.orelse
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            # Statements alone: half the time of a look at every expression.
            for part in ("body", "orelse", "finalbody", "handlers", "cases"):
                members = getattr(node, part, [])  # a lambda's body is no list
                todo += members if isinstance(members, list) else []
    return tuple(name for name in found if name.split(".")[0] == package)
