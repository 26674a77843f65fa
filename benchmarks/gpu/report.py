"""Where the numbers come from, and the short table at the end."""

import argparse
import csv
import hashlib
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from blindspot import provenance as origin
from blindspot.files import sha256_file, write_text

ROOT = Path(__file__).parents[2]
#: What nvidia-smi is asked; clocks before anything ran.
ASKED = (
    "name",
    "driver_version",
    "memory.total",
    "power.limit",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "clocks.max.mem",
    "temperature.gpu",
    "utilization.gpu",
)
Row = dict[str, str]


def provenance(given: argparse.Namespace) -> dict[str, Any]:
    """Commit, a digest of the code that ran (where git is missing, too), versions and machine."""
    import torch

    versions = {
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "triton": _triton(),
    }
    found = origin.collect()
    found["versions"] |= {name: one for name, one in versions.items() if one}
    tokens = given.tokens and sha256_file(given.tokens / "tokens.json")
    return {
        "provenance": found,
        "started": origin.now(),
        "code_sha256": code_digest(),
        "processor": origin.processor(),
        "gpus": gpus(),
        "tokens_json_sha256": tokens,
    }


def _triton() -> str | None:
    try:
        return version("triton")
    except PackageNotFoundError:
        return None


def code_digest() -> str:
    """SHA-256 over names and contents of the Python files of src/blindspot and benchmarks/gpu, and
    of the reference model."""
    files = [*ROOT.glob("src/blindspot/**/*.py"), *ROOT.glob("benchmarks/gpu/*.py")]
    total = hashlib.sha256()
    for path in sorted([*files, ROOT / "tests/reference_model.py"]):
        total.update(f"{path.relative_to(ROOT).as_posix()} {sha256_file(path)}\n".encode())
    return total.hexdigest()


def gpus() -> list[Row]:
    """What nvidia-smi says of each GPU; none where it is missing."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = done.stdout.strip().splitlines() if done.returncode == 0 else []
    return [dict(zip(ASKED, (w.strip() for w in line.split(",")), strict=False)) for line in lines]


def rows(folder: Path, name: str) -> list[Row]:
    """The rows of a CSV; none where the section did not get there."""
    path = folder / f"{name}.csv"
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def summary(folder: Path, record: dict[str, Any]) -> tuple[str, bool]:
    """Write summary.md; its text, and whether all that was checked is right."""
    checked = [row for row in rows(folder, "correctness") if row["ok"]]
    repeat = [row for row in rows(folder, "repeat") if row["deterministic"] == "1"]
    wrong = [r for r in checked if r["ok"] != "1"] + [r for r in repeat if r["equal"] != "1"]
    machine = record["gpus"][0]["name"] if record["gpus"] else record["processor"]
    versions = record["provenance"]["versions"]
    lines = [
        f"# {machine or platform.machine()}",
        "",
        f"torch {versions.get('torch')}, CUDA {versions.get('cuda')}, commit "
        f"{record['provenance']['commit']}{' (dirty)' if record['provenance']['dirty'] else ''}, "
        f"started {record['started']}, {record['seconds']} s",
        "",
    ]
    for name, one in record["sections"].items():
        lines.append(f"- {name}: {one['outcome']}")
        kept = [r for r in rows(folder, f"notes-{name}") if r["outcome"] != "done"]
        lines += [f"  - {r['case']}: {r['outcome']}" for r in kept]
    lines += ["", f"Correct: {len(checked) + len(repeat) - len(wrong)} of "]
    lines[-1] += f"{len(checked) + len(repeat)} checks."
    lines += [f"WRONG: {' '.join(r.values())}" for r in wrong]
    square = [row for row in rows(folder, "matmul") if row["name"] == "square"]
    lines += [f"bf16 products of {r['m']} squared: {_round(r['tflops'])} TFLOP/s" for r in square]
    lines += _table(folder, "attention", ("size", "precision", "dropout", "implementation"))
    lines += _table(folder, "speed", _SPEED)
    lines += _table(folder, "frontier", ("architecture", "k", "tokens_per_s"))
    lines += _table(folder, "runs", ("run", "steps", "tokens_per_s", "compiled", "finished"))
    lines += _by_depth(folder)
    text = "\n".join(lines) + "\n"
    write_text(folder / "summary.md", text)
    return text, not wrong


_SPEED = (
    "size",
    "cell",
    "path",
    "tokens_per_s",
    "mfu_sheet",
    "mfu_measured",
    "memory_mib",
    "speedup_float32",
    "speedup_bf16",
)


def _table(folder: Path, name: str, columns: tuple[str, ...]) -> list[str]:
    found = rows(folder, name)
    if not found:
        return []
    body = [[_round(row[column]) for column in columns] for row in found]
    return ["", *_markdown([list(columns), *body])]


def _by_depth(folder: Path) -> list[str]:
    """Perplexity, mean norm and radial fraction of each run by depth."""
    values: dict[str, dict[str, list[str]]] = {}
    for row in rows(folder, "perplexity"):
        values.setdefault(row["run"], {}).setdefault("ppl", []).append(_round(row["ppl"]))
    for row in rows(folder, "norms"):
        values.setdefault(row["run"], {}).setdefault("norm", []).append(_round(row["l2_mean"]))
    for row in rows(folder, "gradients"):
        kind = (row["source"], row["path"], row["dtype"])
        if kind == ("ce", "immediate", "float64"):
            radial = values.setdefault(row["run"], {}).setdefault("radial", [])
            radial.append(_round(row["cos_abs_mean"]))
    if not values:
        return []
    titles = {
        "ppl": "perplexity at k = 1..K",
        "norm": "mean norm of H_0..H_K",
        "radial": "mean abs. cosine of the immediate CE gradient with H_1..H_K",
    }
    body = [[run, *(", ".join(v.get(key, [])) for key in titles)] for run, v in values.items()]
    return ["", *_markdown([["run", *titles.values()], *body])]


def _markdown(table: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = [
        "| " + " | ".join(x.ljust(w) for x, w in zip(r, widths, strict=True)) + " |" for r in table
    ]
    return [lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]


def _round(text: str) -> str:
    """A number with four digits; anything else as it is."""
    try:
        value = float(text)
    except ValueError:
        return text
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
