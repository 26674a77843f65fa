# What the workflow says before, after, and when something went wrong. No rules here.

TRAIN = call.named("train")
HEAVY = {TRAIN, call.named("measure"), call.named("throughput")}
#: Locks of controllers lie beside what studies and clones may share.
LOCK = study.work / "locks" / f"{HERE}.lock"
HELD = []
WATCHES = []


def refuse(message: str) -> None:
    """End before the first job, with a message and nothing else."""
    logger.error(message)
    sys.exit(1)


def some(names, limit: int = 5) -> str:
    return f"{', '.join(names[:limit])}{f' and {len(names) - limit} more' if names[limit:] else ''}"


@cache
def plan() -> None:
    """Say what is reused and what is not. Input functions call it, once a process: they know the
    targets, and a dry run calls them as well."""
    if not call.is_main:
        return
    if call.is_dry and (other := locks.holder(LOCK)):
        logger.info(f"Study {study.config.study} is worked on by {other}")
    for note in study.notes:
        logger.info(note)
    done = [name for name in RUNS if finished(name).exists()]
    known = [name for name in done if FILES.is_measured(name)]
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
        todo = [n for n in done if n not in known and n not in lost and n not in REMADE]
        parts = dict.fromkeys(m for name in todo for m in FILES.unmeasured(name))
        some_of_them = f" ({', '.join(parts)})" if len(parts) < len(MEASUREMENTS) else ""
        counts = {
            "finished and reused": len(set(known) - REMADE),
            f"to measure{some_of_them}": len(todo),
            "to train and measure": len(RUNS) - len(done),
            "finished, to make anew (reuse: false)": len(anew),
            "impossible to measure": len(lost),
        }
        logger.info(f"{head} {', '.join(f'{n} {what}' for what, n in counts.items() if n)}.")
        if call.runs and len(known) - len(anew) < len(RUNS) - len(lost):
            from blindspot.plan import overview  # not at parse time: every job parses this

            logger.info(overview.ahead(study, CPUS, call.named("status")))
    if lost:
        logger.warning(
            f"Left out, because these finished runs lack measurements with today's settings and their "
            f"weights are gone: {some(lost)}. To train and measure them again: --config "
            f"reuse=false, or 'reuse={{{RUNS[lost[0]].cell}: false}}' for the runs of a cell"
        )


def hold() -> None:
    """One controller a study, as long as this process lives. (Snakemake's own lock outlives a killed
    controller, and keeps apart studies that only share tokens: profiles/default switches it off.)
    """
    try:
        HELD.append(locks.take(LOCK))
    except LockedError as error:
        refuse(
            f"study {study.config.study} is worked on already, by {error}. Nothing was changed. "
            f"Wait for it, or stop it there (Ctrl-C), and type the same command again. To look: "
            f"snakemake status, or snakemake -n with the same study"
        )
    except BlindspotError as error:
        refuse(f"study {study.config.study} can't be worked on here: {error}")


def asking() -> bool:
    """Whether nothing but questions is asked."""
    return bool(call.targets) and call.targets <= ASKING


def on_this_machine() -> bool:
    """Whether jobs run here: without an executor, or with submitit's local one."""
    if not call.sends_jobs:
        return True
    kind = call.executor_setting("cluster")
    return kind == "local" or (kind is None and not shutil.which("sbatch"))


def has_gpu() -> bool:
    """Whether a job that runs here could be given a GPU."""
    if not call.sends_jobs:
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


def watch() -> None:
    """Say from now on how far the study is. Jobs elsewhere are looked at once a minute."""
    from blindspot.plan.overview import Watch
    from blindspot.plan.terminal import LogHandler

    handler = LogHandler.current
    show = handler.show if handler and handler.is_terminal else None
    every = 60.0 if call.sends_jobs else 3.0
    WATCHES.append(Watch(study, CPUS, logger.info, show, every))
    WATCHES[-1].start()


def watch_no_more() -> None:
    """Before the last words."""
    while WATCHES:
        WATCHES.pop().stop()


def start() -> None:
    """Hold the study, and refuse before the first job what would fail in every job."""
    made = [path for job in call.ahead for path in (*job.output, *job.log)]
    if closed := files.first_unwritable([".snakemake", *made]):
        refuse(
            f"study {study.config.study}: {closed} can't be written by you, and something is to be "
            f"made there. Have it opened to you (chmod -R g+w), or set `work` and `results` to "
            f"folders of yours: --config work=DIR results=DIR, with a copy of the results there"
        )
    if asking():
        return
    hold()
    forget_marks()  # of a controller that was killed
    stopping.pass_on()
    files.date_no_later({path for job in call.ahead for path in job.input})
    jobs = Counter(job.rule.name for job in call.ahead)
    heavy = sum(jobs[name] for name in HEAVY)
    if heavy and device() == "cuda" and on_this_machine() and not has_gpu():
        asked = "device: auto, jobs sent off" if study.config.device == "auto" else "device: cuda"
        refuse(
            f"study {study.config.study} is for GPUs ({asked}), {heavy} jobs would use one, "
            f"and this machine has none. On a cluster: snakemake --profile slurm all. "
            f"A study for this machine: make demo. To use the CPU all the same, set device: cpu "
            f"in the config (a paper-size run takes weeks)."
        )
    if jobs[TRAIN] and (kind := study.config.execution.tracking) and not find_spec(kind):
        refuse(
            f"study {study.config.study}: execution.tracking is {kind}, which is not installed for "
            f"{sys.executable}. Type: {sys.executable} -m pip install {kind}. Or set "
            f"execution.tracking: null"
        )
    if heavy:
        if slow := slow_precision():
            logger.warning(slow)
        watch()
    for name in RUNS:
        if name not in REMADE:
            remake.forget(study.work / "runs" / name)
    for job in call.ahead:
        if job.rule.name == TRAIN and job.wildcards.run in REMADE:
            remake.ask(study.work / "runs" / job.wildcards.run)


def forget_marks() -> None:
    """Take away what starts left that made runs anew. (As a target's file it can't be temp().)"""
    for mark in Path(ANEW).parent.glob(f"{HERE}-*"):
        mark.unlink()


def finish() -> None:
    """Where things are, and the numbers that matter."""
    watch_no_more()
    if asking():
        return
    forget_marks()
    html = study.results / "report.html"
    lines = [f"Study {study.config.study}: done. Results are in {RESULTS}/"]
    if html.exists():
        lines.append(f"Report: {html.resolve().as_uri()}")
    # pandas: not at parse time
    if (study.results / "collected" / "study.json").exists():
        from blindspot.publish.summary import summary

        if short := summary(study.results):
            lines.append(short)
    if (study.results / "claims.csv").exists():
        from blindspot.publish import claims

        lines.append(claims.summary(study.results / "claims.csv"))
    logger.info("\n".join(lines))


def explain() -> None:
    """What failed, and what to type next."""
    from blindspot.plan.terminal import failure

    watch_no_more()
    lines = [f"Study {study.config.study}: not complete."]
    for job in call.failed[:10]:
        name = " ".join([job.rule.name, *job.wildcards_dict.values()])
        lines.append(failure(name, list(job.log)))
    if call.failed[10:]:
        lines.append(f"  and {len(call.failed) - 10} more")
    lines.append(
        "What is finished stays, and the same command goes on from there, also after a kill."
    )
    logger.error("\n".join(lines))
