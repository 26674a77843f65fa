"""Is this cluster ready for the study? Each check is one line: what was found, or what to change.

`snakemake --profile slurm doctor` asks Slurm whether it would accept a training (`sbatch
--test-only` submits nothing), then sends one tiny job that tells what the node sees: the work
folder, this environment, a GPU.
"""

import getpass
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from blindspot import provenance
from blindspot.config.study import Study
from blindspot.errors import BlindspotError
from blindspot.files import read_json, write_json, write_text

#: Where each option of sbatch comes from, and what shows the values that this cluster has.
OPTIONS: dict[str, tuple[str, list[str]]] = {
    "partition": ("slurm_partition, or SBATCH_PARTITION", ["sinfo", "-ho", "%R"]),
    "account": ("slurm_account, or SBATCH_ACCOUNT", ["sacctmgr", "-nP", "show", "assoc"]),
    "qos": ("slurm_qos, or SBATCH_QOS", ["sacctmgr", "-nP", "show", "assoc"]),
    "reservation": (
        "slurm_reservation, submitit-reservation or SBATCH_RESERVATION; what there is is listed by "
        "scontrol show reservation",
        [],
    ),
    "constraint": ("slurm_constraint, or SBATCH_CONSTRAINT", ["sinfo", "-ho", "%f"]),
    "gres": ("slurm_gres, or SBATCH_GRES", ["sinfo", "-ho", "%G"]),
    "gpus_per_node": ("gpu and gpu_model", ["sinfo", "-ho", "%G"]),
    "time": ("runtime (minutes) of rule train", ["sinfo", "-ho", "%l"]),
    "mem": ("mem_mb of rule train", ["sinfo", "-ho", "%m MB"]),
    "cpus_per_task": ("threads of rule train", ["sinfo", "-ho", "%c"]),
    "nodes": ("nodes of rule train", ["sinfo", "-ho", "%D"]),
    "ntasks_per_node": ("gpu and nodes of rule train", ["sinfo", "-ho", "%c"]),
}
#: Bytes a parameter takes on disk while its run trains: the weights and AdamW's two moments in
#: float32, in two checkpoints and one that is being written.
TRAINING_BYTES = 3 * 12


class Finding(NamedTuple):
    """What was found; with an advice, it is something to change."""

    text: str
    advice: str = ""

    def __str__(self) -> str:
        return f"FIX  {self.text}\n     -> {self.advice}" if self.advice else f"ok   {self.text}"


