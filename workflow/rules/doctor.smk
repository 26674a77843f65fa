# Is this cluster ready? One tiny job, and a line for each thing that must be right.

from blindspot.plan import doctor


rule doctor:
    """Check partition, account, GPUs, disks and environment of a cluster with one tiny job."""
    log:
        f"{WORK}/logs/doctor.log",
    localrule: True
    conda:
        "../../envs/blindspot.yaml"
    params:
        configs=CONFIG_ARGUMENTS,
        override=lambda wildcards: canonical(OVERRIDE),
        asked=lambda wildcards, resources: canonical(
            doctor.asked(
                {"slurm_reservation": call.executor_setting("reservation", "")}
                | dict(resources.items())
                | largest_training(),
                call.resources_of(TRAIN),
            )
        ),
        folder=lambda wildcards: call.executor_setting("folder", "work/submitit"),
        latency=lambda wildcards: call.latency_wait,
    message:
        "asking Slurm, and sending one tiny job"
    shell:
        "blindspot doctor {params.configs} --override {params.override:q}"
        " --resources {params.asked:q} --folder {params.folder:q} --latency {params.latency}"
        " 2>&1 | tee -i {log:q}"
