# From small result files to tables, figures and the report. Nothing here needs torch.

#: What draws all of it again.
AGAIN = [call.named(rule) for rule in ("tables", "figures", "claims", "report")]


rule collect:
    """Gather the results that are there into tidy CSVs. Trains nothing."""
    input:
        lambda wildcards: [f(name) for name in wanted() for f in (finished, measured)],
        lambda wildcards: [throughput_of(size) for size in timed()],
    output:
        f"{RESULTS}/collected/study.json",
        expand("{results}/collected/{name}.csv", results=RESULTS, name=catalogue.COLLECTED),
    log:
        f"{WORK}/logs/publish/{study.config.study}-collect.log",
    localrule: True
    conda:
        "../../envs/publish.yaml"
    params:
        code=lambda wildcards: sourcecode.of_rule("collect"),
        configs=CONFIG_ARGUMENTS,
        # Functions, since the text of a claim may have braces.
        override=lambda wildcards: canonical(OVERRIDE),
        identity=lambda wildcards: canonical(study.config.identity()),
        out=lambda wildcards, output: Path(output[0]).parent,
        # With `input` among its arguments this is no reason to collect again.
        work=lambda wildcards, input: WORK,
    message:
        "collecting the results"
    shell:
        "blindspot collect {params.configs} --override {params.override:q} --work {params.work:q}"
        " --out {params.out:q} > {log:q} 2>&1"


rule table:
    input:
        lambda wildcards: collected(TABLES[wildcards.table]),
    output:
        f"{RESULTS}/tables/{{table}}.csv",
        f"{RESULTS}/tables/{{table}}.md",
        f"{RESULTS}/tables/{{table}}.tex",
        report(
            f"{RESULTS}/tables/{{table}}.html",
            category="Tables",
            subcategory=lambda wildcards: TABLES[wildcards.table].category,
            caption="../report/table.rst",
            labels=lambda wildcards: {"table": TABLES[wildcards.table].title},
        ),
    log:
        f"{WORK}/logs/publish/{study.config.study}-table-{{table}}.log",
    localrule: True
    conda:
        "../../envs/publish.yaml"
    params:
        code=lambda wildcards: sourcecode.of_rule("table"),
        collected=lambda wildcards, input: Path(input[0]).parent,
        out=lambda wildcards, output: Path(output[0]).parent,
        # With `input` among its arguments this is no reason to make a table again.
        caption=lambda wildcards, input: caption("tables", TABLES, wildcards.table),
    message:
        "table {wildcards.table}"
    shell:
        "blindspot table {wildcards.table} --collected {params.collected:q} --out {params.out:q}"
        " > {log:q} 2>&1"


rule figure:
    input:
        lambda wildcards: collected(FIGURES[wildcards.figure]),
    output:
        f"{RESULTS}/figures/{{figure}}.pdf",
        report(
            f"{RESULTS}/figures/{{figure}}.png",
            category="Figures",
            subcategory=lambda wildcards: FIGURES[wildcards.figure].category,
            caption="../report/figure.rst",
            labels=lambda wildcards: {"figure": FIGURES[wildcards.figure].title},
        ),
    log:
        f"{WORK}/logs/publish/{study.config.study}-figure-{{figure}}.log",
    localrule: True
    conda:
        "../../envs/publish.yaml"
    params:
        code=lambda wildcards: sourcecode.of_rule("figure"),
        collected=lambda wildcards, input: Path(input[0]).parent,
        out=lambda wildcards, output: Path(output[0]).parent,
        caption=lambda wildcards, input: caption("figures", FIGURES, wildcards.figure),
    message:
        "figure {wildcards.figure}"
    shell:
        "blindspot figure {wildcards.figure} --collected {params.collected:q} --out {params.out:q}"
        " > {log:q} 2>&1"


rule claims:
    """The ledger: each claim of the paper beside what this study measured. Trains nothing."""
    input:
        rules.collect.output,
    output:
        f"{RESULTS}/claims.csv",
        f"{RESULTS}/claims.md",
        report(
            f"{RESULTS}/claims.html",
            category="Claims",
            caption="../report/claims.rst",
            labels={"claims": catalogue.CLAIMS.title},
        ),
    log:
        f"{WORK}/logs/publish/{study.config.study}-claims.log",
    localrule: True
    conda:
        "../../envs/publish.yaml"
    params:
        code=lambda wildcards: sourcecode.of_rule("claims"),
        collected=lambda wildcards, input: Path(input[0]).parent,
        out=lambda wildcards, output: Path(output[0]).parent,
    message:
        "claim ledger"
    shell:
        "blindspot claims --collected {params.collected:q} --out {params.out:q}" " > {log:q} 2>&1"


rule tables:
    """All tables, of the results that are there. Trains nothing."""
    input:
        expand(
            "{results}/tables/{table}.{kind}", results=RESULTS, table=TABLES, kind=["csv", "html"]
        ),
        # Not under version control; Snakemake overlooks a lost file whose successors are there.
        rules.collect.output[0],
    localrule: True
    message:
        "all tables are there"


rule figures:
    """All figures, of the results that are there. Trains nothing."""
    input:
        expand("{results}/figures/{figure}.pdf", results=RESULTS, figure=FIGURES),
        rules.collect.output[0],
    localrule: True
    message:
        "all figures are there"


rule readme:
    """The study's own page, with tables and figures in place. Trains nothing."""

    # The study on one page, for whoever browses the repository.
    input:
        rules.collect.output,
        rules.tables.input,
        rules.figures.input,
        rules.claims.output,
    output:
        f"{RESULTS}/README.md",
    log:
        f"{WORK}/logs/publish/{study.config.study}-readme.log",
    localrule: True
    conda:
        "../../envs/publish.yaml"
    params:
        code=lambda wildcards: sourcecode.of_rule("readme"),
        results=lambda wildcards, output: Path(output[0]).parent,
        again=shlex.join(
            ["snakemake", *AGAIN, "--cores", "1"]
            + (["--configfile", *map(str, OVERLAYS)] if OVERLAYS else [])
        ),
    message:
        "page {output}"
    shell:
        "blindspot readme --results {params.results:q} --command {params.again:q}" " > {log:q} 2>&1"


rule report:
    """Everything in one HTML file, of the results that are there. Trains nothing."""

    # Snakemake's own report, one HTML file with everything in it. This inner call only reads; the
    # outer one holds the lock.
    input:
        rules.collect.output[0],
        rules.tables.input,
        rules.figures.input,
        rules.claims.output,
        rules.readme.output,
    output:
        f"{RESULTS}/report.html",
    log:
        f"{WORK}/logs/publish/{study.config.study}-report.log",
    localrule: True
    conda:
        "../../envs/publish.yaml"
    params:
        code=lambda wildcards: sourcecode.of_rule("report"),
        # As `work` of `collect`.
        configs=lambda wildcards, input: REPORT_ARGUMENTS,
        targets=lambda wildcards, input: shlex.join(AGAIN[:3]),
    message:
        "report {output}"
    shell:
        "snakemake --report {output:q} --nolock --cores 1 {params.configs} -- {params.targets}"
        " > {log:q} 2>&1 || (cat {log:q} >&2; exit 1)"