@dataclass
class Doctor:
    """Checks what a study will ask of a cluster."""

    study: Study
    #: What a training asks for, by the executor's names: slurm_partition, gpu, runtime, ...
    resources: Mapping[str, Any]
    threads: int = 1
    #: The executor's folder of records and logs.
    folder: Path = Path("work/submitit")
    #: Seconds that the profile lets files take from one node to another.
    latency: float = 120
    #: Seconds the tiny job may wait in the queue.
    patience: float = 600
    options: dict[str, Any] = field(default_factory=dict)
    extra: list[str] = field(default_factory=list)

    def examine(self) -> Iterator[Finding]:
        yield self._space()
        yield self._hub()
        if not shutil.which("sbatch"):
            yield Finding(
                "there is no sbatch here",
                "start on a login node of the cluster; on one machine with GPUs: "
                "snakemake --profile workflow/profiles/workstation all",
            )
            return
        # The executor's own translation, so that what is checked is what will be asked for.
        from durable_jobs import ClusterError
        from snakemake_executor_plugin_submitit.translate import sbatch_options

        try:
            given = sbatch_options(self.threads, self.resources)
        except ClusterError as error:
            yield Finding(str(error), "change gpus or nodes of a size, or resources of rule train")
            return
        self.extra = shlex.split(given.pop("extra"))
        self.options = given
        refusal = self._refusal(self.options)
        if refusal:
            yield self._diagnose(refusal)
            return
        if limit := self._limit():
            yield limit
            return
        shown = ", ".join(f"{key} {value}" for key, value in self.options.items())
        yield Finding(f"Slurm would accept a training: {shown}")
        yield self._accounts()
        yield from self._node()

    def _space(self) -> Finding:
        """Whether the work folder has room for the checkpoints of all runs at once."""
        from blindspot.config.flops import parameters

        work = self.study.work.absolute()
        sizes = [parameters(run.spec.model) for run in self.study.runs]
        need = sum(sizes) * TRAINING_BYTES / 1e9
        there = next(path for path in (work, *work.parents) if path.exists())
        free = shutil.disk_usage(there).free / 1e9
        text = f"{work}: {free:.0f} GB free, {len(sizes)} runs at once need up to {need:.1f} GB"
        if free < need:
            return Finding(text, "set `work: /scratch/...` in the config, or make room")
        return Finding(text)

    def _hub(self) -> Finding:
        """Whether the corpus is here, or this machine can fetch it."""
        corpus = self.study.config.corpus
        if (self.study.corpus / "corpus.json").exists():
            return Finding(f"corpus {corpus.label} is here; the hub is not needed any more")
        if corpus.kind != "hub" or corpus.path:
            return Finding(f"corpus {corpus.label} does not come from the hub")
        url = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        try:
            with urllib.request.urlopen(url, timeout=10):
                return Finding(f"{url} answers; the corpus will be fetched from here")
        except (OSError, ValueError) as error:
            return Finding(
                f"{url} does not answer ({getattr(error, 'reason', error)})",
                "the corpus is fetched where snakemake runs: set HTTPS_PROXY, or run `snakemake "
                "--cores 1 tokens` where there is internet, or give a local copy (corpus.path)",
            )

    def _refusal(self, options: Mapping[str, Any]) -> str:
        """Why Slurm would not take a job with these options; "" if it would."""
        done = _ask(["sbatch", "--test-only", *self._flags(options), "--wrap", "true"])
        return _last(done.stderr) if done.returncode else ""

    def _flags(self, options: Mapping[str, Any]) -> list[str]:
        return [f"--{key.replace('_', '-')}={value}" for key, value in options.items()] + self.extra

    def _diagnose(self, refusal: str) -> Finding:
        """Find the option at fault: the one without which Slurm has no complaint."""
        text = f"Slurm would refuse a training: {refusal}"
        rest = {k: v for k, v in self.options.items() if k not in ("gres", "gpus_per_node")}
        # On each node, as Slurm is asked.
        count = int(self.resources.get("gpu") or 0) // int(self.resources.get("nodes") or 1)
        model = self.resources.get("gpu_model")
        named = self.options.get("gpus_per_node") == f"{model}:{count}"
        if count and named and not self._refusal(rest | {"gpus_per_node": count}):
            return Finding(
                f"{text} ({self._gpu_form()})",
                f"change gpu_model, which is {model}, or leave it out; {self._hint('gres')}",
            )
        for form in ({"gres": f"gpu:{count}"}, {"gpus_per_node": count}):
            if count and not self._refusal(rest | form):
                how = "set slurm_gres: gpu" if "gres" in form else "take slurm_gres away"
                return Finding(
                    f"{text} ({self._gpu_form()})",
                    f"{how} under default-resources in slurm/config.yaml, since "
                    f"{' '.join(self._flags(form))} is accepted; or change {self._hint('gres')}",
                )
        for key, value in self.options.items():
            if not self._refusal({k: v for k, v in self.options.items() if k != key}):
                return Finding(f"{text} ({key} {value})", f"change {self._hint(key)}")
        by_hand = ["sbatch", "--test-only", *self._flags(self.options), "--wrap", "true"]
        return Finding(text, f"ask with the same options by hand: {shlex.join(by_hand)}")

    def _hint(self, key: str) -> str:
        """Where an option comes from, and which values this cluster has for it."""
        where, command = OPTIONS[key]
        if not command:
            return where
        if command[0] == "sacctmgr":
            command = [*command, f"user={getpass.getuser()}", f"format={key}"]
        known = sorted(set(_ask(command).stdout.splitlines()) - {"", "(null)"})
        return where + (f"; this cluster has: {', '.join(known)}" if known else "")

    def _limit(self) -> Finding | None:
        """Slurm takes a job over the partition's limit, and never starts it."""
        partition = self.options.get("partition")
        rows = _ask(["sinfo", "-ho", "%P %l"]).stdout.splitlines()
        limits = dict(row.split() for row in rows)
        for name, limit in limits.items():
            chosen = name.rstrip("*") == partition if partition else name.endswith("*")
            minutes = _minutes(limit)
            if chosen and minutes is not None and int(self.options.get("time", 0)) > minutes:
                return Finding(
                    f"a training asks for {self.options['time']} minutes, partition "
                    f"{name.rstrip('*')} gives {minutes}",
                    f"write under set-resources in slurm/config.yaml: train: runtime: {minutes}; "
                    f"a training takes as many turns as it needs",
                )
        return None

    def _gpu_form(self) -> str:
        return " ".join(f for f in self._flags(self.options) if f.startswith(("--gres", "--gpus")))

    def _accounts(self) -> Finding:
        done = _ask(["sacct", "-nX", "-o", "jobid"])
        if done.returncode:
            return Finding("sacct does not answer; it is not needed, squeue decides")
        return Finding("sacct answers (it is not needed)")

    def _node(self) -> Iterator[Finding]:
        """One tiny job; what it saw from its node."""
        folder = self.folder.absolute() / f"doctor-{os.getpid()}-{int(time.time())}"
        folder.mkdir(parents=True)
        try:
            yield from self._job(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _job(self, folder: Path) -> Iterator[Finding]:
        small = self.options | {"time": min(5, int(self.options.get("time", 5)))}
        node = [sys.executable, "-u", "-m", "blindspot.plan.doctor", str(folder), str(self.latency)]
        flags = ["--job-name=doctor", f"--output={folder}/log", *self._flags(small)]
        done = _ask(["sbatch", "--parsable", *flags, "--wrap", f"exec {shlex.join(node)}"])
        if done.returncode:
            yield Finding(f"Slurm refuses a job of 5 minutes: {_last(done.stderr)}", "see above")
            return
        job = done.stdout.strip().partition(";")[0]
        try:
            state = self._wait(job, folder)
        finally:
            _ask(["scancel", job])
        if (folder / "node.json").exists():  # whatever Slurm said of the job before
            yield from self._seen(read_json(folder / "node.json"))
        elif state.startswith("PENDING"):
            yield Finding(
                f"the tiny job has waited {self.patience:.0f} s: {state}",
                "ask again when the queue is shorter, or choose another partition or QOS",
            )
        else:
            log = folder / "log"
            if log.exists() and log.read_text().strip():
                yield Finding(
                    f"this environment does not work there ({state}): {_last(log.read_text())}",
                    f"{sys.executable} must exist there: put the environment on a shared folder",
                )
            else:
                yield Finding(
                    f"job {job} ended ({state}), but nothing that it wrote to {folder} is here",
                    "put the project, and `work` and submitit-folder, on a file system that all "
                    "nodes share",
                )

    def _wait(self, job: str, folder: Path) -> str:
        """Answer the job's greeting and wait for its end; its last state, node and reason."""
        begin, state, told, gone = time.monotonic(), "unknown", "", 0
        ask = ["squeue", "-h", "--states=all", "-j", job, "-o", "%T %N %r"]
        while not (folder / "node.json").exists():
            with suppress(OSError):  # a look into the folder that NFS does not answer from memory
                folder.chmod(0o755)
            if (folder / "ping").exists() and not (folder / "pong").exists():
                write_text(folder / "pong", "")
            elapsed = time.monotonic() - begin
            if int(elapsed) % 5 == 0:
                state = " ".join(_ask(ask).stdout.split()) or "gone"
                if state.startswith("PENDING") and state != told and elapsed > 10:
                    print(f"...  job {job} waits: {state.split()[-1]}", flush=True)
                    told = state
                if state.startswith("PENDING") and elapsed > self.patience:
                    return state
                # Its files may come later than the news of its end.
                gone += not state.startswith(("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"))
                if gone > self.latency / 5 + 1 or elapsed > self.patience + 3 * self.latency:
                    return state
            time.sleep(1 if elapsed > 5 else 0.2)
        return state

    def _seen(self, node: dict[str, Any]) -> Iterator[Finding]:
        host, trip = node["host"], node["round_trip"]
        text = f"{host} sees {self.folder.absolute()}; a file goes there and back in {trip:.1f} s"
        if trip > self.latency / 2:
            yield Finding(text, f"set latency-wait to at least {4 * trip:.0f} in slurm/config.yaml")
        else:
            yield Finding(text)
        here = sys.version.split()[0]
        if node["python"] != here or "torch" not in node:
            yield Finding(
                f"{host} runs Python {node['python']}, here it is {here}. {node['error']}".rstrip(),
                "make this environment anew on a shared folder: make env",
            )
            return
        yield Finding(
            f"{host} runs {node['executable']}, blindspot {node['blindspot']}, "
            f"torch {node['torch']}, {node['cpus']} CPUs"
        )
        count = int(self.resources.get("gpu") or 0) // int(self.resources.get("nodes") or 1)
        if not count:
            return
        text = (
            f"{host}: torch sees {len(node['gpus'])} of {count} GPUs {node['gpus'] or ''}".strip()
        )
        if len(node["gpus"]) < count:
            advice = "the GPU's driver is not loaded there, or it is too old for this torch"
            if "+cpu" in node["torch"]:
                advice = "this torch is the build for CPUs; install the one for the GPUs' CUDA"
            elif not node["visible"]:
                advice = "Slurm gave the job no GPU: look at slurm_gres, gpu_model, and gres.conf"
            yield Finding(f"{text} (CUDA_VISIBLE_DEVICES={node['visible']})", advice)
        else:
            yield Finding(text)


def asked(defaults: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, Any]:
    """What a training asks for: Snakemake's default-resources, as evaluated for another rule, then
    the resources of the rule, with set-resources in them."""
    values = {name: value for name, value in defaults.items() if name != "tmpdir"}
    for name, resource in training.items():
        if not resource.is_evaluable():
            values[name] = resource.value
        elif name.startswith("slurm_") or name == "gpu_model":
            values[name] = resource.raw  # names, which evaluate to themselves
    kept = {k: v for k, v in values.items() if isinstance(v, (int, str)) and k[0] != "_"}
    return {k: str(v) if isinstance(v, str) else v for k, v in kept.items()}


def _minutes(limit: str) -> int | None:
    """Minutes of a time as sinfo writes it: 4:00:00, 2-00:00:00, 30:00; None if it has no end."""
    days, _, rest = limit.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in parts):
        return None
    hours, minutes = (parts[0], parts[1]) if len(parts) == 3 else ("0", parts[0])
    return int(days or 0) * 1440 + int(hours) * 60 + int(minutes)


