# What the workflow says before, after, and when something went wrong. No rules here.

HEAVY = {"train", "measure", "throughput"}
#: Locks of controllers lie beside what studies and clones may share.
LOCKS = study.work / "locks"


def refuse(message: str) -> None:
    """End before the first job, with a message and nothing else."""
    logger.error(message)
    sys.exit(1)


def some(names, limit: int = 5) -> str:
    return f"{', '.join(names[:limit])}{f' and {len(names) - limit} more' if names[limit:] else ''}"


@cache
def plan() -> None:
    """Say what is reused and what is not, hold the study, force what `reuse: false` names. Input
    functions call it, once a process: they know the targets, and a dry run calls them as well."""
    if not workflow.is_main_process:
        return
    hold()
    for note in study.notes:
        logger.info(note)
    done = [name for name in RUNS if finished(name).exists()]
    known = [name for name in done if measured(name).exists()]
    lost = FILES.impossible(REMADE)
    head = f"Study {study.config.study}, {len(RUNS)} runs:"
    if publishing():
        absent = [name for name in RUNS if name not in known]
        logger.info(
            f"{head} {len(known)} are published, nothing is trained or measured."
            + (f" Not there: {some(absent)}" if absent else "")
        )
    else:
        anew = [name for name in done if name in REMADE]
        counts = {
            "finished and reused": len(set(known) - REMADE),
            "to measure": len(set(done) - set(known) - set(lost) - REMADE),
            "to train and measure": len(RUNS) - len(done),
            "finished, to make anew (reuse: false)": len(anew),
            "impossible to measure": len(lost),
        }
        logger.info(f"{head} {', '.join(f'{n} {what}' for what, n in counts.items() if n)}.")
        workflow.dag.forcefiles.update(str(finished(name)) for name in REMADE)
        if study.config.reuse is False:
            workflow.dag.forcefiles.update(str(throughput_of(s)) for s in study.config.sizes)
    # Not under version control; where its successors are there, Snakemake would not miss it.
    if not (study.results / "collected" / "study.json").exists():
        workflow.dag.forcefiles.add(f"{RESULTS}/collected/study.json")
    if lost:
        logger.warning(
            f"Left out, since finished runs have no measurement with today's settings and their "
            f"weights are gone: {some(lost)}. To train and measure them again: --config "
            f"reuse=false, or 'reuse={{{RUNS[lost[0]].cell}: false}}' for the runs of a cell"
        )


def hold() -> None:
    """One controller a study. Snakemake's own lock would also outlive a killed controller, and keep
    apart studies that only share tokens, so it rests."""
    where = digest(str(study.results.resolve()))
    lock = LOCKS / f"{study.config.study}-{where}.lock"
    if workflow.executor_plugin is None or workflow.dryrun:
        if workflow.dryrun and (other := controller.holder(lock)):
            logger.info(f"Study {study.config.study} is worked on by {other}")
        return
    try:
        controller.claim(lock)
    except BlindspotError as error:
        refuse(
            f"study {study.config.study} is worked on already, by {error}. It is not disturbed. "
            f"Wait for it, or stop it there (Ctrl-C), and type the same command again. To look: "
            f"snakemake status, or snakemake -n with the same study"
        )
    workflow.persistence.lock = workflow.persistence.noop
    # After a kill, what was being written is made again, without being asked.
    workflow.dag_settings.force_incomplete = True


def alone(made: Path) -> bool:
    """Hold what is to be made for several studies; while another controller makes it, wait, then
    start over, since it has become a source file."""
    if workflow.is_main_process and workflow.executor_plugin is not None and not workflow.dryrun:
        lock = LOCKS / f"{made.parent.name}.lock"
        say = lambda other: logger.info(f"{made} is being made by {other}; waiting for it")
        if controller.claim_or_await(lock, made, say):
            controller.restart(moved=workflow.overwrite_workdir is not None)
    return True


def asking() -> bool:
    """Whether nothing but questions is asked."""
    return bool(workflow.dag_settings.targets) and set(workflow.dag_settings.targets) <= ASKING


def outlook() -> str:
    """Two lines on what is ahead, from what is known already."""
    from blindspot.plan import forecast  # not at parse time: every job parses this

    return f"{forecast.outlook(study, CPUS)}. More: snakemake -c1 forecast"


def on_this_machine() -> bool:
    """Whether jobs run here: without an executor, or with submitit's local one."""
    if not sent_off():
        return True
    kind = getattr(workflow.executor_settings, "cluster", None)
    return kind == "local" or (kind is None and not shutil.which("sbatch"))


def has_gpu() -> bool:
    """Whether a job that runs here could be given a GPU."""
    if not sent_off():
        return provenance.has_gpu()
    from durable_jobs.local import visible_gpus

    return bool(visible_gpus(os.environ))


def slow_precision() -> str:
    """What to say where bf16 is asked of a processor that must emulate it."""
    on_cpu = on_this_machine() and provenance.kind(device()) == "cpu"
    if (
        not on_cpu
        or study.config.training.precision != "bf16"
        or provenance.has_bf16() is not False
    ):
        return ""
    return (
        f"training.precision is bf16, which this processor ({provenance.processor()}) has no "
        f"instructions for: a step takes about ten times as long as in float32. For the CPU set "
        f"training.precision: float32 in the study file (other runs, since it is in their hash)"
    )


def start() -> None:
    """Refuse before the first job what would fail in every job."""
    jobs = Counter(job.rule.name for job in workflow.dag.needrun_jobs())
    heavy = sum(jobs[name] for name in HEAVY)
    if heavy and device() == "cuda" and on_this_machine() and not has_gpu():
        asked = "device: auto, jobs sent off" if study.config.device == "auto" else "device: cuda"
        refuse(
            f"study {study.config.study} is for GPUs ({asked}), {heavy} jobs would use one, "
            f"and this machine has none. On a cluster: snakemake --profile slurm all. "
            f"A study for this machine: make demo. To use the CPU all the same, set device: cpu "
            f"in the config (a paper-size run takes weeks)."
        )
    if heavy:
        if slow := slow_precision():
            logger.warning(slow)
        logger.info(outlook())
    for job in workflow.dag.needrun_jobs():
        if job.rule.name == "train" and job.wildcards.run in REMADE:
            remake.ask(study.work / "runs" / job.wildcards.run)


def finish() -> None:
    """Where things are, and the numbers that matter."""
    if asking():
        return
    html = study.results / "report.html"
    lines = [f"Study {study.config.study}: done. Results are in {RESULTS}/"]
    if html.exists():
        lines.append(f"Report: {html.resolve().as_uri()}")
    # Where only some tables were asked for, there may not be both.
    if all((study.results / "tables" / f"{name}.csv").exists() for name in ("main", "depth")):
        lines.append(summary(study.results))
    if (study.results / "claims.csv").exists():
        from blindspot.publish import claims  # pandas: not at parse time

        lines.append(claims.summary(study.results / "claims.csv"))
    logger.info("\n".join(lines))


def explain() -> None:
    """What failed, and what to type next."""
    failed = sorted(workflow.scheduler.failed, key=str) if workflow.scheduler else []
    lines = [f"Study {study.config.study}: not complete."]
    for job in failed[:10]:
        name = " ".join([job.rule.name, *job.wildcards_dict.values()])
        lines.append(f"  failed: {name}; log: {', '.join(map(str, job.log))}")
    if failed[10:]:
        lines.append(f"  and {len(failed) - 10} more")
    lines.append(
        "What is finished stays, and the same command goes on from there, also after a kill (add "
        "--keep-going to let the other runs finish first). Should it say that the directory "
        "cannot be locked although nothing runs: snakemake --unlock"
    )
    logger.error("\n".join(lines))
