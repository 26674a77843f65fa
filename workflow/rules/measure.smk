# What the trained weights do: each measurement's folder ends in the hash of its settings.


rule measure:
    input:
        f"{RESULTS}/runs/{{run}}/run.json",
        study.tokens / "tokens.json",
    output:
        f"{RESULTS}/runs/{{run}}/measure-{study.measurement_hash}/measure.json",
        [
            f"{RESULTS}/runs/{{run}}/measure-{study.measurement_hash}/{name}.csv"
            for name in names.FILES
        ],
    log:
        f"{WORK}/logs/measure/{{run}}.log",
    wildcard_constraints:
        run=only([name for name in RUNS if pending(measured(name))]),
    conda:
        "../../envs/blindspot.yaml"
    threads: 1
    resources:
        gpu=GPUS,
        mem_mb=16000,
        runtime=120,
    params:
        spec=lambda wildcards: RUNS[wildcards.run].spec.canonical(),
        settings=canonical(study.config.measurement.identity()),
        tokens=study.tokens,
        state=lambda wildcards: study.work / "runs" / wildcards.run,
        out=lambda wildcards, output: Path(output[0]).parent,
        device=study.config.device,
    message:
        "measuring {wildcards.run}"
    shell:
        "blindspot measure --spec {params.spec:q} --settings {params.settings:q}"
        " --name {wildcards.run} --tokens {params.tokens:q} --state {params.state:q}"
        " --out {params.out:q} --device {params.device} --threads {threads} 2>&1 | tee {log:q}"


rule throughput:
    # Timed alone: it takes all cores here, or a whole GPU job on a cluster. It needs no weights.
    output:
        f"{RESULTS}/throughput/{{size}}-{{hash}}.csv",
    log:
        f"{WORK}/logs/throughput/{{size}}-{{hash}}.log",
    wildcard_constraints:
        size=only([s for s in study.config.sizes if pending(throughput_of(s))]),
        hash=only([study.throughput_hash(s) for s in study.config.sizes]),
    conda:
        "../../envs/blindspot.yaml"
    threads: CPUS
    resources:
        gpu=GPUS,
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
        device=study.config.device,
    message:
        "timing size {wildcards.size} at every depth"
    shell:
        "blindspot throughput --spec {params.spec:q} --out {output:q} --device {params.device}"
        " 2>&1 | tee {log:q}"