def _ask(command: list[str]) -> subprocess.CompletedProcess[str]:
    from durable_jobs.task import clean_environment

    try:
        return subprocess.run(
            command,
            env=clean_environment(os.environ),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _last(text: str) -> str:
    """The last line of what a program said, without the program's name before it."""
    line = (text.strip().splitlines() or ["no reason given"])[-1]
    return line.rpartition("error: ")[2].removeprefix("allocation failure: ")


def examine(doctor: Doctor) -> None:
    """Print each finding as it comes; BlindspotError if there is something to change."""
    findings = []
    for finding in doctor.examine():
        findings.append(finding)
        print(finding, flush=True)
    wrong = sum(bool(finding.advice) for finding in findings)
    if wrong:
        raise BlindspotError(f"{wrong} of {len(findings)} checks need a change; see FIX above")
    print("This cluster is ready: snakemake --profile slurm all")


def on_the_node(folder: Path, latency: float) -> None:
    """What the tiny job does: greet, wait for an answer, and say what is here."""
    begin = time.monotonic()
    write_text(folder / "ping", "")
    while not (folder / "pong").exists() and time.monotonic() - begin < 2 * latency:
        time.sleep(0.1)
        with suppress(OSError):
            folder.chmod(0o755)
    seen: dict[str, Any] = {
        "host": socket.gethostname(),
        "round_trip": round(time.monotonic() - begin, 2),
        "executable": sys.executable,
        "python": sys.version.split()[0],
        "cpus": provenance.cores(),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "error": "",
    }
    try:
        import torch

        import blindspot

        gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
        seen |= {"torch": torch.__version__, "gpus": gpus, "blindspot": blindspot.__version__}
    except ImportError as error:
        seen["error"] = str(error)
    write_json(folder / "node.json", seen)


if __name__ == "__main__":
    on_the_node(Path(sys.argv[1]), float(sys.argv[2]))
