"""Every type of model that sees computes what transformers does, whole, in chunks, in batches and from the cache."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_eyes
import tiny_sights
from click.testing import CliRunner
from PIL import Image

import weft
from weft.cli.app import app
from weft.errors import FormatError, InputError, NotFoundError, UnsupportedError, WeftError
from weft.generate import Request, Seen, make_request
from weft.generate.sight.prompt import step_vectors, turns
from weft.pictures import crops_of, grid_of, open_picture, read_crop_recipe, read_grid_recipe
from weft.runtime.paged.holding import slots_of
from weft.runtime.steps import build_step

VISION = Path(__file__).parent.parent / "golden" / "vision"
FILES = np.load(VISION / "pictures.npz")
GOLDEN = {kind: np.load(VISION / f"sights_{kind}.npz") for kind in tiny_sights.TYPES}
FAR = 2e-4
NAMES = tuple(tiny_eyes.CONVERSATIONS)
GREEDY = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
KINDS = tuple(tiny_sights.TYPES)
each = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: tiny_sights.write_folder(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


@pytest.fixture(scope="module")
def models(folders):
    return {kind: weft.load(str(folder), context=1024) for kind, folder in folders.items()}


def asked(name, pictures=None):
    """The messages as transformers got them: without the text <image>."""
    found = tiny_eyes.messages(name, pictures or tiny_eyes.pictures())
    for message in found:
        plain = [{**p, "text": p["text"].replace("<image>", "")} if "text" in p else p for p in message["content"]]
        message["content"] = plain
    return found


def pictures_of(prompt):
    return getattr(prompt, "pictures", ())


def ends(prompt, chunk):
    """Where chunks of a prompt end: not inside tokens that see each other."""
    at, found = 0, []
    while at < len(prompt):
        at = min(at + chunk, len(prompt))
        at = next((one.end for one in pictures_of(prompt) if one.whole and one.at < at < one.end), at)
        found.append(at)
    return found


def logits(decoder, prompt, chunk):
    """Logits after every token, computed in chunks."""
    holding, found, start = decoder.holding(), [], 0
    assert holding.grow(len(prompt))
    for end in ends(prompt, chunk):
        part = list(prompt[start:end])
        given = step_vectors([(start, end, pictures_of(prompt))])
        holding.ready()
        where = {"pages": [holding.row], "slots": slots_of([holding])}
        step = build_step([part], starts=[start], asked=[len(part)], **where, **given)
        found.append(decoder.run(step))
        holding.advance()
        start = end
    holding.release()
    return np.concatenate(found)


def floats(levels, processor):
    """What a processor makes of bytes [..., 3, rows, cols]."""
    scaled = (levels.astype(np.float64) / 255).astype(np.float32)
    mean, std = (np.asarray(processor[name], np.float32)[:, None, None] for name in ("image_mean", "image_std"))
    return (scaled - mean) / std


def unfolded(pixels, patch):
    """Patches [n, 3 patch²] of pixels [3, rows, cols], row by row."""
    rows, cols = pixels.shape[1] // patch, pixels.shape[2] // patch
    return pixels.reshape(3, rows, patch, cols, patch).transpose(1, 3, 0, 2, 4).reshape(rows * cols, -1)


def test_crops_of_60_pictures_are_those_of_transformers():
    golden = GOLDEN["gemma3"]
    said = {**tiny_sights.GEMMA["processor"], **tiny_sights.PAN, "size": {"height": 8, "width": 8}}
    said["pan_and_scan_min_crop_size"] = 6
    recipe = read_crop_recipe(said, {"image_size": 8, "patch_size": 4}, "preprocessor_config.json")
    names = [key.removeprefix("file.") for key in FILES.files if key.startswith("file.")]
    assert len(names) == 60
    cut = 0
    for name in names:
        found = crops_of(open_picture(FILES[f"file.{name}"].tobytes()), recipe)
        wanted = floats(golden[f"prepared.{name}"], said)
        assert np.abs(wanted.reshape(-1)[:8] - golden[f"first.{name}"]).max() <= 1e-6
        assert len(found) == len(wanted) == 1 + int(golden[f"crops.{name}"][0]), name
        cut += len(found) > 1
        for part, pixels in zip(found, wanted):
            assert np.abs(part.values - unfolded(pixels, 4)).max() <= 1e-6, name
    assert cut >= 10


def by_rows(levels, rows, cols, merge, patch):
    """Bytes [rows x cols, 3 patch²] of patches that transformers lays out square by square, with each frame twice."""
    squares = levels.reshape(rows // merge, cols // merge, merge, merge, 3, 2, patch, patch)
    assert np.array_equal(squares[..., 0, :, :], squares[..., 1, :, :])
    return squares[..., 0, :, :].transpose(0, 2, 1, 3, 4, 5, 6).reshape(rows * cols, 3, patch, patch)


def test_60_pictures_in_their_own_proportions_are_those_of_transformers():
    golden = GOLDEN["qwen3_vl"]
    said = {**tiny_sights.QWEN["processor"], "size": {"shortest_edge": 70, "longest_edge": 300}}
    recipe = read_grid_recipe(said, tiny_sights.QWEN["config"]["vision_config"], "preprocessor_config.json")
    names = [key.removeprefix("file.") for key in FILES.files if key.startswith("file.")]
    assert len(names) == 60
    shapes = set()
    for name in names:
        picture = open_picture(FILES[f"file.{name}"].tobytes())
        found = grid_of(picture, recipe)
        _, rows, cols = golden[f"grid.{name}"]
        assert (found.rows, found.cols) == (rows, cols), name
        wanted = floats(by_rows(golden[f"prepared.{name}"], rows, cols, 2, 4), said).reshape(rows * cols, -1)
        assert np.abs(wanted.reshape(-1)[:8] - golden[f"first.{name}"]).max() <= 1e-6
        assert np.abs(found.values - wanted).max() <= 1e-6, name
        shapes.add((rows, cols))
    assert len(shapes) >= 10


@each
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_pictures_are_the_vectors_of_transformers(folders, kind, backend):
    eyes = weft.load(str(folders[kind]), backend=backend, context=64).eyes
    for i, pixels in enumerate(tiny_eyes.pictures()):
        (look,) = eyes.look([pixels])
        found = np.concatenate([np.concatenate(eyes.tokens(part)) for part in look.parts])
        assert found.shape == GOLDEN[kind][f"picture.{i}"].shape
        assert np.abs(found - GOLDEN[kind][f"picture.{i}"]).max() < FAR


@each
@pytest.mark.parametrize("name", NAMES)
def test_a_conversation_has_the_ids_of_transformers(models, kind, name):
    found = models[kind].chat_ids(asked(name))
    assert found == GOLDEN[kind][f"{name}.ids"].tolist()
    places = [place for one in pictures_of(found) for place in range(one.at, one.end)]
    assert places == [place for place, id in enumerate(found) if id == tiny_sights.TYPES[kind]["picture"]]


@each
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers_in_any_chunks(models, kind, name):
    prompt = models[kind].chat_ids(asked(name))
    whole = logits(models[kind].decoder, prompt, 512)
    assert np.abs(whole[::7] - GOLDEN[kind][f"{name}.logits"]).max() < FAR
    assert np.abs(whole[-1] - GOLDEN[kind][f"{name}.last"]).max() < FAR
    for chunk in (1, 16, 64):
        assert np.array_equal(logits(models[kind].decoder, prompt, chunk), whole)


@each
def test_logits_of_the_reference_are_those_of_transformers(folders, kind):
    model = weft.load(str(folders[kind]), backend="reference", context=512)
    for name in ("one", "turns"):
        found = logits(model.decoder, model.chat_ids(asked(name)), 512)
        assert np.abs(found[::7] - GOLDEN[kind][f"{name}.logits"]).max() < FAR


@each
@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_transformers_and_the_same_from_the_cache(folders, kind, name):
    fresh = weft.load(str(folders[kind]), context=1024)
    prompt = fresh.chat_ids(asked(name))
    first = fresh.generate(prompt, logprobs=2, **GREEDY)
    assert list(first.tokens) == GOLDEN[kind][f"{name}.made"].tolist()
    again = fresh.generate(fresh.chat_ids(asked(name)), logprobs=2, **GREEDY)
    assert again.usage.cached_tokens == (len(prompt) - 1) // 32 * 32
    assert again.tokens == first.tokens and again.logprobs == first.logprobs
    assert fresh.chat(asked(name), **GREEDY).tokens == first.tokens


@each
def test_another_picture_under_the_same_ids_shares_only_the_text_before_it(folders, kind):
    first, second = tiny_eyes.pictures(), tiny_eyes.pictures()
    second[1] = second[1][:, ::-1].copy()
    fresh, other = (weft.load(str(folders[kind]), context=1024) for _ in range(2))
    prompt, changed = fresh.chat_ids(asked("turns", first)), fresh.chat_ids(asked("turns", second))
    assert prompt == changed and prompt.pictures[0].digest != changed.pictures[0].digest
    wanted = other.generate(changed, logprobs=1, **GREEDY)
    fresh.generate(prompt, **GREEDY)
    found = fresh.generate(changed, logprobs=1, **GREEDY)
    assert found.usage.cached_tokens <= prompt.pictures[0].at
    assert found.tokens == wanted.tokens and found.logprobs == wanted.logprobs


@each
def test_a_batch_with_texts_and_pictures_gives_what_each_gives_alone(folders, kind):
    alone, together = (weft.load(str(folders[kind]), context=1024) for _ in range(2))
    prompts = [alone.chat_ids(asked(name)) for name in NAMES]
    options = {"logprobs": 3, "prompt_logprobs": 1, "prefix_cache": False, **GREEDY}
    wanted = [alone.generate(prompt, **options) for prompt in prompts]
    for step_tokens in (512, 24):
        engine = weft.Engine(together, step_tokens=step_tokens)
        handles = [engine.submit(make_request(prompt, **options)) for prompt in prompts]
        for handle, one in zip(handles, wanted):
            found = handle.result()
            assert found.tokens == one.tokens and found.logprobs == one.logprobs
            assert found.prompt_logprobs == one.prompt_logprobs


@each
@pytest.mark.parametrize("compute", ["f32", "bf16", "f16"])
def test_a_text_has_the_same_bits_in_a_step_with_pictures(folders, kind, compute):
    decoder = weft.load(str(folders[kind]), compute=compute, context=512)
    text, seen = decoder.chat_ids(asked("none")), decoder.chat_ids(asked("one"))
    decoder = decoder.decoder
    holdings = [decoder.holding(), decoder.holding()]
    for holding, prompt in zip(holdings, (seen, text)):
        assert holding.grow(len(prompt))
        holding.ready()
    given = step_vectors([(0, len(seen), seen.pictures), (0, len(text), ())])
    ids, rows = [list(seen), list(text)], [holding.row for holding in holdings]
    step = build_step(ids, asked=[len(seen), len(text)], pages=rows, slots=slots_of(holdings), **given)
    both = decoder.run(step)
    assert np.array_equal(both[len(seen) :], logits(decoder, text, 512))
    assert np.array_equal(both[: len(seen)], logits(decoder, seen, 512))


@each
def test_raw_prompts_take_pictures_at_their_marks_or_first(models, kind):
    model, picture = models[kind], tiny_eyes.pictures()[0]
    first = model.prompt_ids("What?", images=[picture])
    assert first == model.prompt_ids("<image>What?", images=[picture])
    after = model.prompt_ids("a<image>b", images=[picture])
    assert after[0] == ord("a") and after[-1] == ord("b") and after.pictures[0].at > 1
    with pytest.raises(InputError, match="places for 2 pictures"):
        model.prompt_ids("<image>What?", images=[picture, picture])


@each
def test_a_folder_that_lacks_what_is_needed_says_so(folders, kind, tmp_path):
    blind = weft.load(str(tiny_sights.write_folder(tmp_path / "a", kind, processor=False)), context=512)
    assert blind.chat(asked("none"), **GREEDY).tokens == tuple(GOLDEN[kind]["none.made"])
    with pytest.raises(NotFoundError, match="does not say how pictures are prepared"):
        blind.chat(asked("one"))
    other = weft.load(
        str(tiny_sights.write_folder(tmp_path / "b", kind, {"image_processor_type": "CLIPImageProcessor"})), context=512
    )
    with pytest.raises(UnsupportedError, match="must be one of"):
        other.chat(asked("one"))
    token = "image_token_index" if kind == "gemma3" else "image_token_id"
    wrong = weft.load(str(tiny_sights.write_folder(tmp_path / "c", kind, config={token: 9999})), context=512)
    with pytest.raises(FormatError):
        wrong.chat(asked("one"))
    tensors = {
        name: one for name, one in tiny_sights.weights(kind).items() if "merger" not in name and "proj" not in name
    }
    text = {
        name: one for name, one in tiny_sights.weights(kind).items() if "language_model" in name or "lm_head" in name
    }
    lacking = weft.load(str(tiny_sights.write_folder(tmp_path / "d", kind, tensors={**tensors, **text})), context=512)
    with pytest.raises(WeftError, match=r"the model wants|missing|has no"):
        lacking.chat(asked("one"))


def test_experts_that_are_stored_with_their_inputs_first_are_the_same(folders, tmp_path):
    sideways = {
        name: np.ascontiguousarray(one.swapaxes(1, 2)) if ".experts." in name else one
        for name, one in tiny_sights.weights("qwen3_vl_moe").items()
    }
    assert sum(".experts." in name for name in sideways) == 6
    model = weft.load(str(tiny_sights.write_folder(tmp_path, "qwen3_vl_moe", tensors=sideways)), context=512)
    assert list(model.chat(asked("one"), **GREEDY).tokens) == GOLDEN["qwen3_vl_moe"]["one.made"].tolist()


def test_a_head_of_its_own_drafts_for_texts_and_not_after_pictures(tmp_path):
    tensors, at = tiny_sights.weights("qwen3_5"), "model.language_model.layers.1."
    rng, size = np.random.default_rng(5), 32
    head = {f"mtp.layers.0.{name.removeprefix(at)}": one for name, one in tensors.items() if name.startswith(at)}
    for name, shape in (("fc", (size, 2 * size)), ("norm", size), ("pre_fc_norm_embedding", size)):
        head[f"mtp.{name}.weight"] = rng.normal(0, 0.2, shape).astype(np.float32)
    head["mtp.pre_fc_norm_hidden.weight"] = head["mtp.norm.weight"]
    model = weft.load(str(tiny_sights.write_folder(tmp_path, "qwen3_5", tensors={**tensors, **head})), context=1024)
    assert model.decoder.has_draft_head
    prompts = [model.chat_ids(asked(name)) for name in NAMES]
    handles = [model.engine.submit(make_request(prompt, **GREEDY)) for prompt in prompts]
    for name, handle in zip(NAMES, handles):
        assert list(handle.result().tokens) == GOLDEN["qwen3_5"][f"{name}.made"].tolist()


@each
def test_the_command_line_shows_pictures(folders, kind, tmp_path):
    path = tmp_path / "0.png"
    Image.fromarray(tiny_eyes.pictures()[0]).save(path)
    model = weft.load(str(folders[kind]), context=512)
    content = [{"type": "image", "image": path}, tiny_eyes.text("What?")]
    wanted = model.chat([{"role": "user", "content": content}], max_tokens=12, temperature=0)
    greedy = ["--max-tokens", "12", "--temperature", "0", "--json", "--context", "512"]
    command = ["generate", "--chat", "What?", "--image", str(path), "-m", str(folders[kind]), *greedy]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["tokens"] == list(wanted.tokens)


def test_pan_and_scan_gives_what_transformers_gives(tmp_path):
    golden = GOLDEN["gemma3"]
    model = weft.load(str(tiny_sights.write_folder(tmp_path, "gemma3", tiny_sights.PAN)), context=1024)
    prompt = model.chat_ids(asked("several"))
    assert prompt == golden["pan.several.ids"].tolist() and len(prompt.pictures) > 3
    found = logits(model.decoder, prompt, 512)
    assert np.abs(found[::7] - golden["pan.several.logits"]).max() < FAR
    assert list(model.generate(prompt, **GREEDY).tokens) == golden["pan.several.made"].tolist()


def test_tokens_that_see_each_other_are_computed_in_one_step(models):
    model = models["gemma3"]
    prompt = model.chat_ids(asked("one"))
    end, holding = prompt.pictures[0].end - 1, model.decoder.holding()
    assert holding.grow(len(prompt))
    given = step_vectors([(0, end, prompt.pictures)])
    step = build_step([list(prompt[:end])], asked=[1], pages=[holding.row], **given)
    with pytest.raises(InputError, match="last one of its sequence in this step") as caught:
        model.decoder.run(step)
    holding.release()
    assert caught.value.field == "reach"


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"do_pan_and_scan": 1}, FormatError, "must be true or false"),
        ({"pan_and_scan_max_num_crops": 0}, FormatError, "must be a whole number from 2 to 64"),
        ({"pan_and_scan_min_crop_size": 1}, FormatError, "must be a whole number from 4 to"),
        ({"pan_and_scan_min_ratio_to_activate": 0.5}, FormatError, "must be a number of at least 1"),
        ({"size": {"height": 8, "width": 8}}, FormatError, "must give pictures of 24 x 24 pixels"),
    ],
)
def test_crops_that_weft_does_not_make_are_refused(tmp_path, change, error, words):
    model = weft.load(str(tiny_sights.write_folder(tmp_path, "gemma3", change)), context=512)
    with pytest.raises(error, match=words):
        model.chat(asked("one"))


def test_a_seen_picture_has_one_grid_of_its_tokens():
    with pytest.raises(InputError, match="must have rows and columns of 3 tokens"):
        Seen(0, np.zeros((3, 4), np.float32), grid=(2, 2))
    with pytest.raises(InputError, match="must have vectors of float32"):
        Seen(0, np.zeros((3, 4), np.float32), deep=(np.zeros((2, 4), np.float32),))
    one, two = (Seen(0, np.zeros((6, 4), np.float32), grid=grid) for grid in ((2, 3), (3, 2)))
    assert one.digest != two.digest
    assert Request([1, 2], pictures=[Seen(0, np.zeros((1, 4), np.float32))]).pictures[0].shift == 0


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"patch_size": 8}, FormatError, "must be 4, the patch_size of the model's vision_config"),
        ({"merge_size": 3}, FormatError, "must be 2, the spatial_merge_size"),
        ({"temporal_patch_size": 1}, FormatError, "must be 2, the temporal_patch_size"),
        ({"size": {"shortest_edge": 0}}, FormatError, "must be a whole number of pixels"),
        ({"size": {"shortest_edge": 100, "longest_edge": 50}}, FormatError, "must be at least 100"),
        ({"size": [1, 2]}, FormatError, "must have shortest_edge and longest_edge"),
        ({"do_normalize": False}, UnsupportedError, "must be true"),
    ],
)
def test_grids_that_weft_does_not_make_are_refused(tmp_path, change, error, words):
    model = weft.load(str(tiny_sights.write_folder(tmp_path, "qwen3_vl", change)), context=512)
    with pytest.raises(error, match=words):
        model.chat(asked("one"))


def test_a_picture_that_is_too_long_for_its_height_is_refused(models):
    wide = np.zeros((2, 402, 3), np.uint8)
    with pytest.raises(InputError, match="one side is more than 200 times the other") as caught:
        models["qwen3_vl"].chat(asked("one", [wide]))
    assert caught.value.index == 0


@pytest.mark.parametrize(
    "part, change, words",
    [
        ("vision_config", {"hidden_size": 30}, "must be a multiple of 4 num_heads"),
        ("vision_config", {"deepstack_visual_indexes": [2, 0]}, "must be at most 8 layers from 0 to 3, in order"),
        ("vision_config", {"deepstack_visual_indexes": [4]}, "must be at most 8 layers from 0 to 3, in order"),
        ("vision_config", {"out_hidden_size": 24}, "must be the hidden_size of the text part, 32"),
        ("vision_config", {"num_position_embeddings": 24}, "must be a square"),
        ("text_config", {"rope_parameters": {"mrope_section": [1, 2]}}, "must be three numbers"),
        ("text_config", {"rope_parameters": {"mrope_interleaved": False}}, "must be true"),
    ],
)
def test_configs_that_weft_does_not_run_are_refused(tmp_path, part, change, words):
    config = tiny_sights.QWEN["config"]
    inner = {**config[part], **change}
    if "rope_parameters" in change:
        inner["rope_parameters"] = {**config[part]["rope_parameters"], **change["rope_parameters"]}
    with pytest.raises(UnsupportedError, match=words):
        weft.load(str(tiny_sights.write_folder(tmp_path, "qwen3_vl", config={part: inner})), context=512).chat(
            asked("one")
        )


def test_positions_of_a_text_go_on_after_the_larger_side_of_a_picture():
    pictures = [Seen(2, np.zeros((6, 4), np.float32), grid=(2, 3)), Seen(9, np.zeros((2, 4), np.float32), grid=(2, 1))]
    wanted = [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 6, 8, 9],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8, 9],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 6, 8, 9],
    ]
    assert turns(0, 13, pictures).tolist() == wanted
    for start in range(13):
        for stop in range(start + 1, 14):
            assert turns(start, stop, pictures).tolist() == [row[start:stop] for row in wanted]
    assert "turns" not in step_vectors([(0, 2, pictures)]) and "turns" in step_vectors([(12, 13, pictures)])
