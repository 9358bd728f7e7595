"""sentence-transformers' arguments: those that change nothing here, those that are refused, and what to do instead."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, TypeVar

from weft.errors import MISSING, InputError, UnsupportedError

log = logging.getLogger("weft.embed")
T = TypeVar("T", bound="Model")

# Accepted and ignored: weft runs no code of models, writes no model cards, batches by tokens and has its own threads.
HARMLESS = ("trust_remote_code", "model_card_data", "batch_size", "chunk_size", "show_progress_bar")
HARMLESS_KEYS = ("attn_implementation", "device_map", "padding_side")  # of model_kwargs and tokenizer_kwargs
# What to do instead of giving an argument that weft does not support.
INSTEAD = {
    "modules": "give the model's folder or name",
    "cache_folder": "set HF_HOME in the environment",
    "token": "set HF_TOKEN in the environment",
    "use_auth_token": "set HF_TOKEN in the environment",
    "backend": "leave it out: weft is the backend",
    "model_kwargs": "set the arithmetic with compute=: f32, f16, bf16, bf16x3, int8 or auto",
    "tokenizer_kwargs": "set max_seq_length, or max_length of a CrossEncoder",
    "processor_kwargs": "set max_seq_length, or max_length of a CrossEncoder",
    "processing_kwargs": "set max_seq_length",
    "config_kwargs": "leave it out: the configuration is read from the model's files",
    "convert_to_tensor": "use torch.from_numpy on the result",
    "pool": "leave it out: weft uses all processors in one process",
    "prompt": "put it before the query yourself",
    "prompt_name": "put the prompt before the query yourself",
}


def without_foreign(given: Mapping[str, Any], kind: type | None = None) -> dict[str, Any]:
    """The arguments in `given` that are `kind`'s own; sentence-transformers' are removed, or refused by name."""
    from inspect import signature

    own = {}
    for name, value in given.items():
        asked = {key: value[key] for key in value if key not in HARMLESS_KEYS} if isinstance(value, Mapping) else value
        if name == "device":
            check_device(value)
        elif name in INSTEAD:
            if asked not in (None, False, {}, "torch") and not (asked is True and "token" in name):
                shown = MISSING if "token" in name else asked  # a secret
                raise UnsupportedError("compat", "is not supported", given=shown, field=name, advice=INSTEAD[name])
        elif name not in HARMLESS:
            own[name] = value
    known = () if kind is None else tuple(signature(kind).parameters)
    if unknown := [name for name in own if name not in known]:
        raise InputError("compat", "is not an argument of this class", field=unknown[0])
    return own


def check_device(device: Any) -> None:
    if device is not None and str(device) not in ("cpu", "cpu:0"):
        what = "must be 'cpu', where weft computes"
        raise UnsupportedError("compat", what, given=device, field="device", advice="leave it out")


def named(model: str, revision: str | None, owner: str) -> str:
    """The model as name@revision. A folder has no revisions; a bare name is one of `owner`'s, as there."""
    if revision is None or os.path.exists(os.path.expanduser(model)):
        return model
    return f"{model if '/' in model else f'{owner}/{model}'}@{revision}"


def refused(name: str, instead: str) -> Any:
    def refuse(*given: Any, **options: Any) -> None:
        raise UnsupportedError("compat", f"{name}() is not supported", advice=instead)

    return refuse


class Model:
    """Methods that both classes have because torch modules have them."""

    @property
    def device(self) -> str:
        return "cpu"

    def __bool__(self) -> bool:
        return True  # len() would be asked otherwise

    def __len__(self) -> int:
        raise UnsupportedError("compat", "len(model) is not supported: the model has no list of modules")

    def __getitem__(self, index: Any) -> Any:
        advice = "use its attributes, such as tokenizer and max_seq_length"
        what = "model[…] is not supported: the model has no list of modules"
        raise UnsupportedError("compat", what, given=index, advice=advice)

    def __iter__(self) -> Any:
        raise UnsupportedError("compat", "a model cannot be iterated over: it has no list of modules")

    def to(self: T, device: Any = None) -> T:
        """Returns itself: the model stays on the CPU."""
        check_device(device)
        return self

    def eval(self: T) -> T:
        """Returns itself: there is no training mode."""
        return self

    fit = refused("fit", "train with sentence-transformers, and give weft the folder that it saves")
    save = refused("save", "copy the model's folder: its files are unchanged")
    save_pretrained = refused("save_pretrained", "copy the model's folder: its files are unchanged")
    start_multi_process_pool = refused("start_multi_process_pool", INSTEAD["pool"])
    encode_multi_process = refused("encode_multi_process", "encode uses all processors in one process")


def check_batch_size(batch_size: Any) -> None:
    """Refuse a batch size below 1, as there; weft makes its own batches, of tokens."""
    if isinstance(batch_size, bool) or not hasattr(batch_size, "__index__") or batch_size < 1:
        raise InputError("compat", "must be a whole number from 1 on", given=batch_size, field="batch_size")


def warn_once(has_warned: bool, cut: int, count: int, limit: int) -> bool:
    """Log a warning that texts were cut, unless one was logged before; returns whether texts were cut."""
    if cut and not has_warned:
        log.warning("%d of %d texts were cut to %d tokens", cut, count, limit)
    return bool(cut)
