# From small result files to tables, figures and the report. Nothing here needs torch.

#: What draws all of it again.
AGAIN = [call.named(rule) for rule in ("tables", "figures", "claims", "report")]
#: How the report looks, beside what Snakemake gives it.
STYLESHEET = call.source("../report/report.css")


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
        report(
            f"{RESULTS}/tables/{{table}}.html",
            category=lambda wildcards: catalogue.heading(TABLES[wildcards.table].category),
            caption="../report/item.rst",
            labels=lambda wildcards: labels("Table", TABLES[wildcards.table]),
        ),
        report(
            f"{RESULTS}/tables/{{table}}.csv",
            category=lambda wildcards: catalogue.heading(TABLES[wildcards.table].category),
            caption="../report/item.rst",
            labels=lambda wildcards: labels("Table", TABLES[wildcards.table], raw=True),
        ),
        f"{RESULTS}/tables/{{table}}.md",
        f"{RESULTS}/tables/{{table}}.tex",
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
        report(
            f"{RESULTS}/figures/{{figure}}.png",
            category=lambda wildcards: catalogue.heading(FIGURES[wildcards.figure].category),
            caption="../report/item.rst",
            labels=lambda wildcards: labels("Figure", FIGURES[wildcards.figure]),
        ),
        report(
            f"{RESULTS}/figures/{{figure}}.csv",
            category=lambda wildcards: catalogue.heading(FIGURES[wildcards.figure].category),
            caption="../report/item.rst",
            labels=lambda wildcards: labels("Figure", FIGURES[wildcards.figure], raw=True),
        ),
        f"{RESULTS}/figures/{{figure}}.pdf",
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
        report(
            f"{RESULTS}/claims.html",
            category=catalogue.heading("Claims"),
            caption="../report/item.rst",
            labels=labels("Table", catalogue.CLAIMS),
        ),
        report(
            f"{RESULTS}/claims.csv",
            category=catalogue.heading("Claims"),
            caption="../report/item.rst",
            labels=labels("Table", catalogue.CLAIMS, raw=True),
        ),
        f"{RESULTS}/claims.md",
    log:
        f"{WORK}/logs/publish/{study.config.study}-claims.log",
    localrule: True
    conda:
        "../../envs/publish.yaml"
    params:
        code=lambda wildcards: sourcecode.of_rule("claims"),
        collected=lambda wildcards, input: Path(input[0]).parent,
        out=lambda wildcards, output: Path(output[0]).parent,
        caption=(
            "Each claim, what this study measured, the criterion (written down before the full "
            "study), and a verdict. Seeds are the unit; one seed decides nothing."
        ),
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
        expand(
            "{results}/figures/{figure}.{kind}",
            results=RESULTS,
            figure=FIGURES,
            kind=["pdf", "png", "csv"],
        ),
        rules.collect.output[0],
    localrule: True
    message:
        "all figures are there"


rule readme:
    """The study's own page, with tables and figures in place. Trains nothing."""

    # The study on one page for whoever browses the repository, and the page that its report opens on.
    input:
        rules.collect.output,
        rules.tables.input,
        rules.figures.input,
        rules.claims.output,
        # Written by hand, if at all.
        lambda wildcards: [path for path in [f"{RESULTS}/FINDINGS.md"] if Path(path).exists()],
    output:
        f"{RESULTS}/README.md",
        f"{RESULTS}/landing.html",
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
        "page {output[0]}"
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
        stylesheet=STYLESHEET,
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
        "snakemake --report {output:q} --report-stylesheet {input.stylesheet:q} --nolock --cores 1"
        " {params.configs} -- {params.targets}"
        " > {log:q} 2>&1 || (cat {log:q} >&2; exit 1)"
