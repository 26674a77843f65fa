"""`blindspot export`: a finished run as a folder that transformers loads.

    config.json, generation_config.json    shape, loops, readout; which code to load
    model.safetensors                      the weights; the run's hash and specification in its
                                           metadata, under `blindspot`
    modeling_blindspot.py                  the model, without this package
    tokenizer.json, tokenizer_config.json  the run's tokenizer
    README.md                              a model card with what was measured

config.json is written last: without it nothing loads the folder.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from blindspot import provenance
from blindspot.config.spec import ModelSpec, Recurrence
from blindspot.data import tokenizer as tokenizers
from blindspot.errors import BlindspotError
from blindspot.export import card
from blindspot.files import atomic_path, write_json, write_text
from blindspot.measure.finished import Finished

CODE = "modeling_blindspot.py"
#: Fields of the specification that a trained model still needs.
SHAPE = ("vocab_size", "d_model", "layers", "heads", "context")
KEPT = (*SHAPE, "loops", "readout", "interloop", "norm_eps", "alpha")


def _refuse_what_the_code_cannot(spec: ModelSpec) -> None:
    """`modeling_blindspot.py` knows the plain loop, its readouts and the two inter-loop norms."""
    plain = Recurrence().recurrence()
    odd = [name for name, value in spec.recurrence().items() if value != plain[name]]
    odd += ["learned_alpha"] if spec.learned_alpha else []
    odd += ["interloop reset"] if spec.interloop == "reset" else []
    if odd:
        raise BlindspotError(
            f"a model with {', '.join(odd)} cannot be exported: the code that goes with the "
            f"weights ({CODE}) has no such part; add it there, with its test"
        )


def export(run: Finished, folder: Path) -> None:
    """Write the folder. Raises `BlindspotError` where it holds something, or the run can't be
    loaded."""
    if folder.exists() and any(folder.iterdir()):
        raise BlindspotError(f"{folder}: is not empty; give a new folder")
    _refuse_what_the_code_cannot(run.spec.model)
    model = run.model(torch.device("cpu"))
    tensors = {name: p.detach().contiguous() for name, p in model.named_parameters()}
    about = {
        "run": run.name,
        "hash": run.spec.hash,
        "spec": run.spec.identity(),
        "exported": provenance.collect(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder / "model.safetensors") as temporary:
        save_file(tensors, temporary, metadata={"format": "pt", "blindspot": json.dumps(about)})
    with atomic_path(folder / CODE) as temporary:
        shutil.copyfile(Path(__file__).parent / CODE, temporary)
    with atomic_path(folder / "tokenizer.json") as temporary:
        shutil.copyfile(run.tokens.folder / "tokenizer.json", temporary)
    write_json(folder / "tokenizer_config.json", tokenizer_config(run))
    special = special_ids(run)
    write_json(folder / "generation_config.json", {"use_cache": False, **special})
    parameters = sum(t.numel() for t in tensors.values())
    write_text(folder / "README.md", card.render(run, parameters))
    write_json(folder / "config.json", config(run.spec.model) | special)


def config(spec: ModelSpec) -> dict[str, Any]:
    """config.json of a model, without special ids."""
    values = spec.model_dump(mode="json")
    return {
        "architectures": ["BlindspotForCausalLM"],
        "model_type": "blindspot",
        "auto_map": {
            "AutoConfig": "modeling_blindspot.BlindspotConfig",
            "AutoModelForCausalLM": "modeling_blindspot.BlindspotForCausalLM",
        },
        **{key: values[key] for key in KEPT},
        "dtype": "float32",
        "use_cache": False,
        "tie_word_embeddings": False,
    }


def special_ids(run: Finished) -> dict[str, int]:
    """The start token's id; texts of the study do not end by a token, so there is no other."""
    start = int(run.tokens.meta["start"])
    return {"bos_token_id": start, "pad_token_id": start}


def tokenizer_config(run: Finished) -> dict[str, Any]:
    """tokenizer_config.json: nothing is added to a text, since the start token begins a stream."""
    model = tokenizers.load(run.tokens.folder / "tokenizer.json")
    start, unk = run.tokens.meta["start"], run.tokens.meta["unk"]
    names = {"bos_token": start, "pad_token": start, "unk_token": unk}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": run.spec.model.context,
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
        **{key: model.id_to_token(i) for key, i in names.items() if i is not None},
    }
