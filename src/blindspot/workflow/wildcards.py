"""Regular expressions for Snakemake's wildcards, from the names that may stand there."""

import re
from collections.abc import Collection, Iterable

#: A run's name is `{size}/{cell}/seed{n}-{hash}`.
SEED = "[^/]+/[^/]+/seed[0-9]+-"
RUN = f"{SEED}[0-9a-f]+"


def only(names: Iterable[str]) -> str:
    """A wildcard constraint that matches these names, or nothing at all."""
    return "|".join(map(re.escape, names)) or "(?!)"


def only_runs(names: Collection[str], known: Collection[str]) -> str:
    """A wildcard constraint that matches, of the `known` runs, these. It is kept short, because
    Snakemake copies it into every path: a thousand names in full cost 15 seconds."""
    if len({hash_of(name) for name in known}) < len(known):
        return only(names)
    chosen, others = set(names), set(known) - set(names)
    fewer = "|".join(sorted(map(hash_of, chosen if len(chosen) <= len(others) else others)))
    if len(chosen) <= len(others):
        return f"{SEED}(?:{fewer})" if chosen else only([])
    return f"(?!.*-(?:{fewer})){RUN}" if others else RUN


def hash_of(name: str) -> str:
    """The hash at the end of a run's name."""
    return name.rpartition("-")[2]
