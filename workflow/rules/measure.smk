# What the trained weights do: each measurement's folder ends in the hash of its settings.


rule measure:
    input:
        unless_publishing(f"{RESULTS}/runs/{{run}}/run.json", f"{study.tokens}/tokens.json"),
    output:
        # The last of its files. Were all declared, planning a thousand runs would take twice as
        # long, and a lost one would still not be noticed; `collect` names it.
        f"{RESULTS}/runs/{{run}}/{study.config.measurement.folder}/measure.json",
    log:
        f"{WORK}/logs/measure/{{run}}.log",
    wildcard_constraints:
        run=only_runs([name for name in RUNS if name in REMADE or pending(measured(name))], RUNS),
    conda:
        "../../envs/blindspot.yaml"
    threads: 1
    resources:
        gpu=by_device(gpus),
        mem_mb=16000,
        runtime=120,
    params:
        spec=lambda wildcards: spec_of(wildcards.run),
        options=by_device(
            lambda: options(
                settings=canonical(study.config.measurement.identity()),
                tokens=study.tokens,
                results=RESULTS,
                work=WORK,
                device=device(),
            )
        ),
    message:
        "measuring {wildcards.run}"
    shell:
        "blindspot measure --spec {params.spec:q} --name {wildcards.run} {params.options}"
        " --threads {threads} 2>&1 | tee {log:q}"


rule throughput:
    # Timed alone: it takes all cores here, or a whole GPU job on a cluster. It needs no weights.
    input:
        unless_publishing(),
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
        gpu=by_device(gpus),
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
        device=by_device(device),
    message:
        "timing size {wildcards.size} at every depth"
    shell:
        "blindspot throughput --spec {params.spec:q} --out {output:q} --device {params.device}"
        " 2>&1 | tee {log:q}"
