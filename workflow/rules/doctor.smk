# Is this cluster ready? One tiny job, and a line for each thing that must be right.


def asked_by_training(resources) -> dict:
    """What a training asks for: the profile's defaults, then the rule and its set-resources."""
    asked = {name: resources.get(name) for name in resources.keys()}
    for name, resource in workflow.get_rule("train").resources.items():
        if not resource.is_evaluable():
            asked[name] = resource.value
    return {
        name: value
        for name, value in asked.items()
        if isinstance(value, (int, str)) and not name.startswith("_") and name != "tmpdir"
    }


rule doctor:
    """Check partition, account, GPUs, disks and environment of a cluster with one tiny job."""
    log:
        f"{WORK}/logs/doctor.log",
    localrule: True
    conda:
        "../../envs/blindspot.yaml"
    params:
        configs=CONFIG_ARGUMENTS,
        override=canonical(OVERRIDE),
        asked=lambda wildcards, resources: canonical(asked_by_training(resources)),
        folder=lambda wildcards: getattr(workflow.executor_settings, "folder", "work/submitit"),
        latency=lambda wildcards: workflow.execution_settings.latency_wait,
    message:
        "asking Slurm, and sending one tiny job"
    shell:
        "blindspot doctor {params.configs} --override {params.override:q}"
        " --resources {params.asked:q} --folder {params.folder:q} --latency {params.latency}"
        " 2>&1 | tee {log:q}"
