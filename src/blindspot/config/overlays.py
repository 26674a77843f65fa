"""How config files are laid over each other.

A study file says what differs from the base file, `config.yaml`. Maps merge key by key, except
`cells`, `sizes`, `claims`, `corpus`, `tokenizer` and `grid.seeds`: a study that names them means
exactly those. Of the first three, a name without settings stands for the base's definition.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blindspot.config import yamltext
from blindspot.errors import BlindspotError

#: Keys of which a later file replaces the whole value.
REPLACED = {"corpus", "tokenizer"}
#: Maps of the user's own names: a later file chooses the members; null takes the base's.
CHOSEN = {"cells", "sizes", "claims"}


def laid_over(base: Path, overlays: Sequence[Path], override: Mapping[str, Any]) -> dict[str, Any]:
    """What `base` says, with `overlays` and then `override` laid over it; not validated."""
    values = yamltext.read(base)
    for path in overlays:
        if path.resolve() != base.resolve():
            values = merge(values, yamltext.read(path))
    return merge(values, override)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `over` over `base`; see the module's docstring for the rule."""
    merged = dict(base)
    for key, value in over.items():
        old = base.get(key)
        if key in CHOSEN and isinstance(value, Mapping) and isinstance(old, Mapping):
            missing = [name for name, member in value.items() if member is None and name not in old]
            if missing:
                raise BlindspotError(
                    f"{key}.{missing[0]}: it has no settings, and the base config defines only "
                    f"{', '.join(map(str, old))}; define it, or use one of these names"
                )
            merged[key] = {name: old[name] if m is None else m for name, m in value.items()}
        elif key not in REPLACED and isinstance(value, Mapping) and isinstance(old, Mapping):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged
