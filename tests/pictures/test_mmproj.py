"""A GGUF file and its mmproj file see what the folder sees that they were made of, and what llama.cpp sees."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny_eyes
import tiny_sights
from click.testing import CliRunner
from PIL import Image

import weft
from weft.cli.app import app
from weft.errors import FormatError, NotFoundError, UnsupportedError, WeightError
from weft.generate import Prompt, Seen
from weft.generate.sight.prompt import step_vectors
from weft.quantise import Quantising
from weft.runtime.projector import find_projector
from weft.runtime.steps import build_step
from weft.weights import TensorView, open_gguf, write_gguf

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "vision" / "mmproj.npz")
# llama.cpp looks gelu up in a table of halves and unfolds patches as halves; values go to 7.
FAR = 0.01
FAR_LOGITS = 0.02
GREEDY = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return tiny_eyes.write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def model(pair):
    return weft.load(str(pair[0]))


def chunks(name):
    """The ids of llama.cpp's prompt, its tokens of pictures as weft's, and the vectors of each tile."""
    ids, vectors, number = [], [], 0
    while f"{name}.chunk.{number}" in GOLDEN:
        chunk = GOLDEN[f"{name}.chunk.{number}"]
        ids += chunk.tolist() if chunk.ndim == 1 else [tiny_eyes.IMAGE] * len(chunk)
        vectors += [chunk] if chunk.ndim == 2 else []
        number += 1
    return ids, vectors


@pytest.mark.parametrize("name", tiny_eyes.WHOLE_TILES)
def test_a_pair_that_weft_wrote_means_the_same_to_llama_cpp(model, name):
    text, pictures = tiny_eyes.WHOLE_TILES[name]
    prompt = model.prompt_ids(text, None, True, pictures)
    ids, vectors = chunks(name)
    assert list(prompt) == ids
    assert len(prompt.pictures) == len(vectors) >= 5
    for found, wanted in zip(prompt.pictures, vectors):
        assert np.abs(found.vectors - wanted).max() < FAR and np.abs(wanted).max() > 4
    found = run(model, prompt)
    wanted = GOLDEN[f"{name}.logits"]
    assert np.abs(found - wanted).max() < FAR_LOGITS and np.abs(wanted).max() > 2


def run(model, prompt):
    """Logits after every fifth token."""
    holding = model.decoder.holding()
    assert holding.grow(len(prompt))
    given = step_vectors([(0, len(prompt), prompt.pictures)])
    given |= {"slots": [(0, 1)]} if model.decoder.slots is not None else {}
    step = build_step([list(prompt)], starts=[0], asked=[len(prompt)], pages=[holding.row], **given)
    found = model.decoder.run(step)[::5]
    holding.release()
    return found


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """The pair of a type, written once."""
    made = {}

    def of(kind):
        if kind not in made:
            made[kind] = tiny_sights.write_pair(tmp_path_factory.mktemp(kind), kind)
        return made[kind]

    return of


@pytest.fixture(scope="module")
def gemma(pairs):
    return pairs("gemma3")


def test_a_pair_of_gemma_3_means_the_same_to_llama_cpp(gemma):
    model = weft.load(str(gemma[0]), context=512)
    before, vectors, after = (GOLDEN[f"gemma3.chunk.{i}"] for i in range(3))
    text, pictures = tiny_sights.OWN_SIZES["gemma3"]
    (look,) = model.eyes.look(pictures)
    found = model.eyes.vectors(look.parts[0])
    assert np.abs(found - vectors).max() < FAR and np.abs(vectors).max() > 4
    ids = [*before.tolist(), *[tiny_sights.GEMMA["picture"]] * len(vectors), *after.tolist()]
    written = model.prompt_ids(text, None, True, pictures)
    assert [id for id in written if id != 10] == [id for id in ids if id != 10]  # llama.cpp leaves ends of lines out
    wanted = GOLDEN["gemma3.logits"]
    assert np.abs(run(model, Prompt(ids, [Seen(len(before), found, whole=True)])) - wanted).max() < 0.15
    assert np.abs(run(model, Prompt(ids, [Seen(len(before), found)])) - wanted).max() > 1  # tokens that see to the left
    assert np.abs(wanted).max() > 10


@pytest.mark.parametrize(("kind", "far"), [("qwen3_vl", FAR_LOGITS), ("qwen3_vl_moe", FAR_LOGITS), ("qwen3_5", 0.1)])
def test_a_pair_of_qwen_means_the_same_to_llama_cpp(pairs, kind, far):
    """Tokens of pictures are turned by rows and columns; llama.cpp's vectors have their deep stack beside them."""
    model = weft.load(str(pairs(kind)[0]), context=512)
    text, pictures = tiny_sights.OWN_SIZES[kind]
    prompt = model.prompt_ids(text, None, True, pictures)
    chunks = [GOLDEN[f"{kind}.chunk.{number}"] for number in range(5)]
    picture = tiny_sights.TYPES[kind]["picture"]
    parts = [chunk.tolist() if chunk.ndim == 1 else [picture] * len(chunk) for chunk in chunks]
    assert list(prompt) == [id for part in parts for id in part]
    deep = 0 if kind == "qwen3_5" else 2
    for found, wanted in zip(prompt.pictures, (chunks[1], chunks[3]), strict=True):
        assert len(found.deep) == deep
        assert np.abs(np.concatenate([found.vectors, *found.deep], axis=1) - wanted).max() < FAR
        assert np.abs(wanted).max() > 4
    wanted = GOLDEN[f"{kind}.logits"]
    assert np.abs(run(model, prompt) - wanted).max() < far
    flat = Prompt(prompt, [Seen(one.at, one.vectors, deep=one.deep) for one in prompt.pictures])
    assert np.abs(run(model, flat) - wanted).max() > 10 * far  # as if they were turned by their places


