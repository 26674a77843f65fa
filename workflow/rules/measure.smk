# What the trained weights do. One job makes all that a run lacks: most of a job is its imports.


rule measure:
    input:
        f"{RESULTS}/runs/{{run}}/run.json",
        shared(study.tokens / "tokens.json"),
        *made_anew(lambda wildcards: wildcards.run in REMADE),
    output:
        # Written last: all measurements with today's settings are there. Their own records and
        # CSVs are not declared, so that a job that fails in one loses none of the others.
        measured("{run}").as_posix(),
    log:
        f"{WORK}/logs/measure/{{run}}.log",
    wildcard_constraints:
        run=only_runs([name for name in RUNS if name in REMADE or unmeasured(name)], RUNS),
    conda:
        "../../envs/blindspot.yaml"
    threads: 1
    resources:
        gpu=lambda wildcards: gpus(),
        mem_mb=16000,
        runtime=120,
    params:
        spec=lambda wildcards: spec_of(wildcards.run),
        settings=canonical(study.config.measurement.model_dump(mode="json")),
        device=lambda wildcards: device(),
        places=options(tokens=study.tokens, results=RESULTS, work=WORK),
    message:
        "measuring {wildcards.run}"
    shell:
        "blindspot measure --spec {params.spec:q} --name {wildcards.run} {params.places}"
        " --settings {params.settings:q} --device {params.device} --threads {threads}"
        " > {log:q} 2>&1"


rule throughput:
    # Timed alone: it takes all cores here, or a whole GPU job on a cluster. It needs no weights.
    input:
        *made_anew(lambda wildcards: study.config.reuse is False),
    output:
        f"{RESULTS}/throughput/{{size}}-{{hash}}.csv",
    log:
        f"{WORK}/logs/throughput/{{size}}-{{hash}}.log",
    wildcard_constraints:
        size=only(
            [
                s
                for s in study.config.sizes
                if study.config.reuse is False or pending(throughput_of(s))
            ]
        ),
        hash=only([study.throughput_hash(s) for s in study.config.sizes]),
    conda:
        "../../envs/blindspot.yaml"
    threads: CPUS
    resources:
        gpu=lambda wildcards: gpus(),
        mem_mb=16000,
        runtime=60,
    params:
        spec=lambda wildcards: canonical(
            {
                "architectures": {
                    label: model.model_dump(mode="json")
                    for label, model in study.architectures(wildcards.size).items()
                },
                "settings": study.config.throughput.identity(),
                "precision": study.config.training.precision,
            }
        ),
        device=lambda wildcards: device(),
    message:
        "timing size {wildcards.size} at every depth"
    shell:
        "blindspot throughput --spec {params.spec:q} --out {output:q} --device {params.device}"
        " > {log:q} 2>&1"
