"""Columns of the files that `collect` makes of many runs."""

from blindspot.declared.columns import FLAG, Column, File, count, integer, real, word

#: What the rows of every file begin with, once they are gathered.
LEAD = (
    word("size", "name of the model's size"),
    word("cell", "name of the cell"),
    integer("seed", "the run's seed"),
    word("run", "`{size}/{cell}/seed{n}-{hash8}`, its folder below runs/"),
)

DIRTY = Column("dirty", FLAG, "whether it was made with uncommitted changes")

RUNS = File(
    "runs",
    "a run",
    (
        *LEAD,
        integer("steps", "optimizer steps of training"),
        integer("tokens_seen", "steps x batch x window length", "tokens"),
        integer("parameters", "trained parameters"),
        word("device", "what it was trained on"),
        count("threads", "threads of the CPU"),
        word("precision", "precision of training"),
        real("seconds", "seconds of training, over all attempts", "s"),
        real("compile_seconds", "of compiling the training step; empty in records of before", "s"),
        real("tokens_per_s", "tokens_seen / seconds", "tokens/s"),
        word("started", "UTC, ISO 8601"),
        word("finished", "UTC, ISO 8601"),
        word("commit", "of the code; empty outside of a checkout"),
        DIRTY,
        word("torch", "version"),
        real("train_flops_per_token", "of training, by formula", "FLOPs/token"),
    ),
    ("run",),
)

PROVENANCE = File(
    "provenance",
    "a training, a measuring job or a timing",
    (
        *LEAD,
        word("stage", "training, measurement or throughput; a throughput is of a size alone"),
        word("measurements", "what a measuring job made, names joined by spaces; else empty"),
        count(
            "revision", "of the code's behaviour; empty where measurements of a job have several"
        ),
        count("data_revision", "of how the corpus became token files"),
        word("commit", "of the code; empty outside of a checkout"),
        DIRTY,
        word("device", "what it ran on"),
        count("threads", "threads of the CPU"),
        word("precision", "of the computation"),
        word("blindspot", "version"),
        word("python", "version"),
        word("torch", "version"),
        word("numpy", "version"),
        word("started", "UTC, ISO 8601; of the first of several measurements"),
        word("finished", "UTC, ISO 8601; of the last of them"),
        real("process_seconds", "of the process, imports included, when the record was made", "s"),
        count("resumes", "how often a training was taken up again"),
        count("requeues", "how often its job was started anew"),
        word("command", "the command line"),
    ),
    ("size", "cell", "seed", "stage", "measurements", "revision", "command"),
)
