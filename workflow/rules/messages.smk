# What the workflow says before, after, and when something went wrong. No rules here.

HEAVY = {"train", "measure", "throughput"}


def refuse(message: str) -> None:
    """End before the first job, with a message and nothing else."""
    logger.error(message)
    workflow.persistence.unlock()
    sys.exit(1)


def start() -> None:
    """Refuse before the first job what would fail in every job."""
    jobs = Counter(job.rule.name for job in workflow.dag.needrun_jobs())
    heavy = sum(jobs[name] for name in HEAVY)
    if heavy and workflow.local_exec and study.config.device == "cuda" and not provenance.has_gpu():
        refuse(
            f"study {study.config.study} is for GPUs (device: cuda), {heavy} jobs would use one, "
            f"and this machine has none. On a cluster: snakemake --profile slurm all. "
            f"A study for this machine: make demo. To use the CPU all the same, set device: cpu "
            f"in the config (a paper-size run takes weeks)."
        )
    if IMPOSSIBLE:
        logger.warning(
            f"{len(IMPOSSIBLE)} finished runs have no measurement with today's settings, and their "
            f"weights are gone, so they are left out: {', '.join(IMPOSSIBLE[:5])}"
            f"{' ...' if len(IMPOSSIBLE) > 5 else ''}. To train them again, delete "
            f"their folders under {RESULTS}/runs/"
        )


def finish() -> None:
    """Where things are, and the numbers that matter."""
    html = study.results / "report.html"
    lines = [f"Study {study.config.study}: done. Results are in {RESULTS}/"]
    if html.exists():
        lines.append(f"Report: {html.resolve().as_uri()}")
    if (study.results / "tables" / "main.csv").exists():
        lines.append(summary(study.results))
    if (study.results / "claims.csv").exists():
        from blindspot import claims  # pandas: not at parse time

        lines.append(claims.summary(study.results / "claims.csv"))
    logger.info("\n".join(lines))


def explain() -> None:
    """What to type next."""
    logger.error(
        f"Study {study.config.study}: not complete. The jobs that failed are named above; each "
        f"log is under {WORK}/logs/. What is finished stays, and the same command goes on from "
        f"there (add --keep-going to let the other runs finish first). If it says that the folder "
        f"is locked although nothing runs, a controller was killed: snakemake --unlock"
    )
