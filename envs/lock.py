"""Resolve the dependencies of pyproject.toml into exact pins. Run by `make lock`.

requirements.txt          all that the workflow needs, training included
requirements-publish.txt  tables, figures and report from results/ alone; no torch
requirements-dev.txt      what the tests need on top
requirements-slow.txt     what `make test-slow` needs on top of that: transformers, rocrate
"""

import json
import subprocess
import sys
from pathlib import Path

ENVS = Path(__file__).parent
#: Local builds (2.13.0+cpu) differ from machine to machine; their public version does not. torch
#: also brings CUDA's libraries on some machines and none on others: it chooses them itself.
SKIPPED = ("nvidia-", "cuda-", "triton", "blindspot", "snakemake-executor-plugin-submitit")
#: What the study brings itself, and is installed from here.
EXECUTOR = ENVS.parent / "packages/snakemake-executor-plugin-submitit"


def resolve(extras: str, constraints: list[Path]) -> dict[str, str]:
    """Name to version of all that `.[extras]` would install, and with extras the executor."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"),
            *("--report", "-", *(f"--constraint={c}" for c in constraints)),
            *([str(EXECUTOR)] if extras else []),
            f"{ENVS.parent}{extras}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    found = (item["metadata"] for item in json.loads(done.stdout)["install"])
    return {item["name"].lower(): item["version"].split("+")[0] for item in found}


def write(name: str, note: str, pins: dict[str, str], first: str = "") -> None:
    lines = [f"# {note}\n# Made by `make lock` from pyproject.toml.\n", first]
    lines += [f"{k}=={v}\n" for k, v in sorted(pins.items()) if not k.startswith(SKIPPED)]
    (ENVS / name).write_text("".join(lines))


torch = ENVS / "torch.txt"
everything = resolve("[train]", [torch])
write("requirements.txt", "All that the workflow needs, training included.", everything)
pinned = ENVS / "requirements.txt"
write(
    "requirements-publish.txt",
    "Tables, figures and report from results/ alone; no torch.",
    resolve("", [pinned]),
)
extra = {k: v for k, v in resolve("[train,dev]", [pinned]).items() if k not in everything}
write("requirements-dev.txt", "What the tests need.", extra, "-r requirements.txt\n")
known = everything | extra
slow = resolve("[train,dev,audit,share,slow]", [pinned])
slow = {k: v for k, v in slow.items() if k not in known}
write("requirements-slow.txt", "What `make test-slow` needs.", slow, "-r requirements-dev.txt\n")
