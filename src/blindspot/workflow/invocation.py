"""How Snakemake was called, and what it plans: all that the rules take from its insides.

Snakemake documents rules, profiles and hooks. What targets were asked for, whether jobs leave this
machine, and which jobs are ahead or have failed it keeps on its `workflow` object, which an update
may change. It is read here and nowhere else, and nothing is written into it.
`tests/test_invocation.py` asks real Snakemake for each of these.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blindspot.files import atomic_path, sha256_file

#: The version that these were last tried with.
TRIED = "9.27.1"


class Invocation:
    """One call of Snakemake, around the `workflow` that Snakefiles see."""

    def __init__(self, workflow: Any) -> None:
        self._workflow = workflow
        self._modifier = workflow.modifier

    # Known while the rules are read.

    @property
    def is_module(self) -> bool:
        """Whether another workflow uses this one as a module."""
        return not self._modifier.is_main_snakefile()

    def named(self, rule: str) -> str:
        """The name of a rule of this workflow, which a module's user may have changed."""
        return str(self._modifier.modify_rulename(rule))

    def source(self, path: str) -> Path:
        """A file of this workflow, by its path from the file of rules that asks. Where the workflow
        is read from a repository, a copy, whose name is its content's."""
        file = self._workflow.current_basedir.join(path)
        found = Path(file.get_path_or_uri(secret_free=False))
        if found.exists():
            return Path(os.path.relpath(found))
        fetched = Path(self._workflow.sourcecache.get_path(file))
        kept = Path(f".snakemake/blindspot/{sha256_file(fetched)[:16]}-{Path(path).name}")
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(kept) as temporary:
                temporary.write_bytes(fetched.read_bytes())
        return kept

    @property
    def snakefile(self) -> Path:
        return Path(os.path.relpath(self._workflow.main_snakefile))

    @property
    def configfiles(self) -> list[Path]:
        """--configfile."""
        return [Path(os.path.relpath(path)) for path in self._workflow.config_settings.configfiles]

    @property
    def config(self) -> list[str]:
        """--config, as the words that were typed: KEY=VALUE."""
        return list(self._workflow.config_settings.config_args)

    @property
    def module_config(self) -> Mapping[str, Any]:
        """What a workflow that uses this one as a module gives as `config`."""
        return dict(self._modifier.globals["config"])

    @property
    def cores(self) -> int:
        """--cores; 1 where there is none."""
        return int(self._workflow.resource_settings.cores or 1)

    @property
    def is_main(self) -> bool:
        """Whether a person typed this. On other nodes, each job starts a Snakemake of its own."""
        return bool(self._workflow.is_main_process)

    # Known once jobs are planned, so to input functions, params and hooks.

    @property
    def targets(self) -> set[str]:
        """Rules and files that were asked for; none where it is the default target."""
        return set(self._workflow.dag_settings.targets)

    @property
    def runs(self) -> bool:
        """Whether jobs are run, or shown by a dry run; not for --report, --dag, --summary, ..."""
        return self._workflow.executor_plugin is not None

    @property
    def is_dry(self) -> bool:
        """--dry-run."""
        return self.runs and bool(self._workflow.dryrun)

    @property
    def sends_jobs(self) -> bool:
        """Whether jobs leave this process: to Slurm, or to GPUs of this machine. A dry run is told
        no more than that there are --jobs, as in a profile."""
        if not self.runs or self.is_dry:
            return self._workflow.remote_exec or self._workflow.resource_settings.nodes is not None
        return self._workflow.remote_exec or not self._workflow.local_exec

    def executor_setting(self, name: str, default: Any = None) -> Any:
        """An option of the executor's plugin: `cluster` is --submitit-cluster."""
        return getattr(self._workflow.executor_settings, name, default)

    @property
    def latency_wait(self) -> float:
        """--latency-wait: seconds that files may take to be seen."""
        return float(self._workflow.execution_settings.latency_wait)

    def resources_of(self, rule: str) -> dict[str, Any]:
        """What a rule asks for."""
        return dict(self._workflow.get_rule(rule).resources)

    @property
    def ahead(self) -> list[Any]:
        """Jobs that are to be run, once all are planned. A job has `rule.name`, `wildcards`,
        `input`, `output`, `log`."""
        return list(self._workflow.dag.needrun_jobs())

    @property
    def failed(self) -> list[Any]:
        """Jobs that have failed, in order of their names."""
        scheduler = self._workflow.scheduler
        return sorted(scheduler.failed, key=str) if scheduler else []
