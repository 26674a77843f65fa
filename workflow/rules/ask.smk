# What a user asks about a study. These run whenever they are asked for, make nothing that others
# wait for, and need nothing trained; `blindspot forecast` and `blindspot status` are the same
# without Snakemake.


rule forecast:
    """What would run and why: FLOPs, hours, price, wall time. Starts nothing."""
    log:
        f"{WORK}/logs/ask/{study.config.study}-forecast.log",
    localrule: True
    conda:
        "../../envs/blindspot.yaml"
    params:
        study=ASK_ARGUMENTS,
        cores=CPUS,
    message:
        "forecast"
    shell:
        "blindspot forecast {params.study} --cores {params.cores} 2>&1 | tee -i {log:q}"


rule status:
    """Every run: waiting, running, interrupted, failed, finished. Safe while the study runs."""
    log:
        f"{WORK}/logs/ask/{study.config.study}-status.log",
    localrule: True
    conda:
        "../../envs/publish.yaml"
    params:
        study=ASK_ARGUMENTS,
    message:
        "status"
    shell:
        "blindspot status {params.study} 2>&1 | tee -i {log:q}"
