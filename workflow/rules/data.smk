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


rule tokenizer:
    # Only for tokenizers that come from the hub.
    output:
        f"{WORK}/tokenizers/{{tokenizer}}/tokenizer.json",
    log:
        f"{WORK}/logs/tokenizer/{{tokenizer}}.log",
    wildcard_constraints:
        tokenizer=only(
            [study.tokenizer.parent.name] if study.tokenizer and pending(study.tokenizer) else []
        ),
    localrule: True
    conda:
        "../../envs/blindspot.yaml"
    params:
        spec=canonical(study.config.tokenizer.model_dump(mode="json")),
    message:
        "fetching tokenizer {wildcards.tokenizer}"
    shell:
        "blindspot tokenizer --spec {params.spec:q} --out {output:q} 2>&1 | tee {log:q}"


rule tokens:
    # Studies may share tokens, so a controller that is to make them asks who else does.
    input:
        lambda wildcards: (
            alone(study.tokens / "tokens.json")
            and alone(study.corpus / "corpus.json")
            and [study.corpus / "corpus.json", *([study.tokenizer] if study.tokenizer else [])]
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
        tokenizer=options(tokenizer=study.tokenizer) if study.tokenizer else "",
    message:
        "tokenizing {wildcards.tokens}"
    shell:
        "blindspot tokens --spec {params.spec:q} --corpus {params.corpus:q} --out {params.out:q}"
        " {params.tokenizer} --threads {threads} 2>&1 | tee {log:q}"
