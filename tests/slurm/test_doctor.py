"""`doctor` on a real Slurm: what is right is said, what is wrong comes with what to change."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster
from study import shim

from blindspot.config.study import Study
from blindspot.plan.doctor import Doctor
from toys import ROOT

CONFIGS = [ROOT / "config.yaml", ROOT / "studies/demo.yaml"]


def doctor(cluster: Cluster, folder: Path, **resources: object) -> tuple[int, list[str]]:
    """`blindspot doctor` for the demo in a folder of its own; exit status and lines."""
    folder.mkdir(exist_ok=True)
    path = f"{folder / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}"
    command = [sys.executable, "-c", "from blindspot.cli import main; main()", "doctor"]
    command += [f"--config={path}" for path in CONFIGS]
    done = subprocess.run(
        [*command, "--latency=5", "--resources", json.dumps(resources)],
        cwd=folder,
        env=cluster.env | {"PATH": path + cluster.env["PATH"]},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, (done.stdout + done.stderr).splitlines()


def submitted(cluster: Cluster) -> int:
    return len(cluster.ask("squeue", "-h", "--states=all", "--name=doctor").splitlines())


def test_ready(cluster: Cluster, tmp_path: Path) -> None:
    """With the profile: what trainings will ask for is asked for, and one job is sent."""
    before = submitted(cluster)
    command = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "workflow/Snakefile"), "doctor"]
    command += ["--profile", str(ROOT / "slurm"), "--configfile", str(CONFIGS[1])]
    done = subprocess.run(
        [*command, "--set-resources", "train:runtime=33"],
        cwd=tmp_path,
        env=cluster.env | {"SBATCH_PARTITION": "low", "SBATCH_ACCOUNT": "test"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    asked = "time 33, partition low, account test, mem 16000M, cpus_per_task 1"
    assert f"ok   Slurm would accept a training: {asked}" in done.stdout
    assert "a file goes there and back in" in done.stdout
    assert f"runs {Path(sys.executable).parent}/python" in done.stdout
    assert "This cluster is ready" in done.stdout
    assert "FIX" not in done.stdout
    assert submitted(cluster) == before + 1
    assert not list(tmp_path.glob("work/submitit/doctor-*"))


WRONG = {
    "partition": ({"slurm_partition": "gpuu"}, "slurm_partition", "grace, low, main"),
    "constraint": ({"slurm_constraint": "a100"}, "slurm_constraint", ""),
    "memory": ({"mem_mb": 990000}, "mem_mb of rule train", "16000 MB"),
    "runtime": ({"runtime": 2400, "slurm_partition": "main"}, "runtime: 1440", ""),
    "gpu type": ({"gpu": 1, "slurm_gres": "gpu:h100"}, "set slurm_gres: gpu", "gpu:2"),
    "gpu model": (
        {"gpu": 1, "gpu_model": "h100"},
        "change gpu_model, which is h100, or leave it out",
        "gpu:2",
    ),
    "reservation": ({"slurm_reservation": "nope"}, "submitit-reservation", "scontrol"),
    "gpus": ({"gpu": 9, "gpu_model": ""}, "gpu and gpu_model", "gpu:2"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong(cluster: Cluster, tmp_path: Path, fault: str) -> None:
    """Slurm is asked before anything is sent; the setting at fault is named, and what there is."""
    resources, setting, known = WRONG[fault]
    before = submitted(cluster)
    status, lines = doctor(cluster, tmp_path, **resources)
    assert status == 2
    (found,) = (n for n, line in enumerate(lines) if line.startswith("FIX"))
    assert setting in lines[found + 1]
    assert known in lines[found + 1]
    assert submitted(cluster) == before


def test_gres_only(cluster: Cluster, tmp_path: Path) -> None:
    """A cluster that refuses --gpus-per-node; then a torch that cannot use the GPU it got."""
    refuse = 'case "$*" in *--gpus*) echo "sbatch: error: use --gres" >&2; exit 1;; esac'
    shim(tmp_path, "sbatch", f'{refuse}; exec "$REAL" "$@"')
    status, lines = doctor(cluster, tmp_path, gpu=1)
    assert status == 2
    (found,) = (n for n, line in enumerate(lines) if line.startswith("FIX"))
    assert "use --gres (--gpus-per-node=1)" in lines[found]
    assert "set slurm_gres: gpu under default-resources" in lines[found + 1]
    status, lines = doctor(cluster, tmp_path, gpu=1, slurm_gres="gpu")
    (found,) = (n for n, line in enumerate(lines) if line.startswith("FIX"))
    assert "torch sees 0 of 1 GPUs (CUDA_VISIBLE_DEVICES=" in lines[found]


def test_folder_not_shared(cluster: Cluster, tmp_path: Path) -> None:
    """The node writes to a folder of that name, but it is another one."""
    elsewhere = 'set -- "${@//work\\/submitit/elsewhere}"; mkdir -p elsewhere/"$(ls work/submitit)"'
    shim(tmp_path, "sbatch", f'[ "$1" = --test-only ] || {{ {elsewhere}; }}; exec "$REAL" "$@"')
    status, lines = doctor(cluster, tmp_path)
    assert status == 2
    (found,) = (n for n, line in enumerate(lines) if line.startswith("FIX"))
    assert f"nothing that it wrote to {tmp_path}/work/submitit" in lines[found]
    assert "on a file system that all nodes share" in lines[found + 1]


def test_environment_not_there(cluster: Cluster, tmp_path: Path) -> None:
    """The node lacks the Python of this environment."""
    other = 'set -- "${@//exec \\//exec \\/nowhere\\/}"'
    shim(tmp_path, "sbatch", f'{other}; exec "$REAL" "$@"')
    status, lines = doctor(cluster, tmp_path)
    assert status == 2
    (found,) = (n for n, line in enumerate(lines) if line.startswith("FIX"))
    assert "this environment does not work there" in lines[found]
    assert "put the environment on a shared folder" in lines[found + 1]


def test_waits(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue in which nothing moves: it says why, and takes its job back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    found = list(
        Doctor(Study.load(CONFIGS[0], CONFIGS[1:]), {"slurm_extra": "--hold"}, patience=4).examine()
    )
    assert "has waited 4 s: PENDING JobHeldUser" in found[-1].text
    assert not cluster.ask("squeue", "-h", "--name=doctor").strip()
