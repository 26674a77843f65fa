"""One run on several nodes: a process for each GPU, which meet, stop together and go on."""

import json
from collections.abc import Callable

from cluster import Cluster
from study import TOY, Study


def test_ranks(study: Callable[..., Study], cluster: Cluster) -> None:
    toy = study()
    controller = toy.start("ranks", snakefile=TOY / "Ranks")
    toy.wait("ranks", (toy.folder / "begun").exists)
    (job,) = cluster.ask("squeue", "-h", "-r", "-o", "%i").split()
    shown = cluster.ask("scontrol", "show", "job", job)
    assert "NumNodes=2 NumCPUs=8 NumTasks=4 CPUs/Task=2" in shown
    # As ahead of a time limit: the batch shell alone is told.
    cluster.ask("scancel", "--batch", "--signal=USR2", job)
    assert controller.wait(120) == 0, toy.log[-3000:]
    result = json.loads((toy.folder / "results/ranks.json").read_text())
    steps = range(60)
    assert result["total"] == sum(rank + step for rank in range(4) for step in steps)
    assert result["first"] > 0, "it went on from where all had stopped"
    nodes, locals_, gpus, restarts = zip(*result["ranks"], strict=True)
    assert nodes == ("n1", "n1", "n2", "n2")
    assert locals_ == ("0", "1", "0", "1")
    assert set(gpus) == {"0,1"}
    assert set(restarts) == {"1"}


def test_unequal(study: Callable[..., Study]) -> None:
    toy = study()
    assert toy.run("ranks", "--set-resources", "ranks:gpu=3", snakefile=TOY / "Ranks") == 1
    assert "gpu=3 cannot be shared equally by nodes=2" in toy.log
