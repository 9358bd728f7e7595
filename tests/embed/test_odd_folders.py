"""Settings of a sentence-transformers folder that few have: read as sentence-transformers reads them, or refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_odd import DENSE, FOLDERS, POOLING, TEXTS, edit, in_file
from tiny_st import write_st_folder

import weft
from weft.compat import SentenceTransformer
from weft.errors import InputError, NotFoundError, UnsupportedError

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "embed" / "tiny-odd.npz")
SETTINGS, EXTRA, NORM = "sentence_bert_config.json", "config_sentence_transformers.json", "3_Normalize/config.json"


@pytest.mark.parametrize("name", FOLDERS)
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, name: str) -> None:
    model = SentenceTransformer(str(FOLDERS[name](tmp_path / name)))
    assert np.abs(model.encode(TEXTS) - GOLDEN[name]).max() <= 1e-5


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (POOLING, {"pooling_mode": ["mean", "cls"]}, "pooling_mode must be one of .*got 'mean and first'"),
    (POOLING, {"pooling_mode": 3}, "pooling_mode must be one of .*got '3'"),
    (DENSE, {"use_residual": True}, "use_residual is not supported"),
    (
        DENSE,
        {"activation_function": "mine.Identity"},
        "activation_function must be one of torch's .*got 'mine.Identity'",
    ),
    (DENSE, {"module_input_name": "token_embeddings"}, "module_input_name must be .*got 'token_embeddings'"),
    (DENSE, {"module_output_name": "other"}, "module_output_name must be .*got 'other'"),
    (NORM, {"module_input_name": "token_embeddings"}, "module_input_name must be .*got 'token_embeddings'"),
    (EXTRA, {"model_type": "SparseEncoder"}, "model_type must be .*got 'SparseEncoder'"),
    (SETTINGS, {"transformer_task": "fill-mask"}, "transformer_task must be 'feature-extraction': got 'fill-mask'"),
    (SETTINGS, {"query_length": 6}, "query_length is not supported: got 6"),
    (SETTINGS, {"config_args": {"is_decoder": True}}, "config_args has .*got 'is_decoder'"),
    (SETTINGS, {"tokenizer_args": {"model_max_length": 9}}, "tokenizer_args has .*got 'model_max_length'"),
    (SETTINGS, {"processing_kwargs": {"text": {"max_length": 9}}}, "processing_kwargs.text has .*got 'max_length'"),
    (SETTINGS, {"modality_config": {"message": {}}}, "modality_config"),
]


@pytest.mark.parametrize(("file", "changed", "message"), REFUSED)
def test_what_would_change_vectors_is_refused_by_name(
    tmp_path: Path, file: str, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=rf"\[{file}\] {message}"):
        weft.Embedder(str(in_file(file, **changed)(tmp_path / "model")))


def test_what_changes_no_vector_is_taken(tmp_path: Path) -> None:
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    write = in_file(
        SETTINGS,
        transformer_task="feature-extraction",
        modality_config={"text": text},
        module_output_name="token_embeddings",
        model_args={"attn_implementation": "eager", "trust_remote_code": True},
    )
    plain = weft.Embedder(str(write_st_folder(tmp_path / "plain", vocab_size=228)))
    assert np.array_equal(weft.Embedder(str(write(tmp_path / "model"))).encode("a"), plain.encode("a"))


def test_a_folder_may_ask_for_shorter_vectors(tmp_path: Path) -> None:
    """Cut, and of length one again, as weft's are."""
    whole = weft.Embedder(str(write_st_folder(tmp_path / "whole", vocab_size=228)))
    embedder = weft.Embedder(str(in_file(EXTRA, truncate_dim=16)(tmp_path / "model")))
    assert embedder.dimension == 16 and embedder.at(24).dimension == 24
    cut = whole.encode(TEXTS[:3])[:, :16]
    assert np.abs(embedder.encode(TEXTS[:3]) - cut / np.linalg.norm(cut, axis=1, keepdims=True)).max() <= 1e-6
    assert embedder.fingerprint != whole.fingerprint


def test_pickled_weights_of_a_layer_are_told(tmp_path: Path) -> None:
    folder = write_st_folder(tmp_path / "model")
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(UnsupportedError, match=r"\[2_Dense/config.json\] the layer has only pickled weights"):
        weft.Embedder(str(folder))


def test_a_module_of_the_model_s_own_code_is_refused(tmp_path: Path) -> None:
    folder = write_st_folder(tmp_path / "model")
    rows = json.loads((folder / "modules.json").read_text())
    rows[0]["type"] = "custom_st.Transformer"
    (folder / "modules.json").write_text(json.dumps(rows))
    with pytest.raises(UnsupportedError, match=r"the model's own code.*got 'custom_st\.Transformer'"):
        weft.Embedder(str(folder))


def test_a_model_in_a_folder_inside_is_told(tmp_path: Path) -> None:
    write_st_folder(tmp_path / "model" / "0_Transformer")
    edit(tmp_path / "model" / "modules.json")
    with pytest.raises(NotFoundError, match=r"weights must be in the top folder, even if modules\.json names another"):
        weft.Embedder(str(tmp_path / "model"))


def test_a_special_token_in_a_text_stays_text(tmp_path: Path) -> None:
    """A prompt's is one. Where both have some they cannot be told apart, and nothing is guessed."""
    embedder = weft.Embedder(str(FOLDERS["special-prompt"](tmp_path / "model")))
    mask = embedder.tokenizer.id("[MASK]")
    assert list(embedder.token_ids(["a"], prompt_name="query").ids[0])[1] == mask
    assert mask not in embedder.token_ids(["[MASK]"], prompt="").ids[0]
    with pytest.raises(InputError, match="text 1 contains a special token"):
        embedder.encode(["a", "[MASK]"])
    with pytest.raises(InputError, match="text 0 contains a special token"):
        embedder.encode("SK] a", prompt="[SEP] [MA")
    cut = embedder.token_ids(["the cat " * 90], prompt_name="query", truncate="tail").ids[0]
    assert list(cut[:2]) == [embedder.tokenizer.id("[CLS]"), mask] and len(cut) == 48
