"""The study on a real Slurm, which the executor's tests bring up. These run only when this folder
is asked for: pytest tests/slurm."""

import sys

from toys import ROOT

sys.path.insert(0, str(ROOT / "packages/snakemake-executor-plugin-submitit/tests/slurm"))

from fixtures import *  # noqa: F403
