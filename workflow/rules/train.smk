# One job a run: cell x size x seed. Its checkpoints lie in work/ and are not declared, because
# Snakemake deletes what a failed job declares.


rule train:
    input:
        study.tokens / "tokens.json",
    output:
        f"{RESULTS}/runs/{{run}}/run.json",
        f"{RESULTS}/runs/{{run}}/trajectory.csv",
        f"{RESULTS}/runs/{{run}}/timing.csv",
    log:
        f"{WORK}/logs/train/{{run}}.log",
    wildcard_constraints:
        run=only([name for name in RUNS if pending(finished(name))]),
    conda:
        "../../envs/blindspot.yaml"
    threads: 1
    resources:
        gpu=GPUS,
        mem_mb=16000,
        # A job gets as many turns as it needs: it saves its state ahead of the limit and goes on.
        runtime=240,
    params:
        spec=lambda wildcards: RUNS[wildcards.run].spec.canonical(),
        tokens=study.tokens,
        out=lambda wildcards, output: Path(output[0]).parent,
        state=lambda wildcards: study.work / "runs" / wildcards.run,
        device=study.config.device,
    message:
        "training {wildcards.run}"
    shell:
        "blindspot train --spec {params.spec:q} --name {wildcards.run} --tokens {params.tokens:q}"
        " --out {params.out:q} --state {params.state:q} --device {params.device}"
        " --threads {threads} 2>&1 | tee -a {log:q}"


rule runs:
    input:
        [finished(name) for name in RUNS],
    localrule: True
