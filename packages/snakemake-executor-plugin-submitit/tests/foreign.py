"""A stranger's use: the wheel in an empty environment, and a workflow of their own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
SNAKEFILE = """\
rule all:
    input:
        expand("counted/{n}.txt", n=[1, 2, 3]),


rule write:
    output:
        "words/{n}.txt",
    resources:
        runtime=5,
        mem_mb=200,
    shell:
        "seq {wildcards.n} > {output}; echo $SUBMITIT_RESTARTS > {output}.restarts"


rule count:
    input:
        "words/{n}.txt",
    output:
        "counted/{n}.txt",
    resources:
        runtime=5,
        mem_mb=200,
    shell:
        "wc -l < {input} > {output}"
"""


def environment(folder: Path) -> Path:
    """A new environment with the wheel and Snakemake alone; its folder of programs."""
    # Elsewhere, so that no build is left beside the source, and none from before is taken up.
    source = shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("build"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, source], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    python = folder / "env/bin/python"
    install = [python, *pip[1:], "install", wheel, "snakemake>=9.20,<10"]
    subprocess.run(install, check=True)
    return python.parent


def run(folder: Path, programs: Path, cluster: str, env: dict[str, str]) -> str:
    """The workflow to its end in `folder`; what the controller has said."""
    folder.mkdir()
    (folder / "Snakefile").write_text(SNAKEFILE)
    command = [programs / "snakemake", "--executor", "submitit", "--submitit-cluster", cluster]
    command += ["--jobs", "4", "--submitit-poll-seconds", "3", "--latency-wait", "5"]
    mine = {"PATH": f"{programs}{os.pathsep}{env['PATH']}"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=env | mine,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    for n in (1, 2, 3):
        assert (folder / f"counted/{n}.txt").read_text().strip() == str(n)
        # Set by the executor alone, so it was this one that ran them.
        assert (folder / f"words/{n}.txt.restarts").read_text() == "0\n"
    return done.stdout
