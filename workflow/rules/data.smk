# A corpus becomes documents, documents become token files. Studies may share both: each verb makes
# its folder while it holds the folder's lock, or waits for who does and finds it made.


rule corpus:
    # The only rule that uses the network; compute nodes have none.
    output:
        f"{WORK}/corpora/{{corpus}}/for-{HERE}",
    log:
        f"{WORK}/logs/corpus/{{corpus}}-for-{HERE}.log",
    wildcard_constraints:
        corpus=only([study.corpus.name]),
    localrule: True
    conda:
        "../../envs/blindspot.yaml"
    params:
        spec=canonical(study.config.corpus.model_dump(mode="json")),
        out=lambda wildcards, output: Path(output[0]).parent,
    message:
        "fetching corpus {wildcards.corpus}"
    shell:
        "blindspot corpus --spec {params.spec:q} --out {params.out:q} > {log:q} 2>&1"
        " && ln -sfn corpus.json {output:q}"


rule tokenizer:
    # Only for tokenizers that come from the hub.
    output:
        f"{WORK}/tokenizers/{{tokenizer}}/for-{HERE}",
    log:
        f"{WORK}/logs/tokenizer/{{tokenizer}}-for-{HERE}.log",
    wildcard_constraints:
        tokenizer=only([study.tokenizer.parent.name] if study.tokenizer else []),
    localrule: True
    conda:
        "../../envs/blindspot.yaml"
    params:
        spec=canonical(study.config.tokenizer.model_dump(mode="json")),
        out=study.tokenizer,
    message:
        "fetching tokenizer {wildcards.tokenizer}"
    shell:
        "blindspot tokenizer --spec {params.spec:q} --out {params.out:q} > {log:q} 2>&1"
        " && ln -sfn tokenizer.json {output:q}"


rule tokens:
    input:
        shared(study.corpus / "corpus.json"),
        *([shared(study.tokenizer)] if study.tokenizer else []),
    output:
        f"{WORK}/tokens/{{tokens}}/for-{HERE}",
    log:
        f"{WORK}/logs/tokens/{{tokens}}-for-{HERE}.log",
    wildcard_constraints:
        tokens=only([study.tokens.name]),
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
        " {params.tokenizer} --threads {threads} > {log:q} 2>&1"
        " && ln -sfn tokens.json {output:q}"
