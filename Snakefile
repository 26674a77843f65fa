# The readout blind spot in looped language models: the whole study as one graph.
#
#   snakemake all --cores 2 --configfile studies/demo.yaml     on this machine
#   snakemake --profile slurm all                              on a cluster
#   snakemake --cores 2 figures                                redraw from results/, train nothing
#
# corpus -> tokens -> train -> measure -> collect -> tables, figures -> report

from snakemake.utils import min_version

min_version("9.20")


include: "workflow/rules/common.smk"
include: "workflow/rules/messages.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/publish.smk"
include: "workflow/rules/ask.smk"
include: "workflow/rules/doctor.smk"


rule all:
    """The whole study: train and measure what is missing; every table and figure, the report."""
    default_target: True
    input:
        # Asked for by name: Snakemake overlooks a lost file whose successors are there.
        lambda wildcards: [f(name) for name in wanted() for f in (finished, measured)],
        lambda wildcards: [throughput_of(size) for size in timed()],
        lambda wildcards: remaking(),
        rules.collect.output[0],
        rules.tables.input,
        rules.figures.input,
        rules.claims.output,
        rules.report.output,
    message:
        "all of study {study.config.study} is there"


onstart:
    start()


onsuccess:
    finish()


onerror:
    explain()
