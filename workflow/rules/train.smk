# One job a run: cell x size x seed. Its checkpoints lie in work/ and are not declared, because
# Snakemake deletes what a failed job declares; of its results the last one is.


rule train:
    input:
        shared(study.tokens / "tokens.json"),
        *made_anew(lambda wildcards: wildcards.run in REMADE),
    output:
        f"{RESULTS}/runs/{{run}}/run.json",
    log:
        f"{WORK}/logs/train/{{run}}.log",
    wildcard_constraints:
        run=only_runs([name for name in RUNS if name in REMADE or pending(finished(name))], RUNS),
    conda:
        "../../envs/blindspot.yaml"
    threads: 1
    resources:
        gpu=lambda wildcards: gpus(size_of(wildcards).gpus),
        nodes=lambda wildcards: size_of(wildcards).nodes,
        mem_mb=16000,
        # A job gets as many turns as it needs: it saves its state ahead of the limit and goes on.
        runtime=240,
    params:
        spec=lambda wildcards: spec_of(wildcards.run),
        device=lambda wildcards: device(),
        execution=canonical(study.config.execution.identity()),
        # On one node it starts its ranks itself; over nodes Slurm's srun does.
        start=lambda wildcards: (
            "srun --wait=60 blindspot train --ranks slurm"
            if size_of(wildcards).nodes > 1
            else f"blindspot train --gpus {size_of(wildcards).gpus}"
        ),
        places=options(tokens=study.tokens, results=RESULTS, work=WORK),
    message:
        "training {wildcards.run}"
    shell:
        "{params.start} --spec {params.spec:q} --name {wildcards.run} {params.places}"
        " --execution {params.execution:q} --device {params.device} --threads {threads}"
        " >> {log:q} 2>&1"


rule anew:
    # Where `reuse: false` names runs. Taken away at the end.
    output:
        touch(ANEW),
    localrule: True
    message:
        "what `reuse: false` names is made anew"


rule runs:
    """Train every run of the study that is not finished, and stop there."""
    input:
        lambda wildcards: plan() or [finished(name) for name in RUNS],
        lambda wildcards: remaking(),
    localrule: True