@pytest.mark.parametrize("kind", ["gemma3", "qwen3_vl", "qwen3_vl_moe", "qwen3_5"])
def test_a_pair_of_each_type_answers_as_the_folder_it_was_made_of(pairs, kind):
    model, folder = (weft.load(str(path), context=512) for path in (pairs(kind)[0], pairs(kind)[0].parent / "whole"))
    for name in tiny_eyes.CONVERSATIONS:
        asked = tiny_eyes.messages(name, tiny_eyes.pictures())
        wanted, found = folder.chat_ids(asked), model.chat_ids(asked)
        assert found == wanted
        for one, other in zip(getattr(found, "pictures", ()), getattr(wanted, "pictures", ()), strict=True):
            assert one.digest == other.digest
        assert model.chat(asked, **GREEDY).tokens == folder.chat(asked, **GREEDY).tokens


def test_a_pair_answers_as_the_folder_it_was_made_of(pair, model):
    folder = weft.load(str(pair[0].parent / "whole"))
    for name in tiny_eyes.CONVERSATIONS:
        asked = tiny_eyes.messages(name, tiny_eyes.pictures())
        wanted, found = folder.chat_ids(asked), model.chat_ids(asked)
        assert found == wanted
        for one, other in zip(getattr(found, "pictures", ()), getattr(wanted, "pictures", ()), strict=True):
            assert np.array_equal(one.vectors, other.vectors)
        assert model.chat(asked, **GREEDY).tokens == folder.chat(asked, **GREEDY).tokens


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0"])
def test_towers_of_fewer_bits_see_nearly_the_same(pair, model, tmp_path, kind):
    list(Quantising(pair[0].parent / "whole", tmp_path / "few.gguf", type=kind, tower=True))
    few = weft.load(str(pair[0]), mmproj=str(tmp_path / "few.gguf"))
    (look,) = model.eyes.look([tiny_eyes.pictures()[3]])
    wanted = np.concatenate([model.eyes.vectors(tile) for tile in look.parts])
    found = np.concatenate([few.eyes.vectors(tile) for tile in look.parts])
    away = np.abs(found - wanted).max()
    assert 0 < away < (0.02 if kind == "f16" else 0.1)


def test_the_file_beside_a_model_is_found_by_its_name(tmp_path):
    assert find_projector(tmp_path / "SmolVLM-256M-Instruct-Q8_0.gguf") is None
    (tmp_path / "mmproj-F16.gguf").touch()
    assert find_projector(tmp_path / "SmolVLM-256M-Instruct-Q8_0.gguf").name == "mmproj-F16.gguf"
    (tmp_path / "mmproj-SmolVLM-256M-Instruct-f16.gguf").touch()
    found = find_projector(tmp_path / "SmolVLM-256M-Instruct-Q8_0.gguf")
    assert found is not None and found.name == "mmproj-SmolVLM-256M-Instruct-f16.gguf"
    assert find_projector(tmp_path / "another-Q8_0.gguf") is None  # several, and none is like it


def test_without_its_file_a_model_reads_texts_and_says_what_is_missing(pair, tmp_path):
    shutil.copy(pair[0], tmp_path / "alone.gguf")
    alone = weft.load(str(tmp_path / "alone.gguf"))
    assert alone.eyes is None
    assert alone.chat([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], **GREEDY).tokens
    with pytest.raises(UnsupportedError, match="mmproj"):
        alone.chat(tiny_eyes.messages("one", tiny_eyes.pictures()), **GREEDY)


