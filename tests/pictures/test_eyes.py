"""Chats that see compute what transformers computes, whole, in chunks, in batches and from the prefix cache."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import tiny_eyes
from PIL import Image

import weft
from weft.errors import FormatError, InputError, NotFoundError, TooLongError, UnsupportedError
from weft.generate import Prompt, Request, Seen, make_request
from weft.generate.sight.prompt import keyed, step_vectors
from weft.pictures import open_picture, read_tile_recipe, tiles_of
from weft.runtime.steps import build_step

VISION = Path(__file__).parent.parent / "golden" / "vision"
GOLDEN, TILES, FILES = (np.load(VISION / f"{name}.npz") for name in ("eyes", "tiles", "pictures"))
FAR = 2e-4
NAMES = tuple(tiny_eyes.CONVERSATIONS)
GREEDY = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_eyes.write_folder(tmp_path_factory.mktemp("eyes"))


@pytest.fixture(scope="module")
def model(folder):
    return weft.load(str(folder))


@pytest.fixture
def fresh(folder):
    """A model whose prefix cache is empty."""
    return weft.load(str(folder))


def asked(name, pictures=None):
    """The messages as transformers got them: without the text <image>."""
    found = tiny_eyes.messages(name, pictures or tiny_eyes.pictures())
    for message in found:
        plain = [{**p, "text": p["text"].replace("<image>", "")} if "text" in p else p for p in message["content"]]
        message["content"] = plain
    return found


def logits(decoder, prompt, chunk):
    """Logits after every token, computed in chunks."""
    holding, found = decoder.holding(), []
    assert holding.grow(len(prompt))
    for start in range(0, len(prompt), chunk):
        part = list(prompt[start : start + chunk])
        given = step_vectors([(start, start + len(part), getattr(prompt, "pictures", ()))])
        step = build_step([part], starts=[start], asked=[len(part)], pages=[holding.row], **given)
        found.append(decoder.run(step))
    holding.release()
    return np.concatenate(found)


@pytest.mark.parametrize("kind", ["tiles", "whole"])
def test_tiles_of_60_pictures_are_those_of_transformers(kind):
    said = {"image_processor_type": "Idefics3ImageProcessor", "size": {"longest_edge": 24}}
    said |= {"max_image_size": {"longest_edge": 8}, "do_image_splitting": kind == "tiles"}
    recipe = read_tile_recipe(said, {"image_size": 8, "patch_size": 4}, "preprocessor_config.json")
    names = [key.removeprefix("file.") for key in FILES.files if key.startswith("file.")]
    assert len(names) >= 60
    for name in names:
        found = tiles_of(open_picture(FILES[f"file.{name}"].tobytes()), recipe)
        wanted = TILES[name if kind == "tiles" else f"{name}.whole"]
        assert kind == "whole" or (found.rows, found.cols) == tuple(TILES[f"{name}.grid"]), name
        assert len(found.tiles) == len(wanted), name
        for tile, pixels in zip(found.tiles, wanted):
            patches = pixels.reshape(3, 2, 4, 2, 4).transpose(1, 3, 0, 2, 4).reshape(4, 48)
            assert np.abs(tile.values - patches).max() <= 1e-6, name


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_pictures_are_the_vectors_of_transformers(folder, backend):
    eyes = weft.load(str(folder), backend=backend).eyes
    for i, pixels in enumerate(tiny_eyes.pictures()):
        (look,) = eyes.look([pixels])
        found = np.concatenate([eyes.vectors(part) for part in look.parts])
        assert found.shape == GOLDEN[f"picture.{i}"].shape
        assert np.abs(found - GOLDEN[f"picture.{i}"]).max() < FAR


@pytest.mark.parametrize("name", NAMES)
def test_a_conversation_has_the_ids_of_transformers(model, name):
    found = model.chat_ids(asked(name))
    assert found == GOLDEN[f"{name}.ids"].tolist()
    places = [place for one in getattr(found, "pictures", ()) for place in range(one.at, one.end)]
    assert places == [place for place, id in enumerate(found) if id == tiny_eyes.IMAGE]


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers_in_any_chunks(model, name):
    prompt = model.chat_ids(asked(name))
    whole = logits(model.decoder, prompt, 512)
    assert np.abs(whole[::7] - GOLDEN[f"{name}.logits"]).max() < FAR
    assert np.abs(whole[-1] - GOLDEN[f"{name}.last"]).max() < FAR
    for chunk in (1, 16, 64):
        assert np.array_equal(logits(model.decoder, prompt, chunk), whole)


def test_logits_of_the_reference_are_those_of_transformers(folder):
    model = weft.load(str(folder), backend="reference", context=512)
    for name in ("one", "turns"):
        found = logits(model.decoder, model.chat_ids(asked(name)), 512)
        assert np.abs(found[::7] - GOLDEN[f"{name}.logits"]).max() < FAR


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_transformers_and_the_same_from_the_cache(fresh, name):
    prompt = fresh.chat_ids(asked(name))
    first = fresh.generate(prompt, logprobs=2, **GREEDY)
    assert list(first.tokens) == GOLDEN[f"{name}.made"].tolist()
    again = fresh.generate(fresh.chat_ids(asked(name)), logprobs=2, **GREEDY)
    assert again.usage.cached_tokens == (len(prompt) - 1) // 32 * 32
    assert again.tokens == first.tokens and again.logprobs == first.logprobs


def test_another_picture_under_the_same_ids_shares_only_the_text_before_it(fresh):
    first, second = tiny_eyes.pictures(), tiny_eyes.pictures()
    second[1] = second[1][:, ::-1].copy()
    other = fresh.chat_ids(asked("turns", second))
    wanted = weft.load(str(fresh.decoder.checkpoint.path)).generate(other, logprobs=1, **GREEDY)
    prompt = fresh.chat_ids(asked("turns", first))
    assert prompt == other and prompt.pictures[0].digest != other.pictures[0].digest
    fresh.generate(prompt, **GREEDY)
    found = fresh.generate(other, logprobs=1, **GREEDY)
    assert found.usage.cached_tokens == 0  # the first page has tokens of the picture
    assert found.tokens == wanted.tokens and found.logprobs == wanted.logprobs


def test_a_batch_with_texts_and_pictures_gives_what_each_gives_alone(folder):
    alone, together = weft.load(str(folder)), weft.load(str(folder))
    prompts = [alone.chat_ids(asked(name)) for name in NAMES]
    options = {"logprobs": 3, "prompt_logprobs": 1, "prefix_cache": False, **GREEDY}
    wanted = [alone.generate(prompt, **options) for prompt in prompts]
    handles = [together.engine.submit(make_request(prompt, **options)) for prompt in prompts]
    for handle, one in zip(handles, wanted):
        found = handle.result()
        assert (found.tokens, found.logprobs, found.prompt_logprobs) == (one.tokens, one.logprobs, one.prompt_logprobs)


@pytest.mark.parametrize("compute", ["f32", "bf16", "f16"])
def test_a_text_has_the_same_bits_in_a_step_with_pictures(folder, compute):
    model = weft.load(str(folder), compute=compute)
    text, seen = model.chat_ids(asked("none")), model.chat_ids(asked("one"))
    holdings = [model.decoder.holding(), model.decoder.holding()]
    for holding, prompt in zip(holdings, (seen, text)):
        assert holding.grow(len(prompt))
    given = step_vectors([(0, len(seen), seen.pictures), (0, len(text), ())])
    ids, rows = [list(seen), list(text)], [holding.row for holding in holdings]
    both = model.decoder.run(build_step(ids, asked=[len(seen), len(text)], pages=rows, **given))
    assert np.array_equal(both[len(seen) :], logits(model.decoder, text, 512))
    assert np.array_equal(both[: len(seen)], logits(model.decoder, seen, 512))


def test_the_text_of_a_place_is_text_in_a_message(model):
    prompt = model.chat_ids(tiny_eyes.messages("one", tiny_eyes.pictures()))
    assert len(prompt.pictures) == 4 and prompt.count(tiny_eyes.IMAGE) == 4 * tiny_eyes.PLACES
    assert "Say <image> or" in model.tokenizer.decode([id for id in prompt if id < 256])


def test_plain_strings_are_read_by_a_template_of_parts(model):
    said = {"role": "user", "content": "Hello there."}
    assert model.chat_ids([said]) == GOLDEN["none.ids"].tolist()


def test_raw_prompts_take_pictures_at_their_marks_or_first(model):
    picture = tiny_eyes.pictures()[0]
    first = model.prompt_ids("What?", images=[picture])
    marked = model.prompt_ids("<image>What?", images=[picture])
    assert isinstance(first, Prompt) and first == marked
    after = model.prompt_ids("a<image>b", images=[picture])
    assert after[0] == ord("a") and after[-1] == ord("b") and after.pictures[0].at > 1
    assert model.generate("What?", images=[picture], **GREEDY).tokens == model.generate(marked, **GREEDY).tokens
    with pytest.raises(InputError, match="the prompt has 1 places for 2 pictures"):
        model.prompt_ids("<image>What?", images=[picture, picture])
    with pytest.raises(InputError, match="must be one text"):
        model.prompt_ids([1, 2], images=[picture])


def test_chat_takes_urls_bytes_and_paths(model, tmp_path):
    path = tmp_path / "picture.png"
    Image.fromarray(tiny_eyes.pictures()[0]).save(path)
    url = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    wanted = model.chat(asked("one"), **GREEDY).tokens
    for given in (str(path), path, path.read_bytes(), url):
        assert model.chat(asked("one", [given]), **GREEDY).tokens == wanted
    parts = [{"type": "image_url", "image_url": {"url": url}}, *asked("one")[0]["content"][1:]]
    assert model.chat([{"role": "user", "content": parts}], **GREEDY).tokens == wanted
    streamed = [token for piece in model.chat_stream(asked("one"), **GREEDY) for token in piece.tokens]
    assert tuple(streamed) == wanted


def test_pictures_seen_before_are_not_computed_again(fresh, monkeypatch):
    fresh.chat_ids(asked("several"))
    monkeypatch.setattr(type(fresh.eyes.tower), "tokens_of", lambda *_: pytest.fail("the tower ran again"))
    fresh.chat_ids(asked("several"))


def test_what_cannot_be_is_refused(folder, model):
    with pytest.raises(InputError, match="must have a picture") as caught:
        model.chat([{"role": "user", "content": [{"type": "image"}]}])
    assert caught.value.field == "messages[0].content[0]"
    with pytest.raises(InputError, match="is not a PNG") as caught:
        model.chat(asked("several", [b"nonsense"] * 4))
    assert caught.value.index == 0
    with pytest.raises(TooLongError, match="the context has 64"):
        weft.load(str(folder), context=64).chat(asked("several"))
    prompt = model.prompt_ids("What?", images=tiny_eyes.pictures()[:1])
    with pytest.raises(InputError, match="where no picture is"):
        model.generate(list(prompt))
    with pytest.raises(UnsupportedError, match="this prompt has pictures"):
        model.logits(prompt)


def test_a_model_that_does_not_see_says_so(tmp_path):
    tensors = {name.replace("model.text_model.", "model."): values for name, values in tiny_eyes.weights().items()}
    blind = weft.load(str(tiny_eyes.write_folder(tmp_path, tiny_eyes.TEXT, None, tensors)))
    with pytest.raises(UnsupportedError, match="does not see, and there are 1 pictures"):
        blind.chat(asked("one"))
    with pytest.raises(UnsupportedError, match="this model does not see"):
        blind.engine.submit(Request([1, 2], pictures=[Seen(0, np.zeros((1, 32), np.float32))]))


@pytest.mark.parametrize(
    "pictures, words",
    [
        ([Seen(0, np.zeros((1, 31), np.float32))], "must be vectors of 32 numbers, not 31"),
        ([Seen(0, np.zeros((1, 32), np.float32))], "at place 0, where a picture is"),
        ([Seen(1, np.zeros((2, 32), np.float32))], "at place 2, where a picture is"),
        ([Seen(2, np.zeros((2, 32), np.float32))], "must lie one after another in the 3 tokens"),
        ([Seen(1, np.zeros((1, 32), np.float32))] * 2, "must lie one after another"),
        (["a"], "must be weft.generate.Seen"),
    ],
)
def test_pictures_of_a_request_lie_where_their_tokens_are(model, pictures, words):
    with pytest.raises(InputError, match=words):
        model.engine.submit(Request([1, tiny_eyes.IMAGE, 2], pictures=pictures))


@pytest.mark.parametrize("vectors", [np.zeros((1, 2)), np.zeros(3, np.float32), np.full((1, 2), np.nan, np.float32)])
def test_vectors_of_a_picture_are_finite_rows(vectors):
    with pytest.raises(InputError) as caught:
        Seen(0, vectors)
    assert caught.value.field == "pictures"


def test_a_prompt_with_pictures_is_not_truncated(folder):
    short = weft.load(str(folder), context=64)
    prompt = short.prompt_ids("What? " * 20, images=tiny_eyes.pictures()[:1])
    with pytest.raises(TooLongError, match="the context leaves room for"):
        short.generate(prompt, truncate="left", max_tokens=4)


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"image_processor_type": "CLIPImageProcessor"}, UnsupportedError, "must be one of Idefics3ImageProcessor"),
        ({"max_image_size": {"longest_edge": 32}}, UnsupportedError, "must be 32, the max_image_size"),
        ({"size": {"height": 3}}, FormatError, "must have a longest_edge"),
        ({"do_image_splitting": 1}, FormatError, "must be true or false"),
        ({"do_resize": False}, UnsupportedError, "must be true"),
        (None, NotFoundError, "does not say how pictures are prepared"),
    ],
)
def test_recipes_that_weft_does_not_follow_are_refused(tmp_path, change, error, words):
    said = None if change is None else {**tiny_eyes.PROCESSOR, **change}
    model = weft.load(str(tiny_eyes.write_folder(tmp_path, processor=said)))
    with pytest.raises(error, match=words):
        model.chat(asked("one"))


def test_a_token_of_pictures_that_is_none_is_refused(tmp_path):
    config = {**tiny_eyes.CONFIG, "image_token_id": "<image>"}
    with pytest.raises(FormatError, match="must be a token id from 0 to"):
        weft.load(str(tiny_eyes.write_folder(tmp_path, config))).chat(asked("one"))


def test_smolvlm_is_idefics3_under_another_name(tmp_path, model):
    config = {**tiny_eyes.CONFIG, "model_type": "smolvlm"}
    processor = {**tiny_eyes.PROCESSOR, "image_processor_type": "SmolVLMImageProcessorFast"}
    folder = tiny_eyes.write_folder(tmp_path, config, None)
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": processor}))
    assert weft.load(str(folder)).chat(asked("one"), **GREEDY).tokens == model.chat(asked("one"), **GREEDY).tokens


def test_pages_of_pictures_have_keys_of_their_own():
    ids, one, two = list(range(100)), np.ones((40, 4), np.float32), np.zeros((40, 4), np.float32)
    plain = keyed(ids, ())
    seen = [Seen(30, one)]
    assert len(keyed(ids, seen)) == len(plain)
    found = [keyed(ids, seen)[at : at + 128] for at in range(0, 400, 128)]
    assert all(page != plain[128 * i : 128 * i + 128] for i, page in enumerate(found[:3])) and found[3] == plain[384:]
    assert found[0] != keyed(ids, [Seen(30, two)])[:128] and found[0] != keyed(ids, [Seen(31, one)])[:128]
    for page in range(3):
        assert keyed(ids[32 * page : 32 * page + 32], seen, 32 * page) == found[page]
