# One job a run: cell x size x seed. Its checkpoints lie in work/ and are not declared, because
# Snakemake deletes what a failed job declares; of its results the last one is.


rule train:
    input:
        unless_publishing(f"{study.tokens}/tokens.json"),
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
        gpu=gpus_of_run(),
        nodes=by_size(lambda size: size.nodes),
        mem_mb=16000,
        # A job gets as many turns as it needs: it saves its state ahead of the limit and goes on.
        runtime=240,
    params:
        spec=lambda wildcards: spec_of(wildcards.run),
        # In one piece: each placeholder costs a dry run of a thousand jobs a tenth of a second.
        options=by_device(
            lambda: options(
                tokens=study.tokens,
                results=RESULTS,
                work=WORK,
                device=device(),
                execution=canonical(study.config.execution.identity()),
            )
        ),
        # On one node it starts its ranks itself; over nodes Slurm's srun does.
        start=by_size(
            lambda size: (
                "srun blindspot train --ranks slurm" if size.nodes > 1 else f"blindspot train --gpus {size.gpus}"
            )
        ),
    message:
        "training {wildcards.run}"
    shell:
        "{params.start} --spec {params.spec:q} --name {wildcards.run} {params.options}"
        " --threads {threads} 2>&1 | tee -a {log:q}"


rule runs:
    """Train every run of the study that is not finished, and stop there."""
    input:
        lambda wildcards: plan() or [finished(name) for name in RUNS],
    localrule: True
