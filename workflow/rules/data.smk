# A corpus becomes documents, documents become token files.


rule corpus:
    # The only rule that uses the network; compute nodes have none.
    output:
        f"{WORK}/corpora/{{corpus}}/corpus.json",
    log:
        f"{WORK}/logs/corpus/{{corpus}}.log",
    wildcard_constraints:
        corpus=only([study.corpus.name] if pending(study.corpus / "corpus.json") else []),
    localrule: True
    conda:
        "../../envs/blindspot.yaml"
    params:
        spec=canonical(study.config.corpus.model_dump(mode="json")),
        out=lambda wildcards, output: Path(output[0]).parent,
    message:
        "fetching corpus {wildcards.corpus}"
    shell:
        "blindspot corpus --spec {params.spec:q} --out {params.out:q} 2>&1 | tee {log:q}"


rule tokens:
    # Studies may share tokens, so a controller that is to make them asks who else does.
    input:
        lambda wildcards: (
            alone(study.tokens / "tokens.json")
            and alone(study.corpus / "corpus.json")
            and study.corpus / "corpus.json"
        ),
    output:
        f"{WORK}/tokens/{{tokens}}/tokens.json",
    log:
        f"{WORK}/logs/tokens/{{tokens}}.log",
    wildcard_constraints:
        tokens=only([study.tokens.name] if pending(study.tokens / "tokens.json") else []),
    conda:
        "../../envs/blindspot.yaml"
    threads: min(CPUS, 8)
    resources:
        mem_mb=8000,
        runtime=120,
    params:
        spec=canonical(study.data.model_dump(mode="json")),
        corpus=lambda wildcards, input: Path(input[0]).parent,
        out=lambda wildcards, output: Path(output[0]).parent,
    message:
        "tokenizing {wildcards.tokens}"
    shell:
        "blindspot tokens --spec {params.spec:q} --corpus {params.corpus:q} --out {params.out:q}"
        " 2>&1 | tee {log:q}"