def changed(pair, to, **meta):
    """The mmproj file with other metadata."""
    opened = open_gguf(pair[1])
    said = {**opened.metadata.stored(), **{key.replace("__", "."): value for key, value in meta.items()}}
    write_gguf(to, opened.tensors, {key: value for key, value in said.items() if value is not None})
    return str(to)


@pytest.mark.parametrize(
    ("meta", "error", "says"),
    [
        ({"clip__projector_type": "resampler"}, UnsupportedError, "resampler"),
        ({"clip__vision__projection_dim": 64}, UnsupportedError, "64 numbers"),
        ({"general__architecture": "llama"}, UnsupportedError, "not a picture tower"),
        ({"clip__has_vision_encoder": False}, UnsupportedError, "no picture tower"),
        ({"clip__vision__image_size": None}, FormatError, "image_size"),
        ({"clip__vision__patch_size": 5}, (FormatError, WeightError, UnsupportedError), "scale_factor|shape|patch"),
        ({"clip__vision__image_mean": [0.5, 0.5]}, FormatError, "three numbers"),
        ({"clip__vision__embedding_length": 1 << 30}, FormatError, "embedding_length"),
        ({"clip__use_silu": True}, FormatError, "cannot both be true"),
    ],
)
def test_files_that_do_not_fit_are_errors_that_say_why(pair, tmp_path, meta, error, says):
    file = changed(pair, tmp_path / "other.gguf", **meta)
    with pytest.raises(error, match=says):
        weft.load(str(pair[0]), mmproj=file).chat(tiny_eyes.messages("one", tiny_eyes.pictures()), **GREEDY)


@pytest.mark.parametrize(
    ("meta", "error", "says"),
    [
        (
            {"clip__vision__is_deepstack_layers": [True, False, False, False]},
            UnsupportedError,
            "1 layers.*reads them in 2",
        ),
        ({"clip__vision__is_deepstack_layers": None}, UnsupportedError, "0 layers"),
        ({"clip__vision__is_deepstack_layers": [True, True, False, False]}, WeightError, "v.deepstack.2"),
        ({"clip__vision__image_size": 24}, (FormatError, WeightError), "pos_embed"),
        ({"clip__vision__spatial_merge_size": 4}, (FormatError, WeightError), "shape"),
    ],
)
def test_files_of_qwen_that_do_not_fit_are_errors_that_say_why(pairs, tmp_path, meta, error, says):
    file = changed(pairs("qwen3_vl"), tmp_path / "other.gguf", **meta)
    asked = tiny_eyes.messages("one", tiny_eyes.pictures())
    with pytest.raises(error, match=says):
        weft.load(str(pairs("qwen3_vl")[0]), mmproj=file).chat(asked, **GREEDY)


def f32(*shape):
    return TensorView.of(np.ones(shape, np.float32))


@pytest.mark.parametrize(
    ("kind", "changed", "says"),
    [
        ("qwen3_vl", {"v.patch_embd.weight.1": None}, r"no v\.patch_embd\.weight\.1: .* each of two frames"),
        ("qwen3_vl", {"v.patch_embd.weight": None}, r"no v\.patch_embd\.weight: .* each of two frames"),
        ("qwen3_vl", {"v.patch_embd.weight.1": f32(24, 3, 4, 8)}, r"weight\.1 must have one shape of four dimensions"),
        (
            "qwen3_vl",
            dict.fromkeys(("v.patch_embd.weight", "v.patch_embd.weight.1"), f32(24, 48)),
            "of four dimensions",
        ),
        ("qwen3_vl", {"v.patch_embd.bias": None}, "patch_embed.proj.bias is missing"),
        (
            "qwen3_vl",
            {"v.blk.0.ffn_down.weight": f32(960)},
            r"fc2\.weight has shape \(960,\), the model wants \(24, 40\)",
        ),
        (
            "gemma3",
            {"mm.input_projection.weight": None},
            r"mm_input_projection\.weight is missing; the model wants \(24, 32\)",
        ),
    ],
)
def test_towers_with_missing_or_odd_tensors_are_errors_that_name_them(pairs, tmp_path, kind, changed, says):
    opened = open_gguf(pairs(kind)[1])
    tensors = {name: view for name, view in {**opened.tensors, **changed}.items() if view is not None}
    write_gguf(tmp_path / "odd.gguf", tensors, opened.metadata.stored())
    model = weft.load(str(pairs(kind)[0]), mmproj=str(tmp_path / "odd.gguf"), context=512)
    text, pictures = tiny_sights.OWN_SIZES[kind]
    with pytest.raises(WeightError, match=says):
        model.prompt_ids(text, None, True, pictures)


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0"])
def test_a_tower_of_qwen_of_fewer_bits_sees_nearly_the_same(pairs, tmp_path, kind):
    text, mmproj = pairs("qwen3_vl")
    list(Quantising(text.parent / "whole", tmp_path / "few.gguf", type=kind, tower=True))
    model, few = (weft.load(str(text), mmproj=str(path)) for path in (mmproj, tmp_path / "few.gguf"))
    (look,) = model.eyes.look(tiny_sights.OWN_SIZES["qwen3_vl"][1][:1])
    wanted, found = (np.concatenate(one.eyes.tokens(look.parts[0])) for one in (model, few))
    assert 0 < np.abs(found - wanted).max() < (0.02 if kind == "f16" else 0.2)


def test_one_that_was_not_asked_for_and_does_not_fit_is_left_out(pair, tmp_path):
    shutil.copy(pair[0], tmp_path / "tiny.gguf")
    changed(pair, tmp_path / "mmproj-other.gguf", clip__projector_type="resampler")
    assert weft.load(str(tmp_path / "tiny.gguf")).eyes is None


def test_a_vocabulary_without_a_token_for_pictures_reads_texts(pair, tmp_path):
    opened = open_gguf(pair[0])
    said = opened.metadata.stored()
    words = list(said["tokenizer.ggml.tokens"])
    words[tiny_eyes.IMAGE] = "<other>"
    write_gguf(tmp_path / "tiny.gguf", opened.tensors, {**said, "tokenizer.ggml.tokens": words})
    shutil.copy(pair[1], tmp_path / "mmproj-tiny.gguf")
    assert weft.load(str(tmp_path / "tiny.gguf")).eyes is None
    with pytest.raises(UnsupportedError, match="no token <image>"):
        weft.load(str(tmp_path / "tiny.gguf"), mmproj=str(tmp_path / "mmproj-tiny.gguf"))


def test_a_tower_that_is_loaded_as_a_model_says_what_it_is(pair):
    with pytest.raises(UnsupportedError) as raised:
        weft.load(str(pair[1]))
    assert "give this one as its mmproj file" in (raised.value.advice or "")


def test_missing_files_and_folders_are_refused(pair, tmp_path):
    with pytest.raises(NotFoundError, match="no such mmproj file"):
        weft.load(str(pair[0]), mmproj=str(tmp_path / "none.gguf"))
    with pytest.raises(UnsupportedError, match="is for GGUF files"):
        weft.load(str(pair[0].parent / "whole"), mmproj=str(pair[1]))
    with pytest.raises(UnsupportedError, match="no picture tower"):
        Quantising(pair[0].parent, tmp_path / "mmproj.gguf", type="f16", tower=True)


def test_old_files_with_both_layers_swapped_are_read(pair, model, tmp_path):
    opened = open_gguf(pair[1])
    other = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}

    def swapped(name):
        part = name.split(".")[-2]
        return name.replace(part, other.get(part, part))

    tensors = {swapped(name): view for name, view in opened.tensors.items()}
    write_gguf(tmp_path / "old.gguf", tensors, opened.metadata.stored())
    old = weft.load(str(pair[0]), mmproj=str(tmp_path / "old.gguf"))
    (look,) = old.eyes.look([tiny_eyes.pictures()[3]])
    tile = look.parts[0]
    assert np.array_equal(old.eyes.vectors(tile), model.eyes.vectors(tile))


def test_commands_write_and_use_the_pair(pair, tmp_path):
    runner = CliRunner()
    made = tmp_path / "mmproj-f32.gguf"
    arguments = ["quantize", str(pair[0].parent / "whole"), "-o", str(made), "--mmproj", "--type", "f32"]
    found = runner.invoke(app, arguments)
    assert found.exit_code == 0, found.output
    assert open_gguf(made).tensors.keys() == open_gguf(pair[1]).tensors.keys()
    Image.fromarray(tiny_eyes.pictures()[0]).save(tmp_path / "a.png")
    arguments = [
        "generate",
        "<image>What?",
        "--image",
        str(tmp_path / "a.png"),
        "-m",
        str(pair[0]),
        "--max-tokens",
        "4",
    ]
    found = runner.invoke(app, [*arguments, "--mmproj", str(made)])
    assert found.exit_code == 0, found.output
    refused = runner.invoke(app, [*arguments[:1], "Hi", "-m", str(pair[0]), "--mmproj", str(pair[0])])
    assert refused.exit_code != 0 and "not a picture tower" in refused.output
