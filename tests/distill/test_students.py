"""Students: their loss is PyTorch's, they learn what a teacher said, and a run that is stopped goes on."""

import json
from pathlib import Path

import gradient_cases
import numpy as np
import pytest
import taught_cases
import tiny
from click.testing import CliRunner
from tiny_chat import write_chat_model

from weft import distill
from weft.cli.app import app
from weft.distill.logits import TaughtLearner
from weft.errors import FormatError, InputError, NotFoundError, UnsupportedError
from weft.ops.training import head_distill
from weft.train import Learner, lora
from weft.train.data.taught import Taught
from weft.train.merge import merge

GOLDEN = dict(np.load(Path(__file__).resolve().parents[1] / "golden" / "distill" / "taught.npz"))


def softened(logs: np.ndarray, temperature: float) -> np.ndarray:
    powers = np.exp(logs / temperature)
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("name", taught_cases.HEADS)
def test_the_loss_of_a_head_is_that_of_pytorch(name):
    temperature, soft, scale, softcap = taught_cases.HEADS[name]
    given, wanted = taught_cases.head(name), GOLDEN[f"head {name}"]
    chances = softened(given["logs"], temperature)
    parts = soft * temperature**2 * chances
    constant = (parts * np.log(chances)).sum(axis=1)
    operands = (given["x"], given["weight"], given["targets"].astype(np.int32), np.full(len(chances), 1 - soft))
    attrs = {"scale": scale, "softcap": softcap, "temperature": temperature}
    loss, to_x = head_distill(*operands, given["words"].astype(np.int32), parts, **attrs)
    assert np.abs(loss + constant - wanted[0, : len(loss)]).max() <= 1e-12
    assert np.abs(to_x - wanted[1:]).max() <= 1e-12 * np.abs(wanted[1:]).max() + 1e-13


@pytest.mark.parametrize("name", taught_cases.MODELS)
def test_losses_and_gradients_of_a_student_are_those_of_pytorch(tmp_path, name):
    """1e-6 where all is float64 but the teacher's chances, which go in as float32; 2e-5 on kernels."""
    temperature, soft = taught_cases.MODELS[name]
    cfg, wanted = tiny.CONFIGS[name], GOLDEN[f"model {name}"]
    checkpoint = gradient_cases.checkpoint_of(tmp_path, cfg, "f32")
    how = {"words": taught_cases.WORDS, "temperature": temperature, "soft": soft, "context": 256}
    lessons = taught_cases.lessons(cfg)
    for backend, limit in (("reference", 1e-6), ("cpu", 2e-5)):
        learner = TaughtLearner(checkpoint, gradient_cases.changes(checkpoint), backend=backend, **how)
        given = gradient_cases.parameters(learner.shapes)
        loss, found = learner.gradients(lessons, given, learner.no_gradient())
        assert abs(loss / wanted[0, 0] - 1) <= limit
        assert gradient_cases.distance(gradient_cases.kept(found), wanted[1:]) <= limit
        each = learner.each_loss(lessons, given)
        assert abs(sum(map(float, map(np.sum, each))) / loss - 1) <= 1e-6


def test_neither_threads_nor_parts_change_a_bit_and_without_a_teacher_it_is_plain_training(tmp_path):
    cfg = tiny.CONFIGS["llama-grouped"]
    checkpoint = gradient_cases.checkpoint_of(tmp_path, cfg, "f32")
    changes, lessons = gradient_cases.changes(checkpoint), taught_cases.lessons(cfg)
    how = {"words": taught_cases.WORDS, "temperature": 2.0, "context": 256}

    def gradients(learner: Learner, parts: list[list[Taught]]) -> list[bytes]:
        sums = learner.no_gradient()
        for part in parts:
            _, sums = learner.gradients(part, gradient_cases.parameters(learner.shapes), sums)
        return [sums[name].tobytes() for name in sorted(sums)]

    one, two = (TaughtLearner(checkpoint, changes, threads=count, soft=0.5, **how) for count in (1, 2))
    assert gradients(one, [lessons]) == gradients(two, [[lesson] for lesson in lessons])
    hard = TaughtLearner(checkpoint, changes, soft=0.0, **how)
    plain = Learner(checkpoint, changes, context=256)
    assert gradients(hard, [lessons]) == gradients(plain, [lessons])
    assert gradients(hard, [lessons]) != gradients(one, [lessons])


@pytest.fixture(scope="module")
def taught(tmp_path_factory) -> tuple[Path, Path]:
    """A tiny base, and a model that was trained on it to answer: the teacher."""
    folder = tmp_path_factory.mktemp("taught")
    base = write_chat_model(folder / "base.gguf", template=None)
    rows = [
        {"prompt": f"{word} {number} is", "completion": f" {word[0]}."}
        for word in ("red", "blue")
        for number in range(12)
    ]
    for _ in lora(str(base), rows, output=folder / "adapter", steps=60, rate=0.02, rank=8, batch_tokens=512, threads=1):
        pass
    merge(str(base), folder / "adapter", folder / "teacher.gguf")
    return base, folder / "teacher.gguf"


def asked(count: int = 12) -> list[dict[str, str]]:
    return [{"prompt": f"{('red', 'blue')[number % 2]} {number} is"} for number in range(count)]


@pytest.fixture(scope="module")
def labelled(taught, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("labelled") / "out"
    done = distill.label(asked(), f"local:{taught[1]}", folder, max_tokens=12, top_logprobs=4)
    assert done.labelled == 12 and not done.failed
    again = distill.label(asked(), f"local:{taught[1]}", folder, max_tokens=12, top_logprobs=4)
    assert again.sent == 0 and again.labelled == 12
    return folder


def rows_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]


def test_a_local_teacher_leaves_its_likeliest_words(taught, labelled):
    from weft.generate import load

    teacher = load(str(taught[1]))
    for row in rows_of(labelled):
        said = row["teacher"]
        assert bytes(said["tokens"]).decode().strip() == row["completion"] and said["end"] == 257
        assert said["text"] == row["prompt"] + bytes(said["tokens"]).decode()
        found = teacher.generate([said["prompt"]], max_tokens=12, temperature=0.0, logprobs=4)[0]
        assert list(found.tokens) == said["tokens"] and len(said["top"]) == len(said["tokens"])
        for place, top in zip(found.logprobs, said["top"]):
            assert [id for id, _ in place.top] == [id for id, _ in top] and len(top) == 4
            assert np.allclose([value for _, value in place.top], [value for _, value in top], atol=1e-6)


STUDENT = {"steps": 60, "rate": 0.02, "rank": 8, "batch_tokens": 512, "threads": 1}


@pytest.mark.parametrize("student", ["lora", "logits"])
def test_a_student_answers_as_its_teacher(taught, labelled, tmp_path, student):
    from weft.generate import load

    run = distill.train(student, taught[0], labelled, output=tmp_path / "student", **STUDENT)
    steps = list(run)
    assert steps[-1].loss < 0.5 * steps[0].loss
    model = load(str(taught[0]))
    model.adapters.load("student", tmp_path / "student")
    rows = rows_of(labelled)
    found = model.generate([row["prompt"] for row in rows], max_tokens=12, temperature=0.0, adapter="student")
    assert [one.text.strip() for one in found] == [row["completion"] for row in rows]
    assert {one.finish_reason for one in found} == {"stop"}


def test_logits_bring_a_student_nearer_to_the_teacher_than_its_words_do(taught, labelled):
    """The divergence from the teacher, over all words that are kept of it."""
    apart = {}
    for soft in (0.0, 1.0):
        run = distill.train("logits", taught[0], labelled, valid=labelled, soft=soft, temperature=1.0, **STUDENT)
        for _ in run:
            pass
        judge = TaughtLearner(run.base.checkpoint, run.learner.changes, words=4, temperature=1.0, soft=1.0, threads=1)
        apart[soft] = judge.losses(run.valid.lessons, run.run.parameters)
    assert 0 <= apart[1.0] < apart[0.0]


def test_a_student_of_logits_in_bf16_follows_that_in_f32(taught, labelled):
    curves = []
    for compute in ("f32", "bf16"):
        run = distill.train("logits", taught[0], labelled, compute=compute, **{**STUDENT, "steps": 20})
        curves.append([step.loss for step in run])
        assert run.learner.compute == compute
    plain, narrow = np.asarray(curves)
    assert plain[-1] < 0.8 * plain[0] and (narrow != plain).any()
    assert np.abs(narrow - plain).max() <= 0.01 * plain[0]


def test_a_stopped_student_goes_on_bit_for_bit(taught, labelled, tmp_path):
    how = {"output": tmp_path / "run", "save_every": 0.0, **STUDENT, "steps": 6}
    whole = [step.loss for step in distill.train("logits", taught[0], labelled, **{**how, "output": tmp_path / "all"})]
    first = distill.train("logits", taught[0], labelled, **how)
    for step in first:
        if step.number == 3:
            break
    first.keep()
    with pytest.raises(InputError, match="temperature"):
        distill.train("logits", taught[0], labelled, resume=True, temperature=5.0, **how)
    second = distill.train("logits", taught[0], labelled, resume=True, **how)
    assert [step.loss for step in second] == whole[3:]
    one, two = ((tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("all", "run"))
    assert one == two


def test_words_of_a_server_are_learnt_where_tokens_are_the_same(taught, tmp_path):
    row = {"prompt": "red 1 is", "completion": " r."}
    said = [[" ", -0.1, [[" ", -0.1], ["x", -3.0]]], ["r", -0.2, [["r", -0.2], ["q", -2.0], ["two", -4.0]]]]
    said.append([".", -0.3, [[".", -0.3]]])
    run = distill.train("logits", taught[0], [{**row, "logprobs": said}], steps=1, threads=1)
    lesson = run.data.lessons[0]
    assert bytes(lesson.ids[:-1].tolist()) == b"red 1 is r." and lesson.ids[-1] == 257
    assert lesson.shares.tolist() == [0.0] * 8 + [1.0] * 4
    assert lesson.words[9].tolist()[:2] == [ord("r"), ord("q")] and np.isneginf(lesson.logs[9, 2:]).all()
    assert np.isneginf(lesson.logs[11]).all()  # the end, of which the server said nothing
    other = [["re", -0.1, [["re", -0.1]]], *said[1:]]
    with pytest.raises(InputError, match=r"another token.*same tokenizer"):
        distill.train("logits", taught[0], [{**row, "logprobs": other}], steps=1)


def changed(row: dict, **more: object) -> dict:
    return {**row, "teacher": {**row["teacher"], **more}}


def test_rows_that_cannot_teach_are_refused(taught, labelled):
    row = rows_of(labelled)[0]
    places = len(row["teacher"]["tokens"])
    for wrong, said in (
        ({"prompt": "a", "completion": "b"}, "no words of a teacher.*--top-k"),
        (changed(row, text="something else"), "other tokens than the student"),
        (changed(row, top=row["teacher"]["top"][:-1]), "for each of its tokens"),
        (changed(row, top=[[[1, 0.5]]] * places), "log-probabilities of at most 0"),
        (changed(row, top=[[1, 2]] * places), "pairs of a token"),
        (changed(row, tokens=["a"] * places), "whole numbers"),
        ({"teacher": 3}, "must have prompt, tokens"),
        ({"prompt": "a", "completion": "b", "logprobs": 3}, "a list in the field 'logprobs'"),
        ({"prompt": "a", "completion": "b", "logprobs": [["b"]]}, "a word, its log-probability"),
    ):
        with pytest.raises(InputError, match=said):
            distill.train("logits", taught[0], [wrong], steps=1)
    with pytest.raises(UnsupportedError, match="outside the student's 258"):
        distill.train("logits", taught[0], [changed(row, top=[[[400, -0.5]]] * places)], steps=1)
    with pytest.raises(InputError, match="soft must be 0 to 1"):
        distill.train("logits", taught[0], labelled, soft=1.5)
    with pytest.raises(InputError, match="must be one of lora, logits, classifier"):
        distill.train("parrot", taught[0], labelled)
    with pytest.raises(NotFoundError, match=r"no labels\.jsonl"):
        distill.train("lora", taught[0], labelled.parent)


def test_labels_are_learnt_with_the_prompt_that_the_teacher_read(taught, tmp_path):
    (tmp_path / "answers.jsonl").write_text('{"text": "a", "label": "red"}\n{"text": "b", "label": "Blue"}\n')
    asked = distill.Prompting("{text}? {labels}", labels=("red", "blue"))
    done = distill.label(
        [{"text": "a"}, {"text": "b"}], f"file:{tmp_path / 'answers.jsonl'}", tmp_path / "out", prompting=asked
    )
    assert done.labelled == 2
    run = distill.train("lora", taught[0], tmp_path / "out", steps=1, threads=1)
    texts = [bytes(lesson.ids[:-1].tolist()).decode() for lesson in run.data.lessons]
    assert texts == ["a? - red\n- bluered", "b? - red\n- blueblue"]
    with pytest.raises(InputError, match="no prompt that it is the answer to"):
        distill.train("lora", taught[0], [{"text": "a", "label": "red"}], steps=1)


def learnt(run) -> list[tuple[str, str]]:
    """Of each lesson all of its text, and what of it is learnt."""
    tokenizer, found = run.base.tokenizer, []
    for lesson in run.data.lessons:
        shares = np.asarray(lesson.shares)
        found.append(
            tuple(tokenizer.decode(lesson.ids[rows].tolist(), skip_special=False) for rows in (shares >= 0, shares > 0))
        )
    return found


def test_a_student_with_a_chat_template_learns_conversations_as_it_will_read_them(tmp_path):
    from weft.generate import load

    base = write_chat_model(tmp_path / "chat.gguf")
    (tmp_path / "answers.jsonl").write_text('{"text": "a", "completion": "one"}\n{"text": "b", "completion": "two"}\n')
    prompting = distill.Prompting("say {text}", system="Be brief.")
    teacher = f"file:{tmp_path / 'answers.jsonl'}"
    done = distill.label([{"text": "a"}, {"text": "b"}], teacher, tmp_path / "out", prompting=prompting)
    assert done.labelled == 2
    run = distill.train("lora", base, tmp_path / "out", steps=1, threads=1)
    model = load(str(base))
    asked = [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"say {one}"}] for one in "ab"]
    prompts = [model.tokenizer.decode(list(model.chat_ids(one)), skip_special=False) for one in asked]
    for (whole, mine), prompt, said in zip(learnt(run), prompts, ("one", "two"), strict=True):
        assert mine.startswith(said) and whole.startswith(prompt + mine)
    plain = distill.train("lora", base, tmp_path / "out", chat=False, steps=1, threads=1)
    assert [whole.startswith(f"say {one}") for (whole, _), one in zip(learnt(plain), "ab")] == [True, True]
    same = distill.train("lora", base, tmp_path / "out", chat=True, valid=tmp_path / "out", steps=1, threads=1)
    assert learnt(same) == learnt(run) and len(same.valid.lessons) == 2


def test_a_student_of_a_server_learns_its_words_in_the_chat_template(tmp_path):
    base = write_chat_model(tmp_path / "chat.gguf")
    said = [[" ", -0.1, [[" ", -0.1], ["x", -3.0]]], ["r", -0.2, [["r", -0.2], ["q", -2.0]]]]
    rows = [{"prompt": "red 1 is", "completion": " r.", "logprobs": said}]
    (lesson,) = distill.train("logits", base, rows, steps=1, threads=1).data.lessons
    (spoken,) = distill.train("lora", base, rows, steps=1, threads=1).data.lessons
    begin = int(np.flatnonzero(lesson.shares)[0])
    assert lesson.ids[: len(spoken.ids)].tolist() == spoken.ids[: len(lesson.ids)].tolist()
    assert bytes(lesson.ids[begin : begin + 2].tolist()) == b" r"
    assert lesson.words[begin].tolist() == [ord(" "), ord("x")] and lesson.words[begin + 1].tolist() == [114, 113]


def test_a_template_that_is_missing_or_not_for_the_student_is_an_error(taught, labelled):
    rows = [{"prompt": "a", "completion": "b"}]
    with pytest.raises(InputError, match="lora and logits"):
        distill.train("classifier", taught[0], labelled, chat=True)
    with pytest.raises(UnsupportedError, match="no chat template"):
        distill.train("lora", taught[0], rows, chat=True, steps=1)


def write_labelling(folder: Path, rows: list[dict], name="labels.jsonl", **prompt) -> Path:
    """A folder as `weft distill label` writes it."""
    folder.mkdir()
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = {"template": None, "system": None, "labels": [], **prompt}
    (folder / "manifest.json").write_text(json.dumps({"format": "weft-labels 1", "prompt": asked}))
    return folder


def test_labels_keep_the_teachers_words_for_a_student_of_logits(tmp_path):
    """A local teacher's ids are learnt as they are, and a server's words, which may differ from the label in case."""
    base = write_chat_model(tmp_path / "chat.gguf")
    tops = [[[ord(letter), -0.1], [120, -3.0]] for letter in "red"]
    local = {"prompt": list(b"say a"), "tokens": list(b"red"), "top": tops, "end": 257, "text": "say ared"}
    words = [[letter, -0.1, [[letter, -0.1], ["x", -3.0]]] for letter in "Red."]
    rows = [{"text": "a", "label": "red", "teacher": local}, {"text": "b", "label": "red", "logprobs": words}]
    asked = {"template": "say {text}", "system": "Choose.", "labels": ["red", "blue"]}
    folder = write_labelling(tmp_path / "out", rows, **asked)
    run = distill.train("logits", base, folder, steps=1, threads=1)
    assert [mine for _, mine in learnt(run)] == ["red<|im_end|>", "Red.<|im_end|>"]
    assert learnt(run)[0][0] == "say ared<|im_end|>" and "system\nChoose.<|im_end|>" in learnt(run)[1][0]
    for lesson, letters in zip(run.data.lessons, ("red", "Red."), strict=True):
        begin = int(np.flatnonzero(lesson.shares)[0])
        assert [bytes(two.tolist()) for two in lesson.words[begin : begin + len(letters)]] == [
            f"{letter}x".encode() for letter in letters
        ]


def test_texts_of_a_local_teacher_are_learnt_in_the_chat_template_too(tmp_path):
    base = write_chat_model(tmp_path / "chat.gguf")
    local = {"prompt": list(b"say a"), "tokens": list(b"red"), "top": [[]] * 3, "end": 257, "text": "say ared"}
    row = {"prompt": "say a", "completion": "red"}
    plain, more = (distill.train("lora", base, [one], steps=1, threads=1) for one in (row, {**row, "teacher": local}))
    assert learnt(more) == learnt(plain) and learnt(more)[0][0].startswith("<|im_start|>user\nsay a<|im_end|>")


@pytest.mark.parametrize("template", [True, False])
def test_rows_may_come_from_a_generator_and_errors_name_their_file(tmp_path, template):
    base = write_chat_model(tmp_path / "chat.gguf", **({} if template else {"template": None}))
    rows = ({"prompt": f"say {number}", "completion": "a"} for number in range(3))
    assert len(distill.train("lora", base, rows, steps=1, threads=1).data.lessons) == 3
    faulty = write_labelling(tmp_path / "out", [{"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": ""}])
    with pytest.raises(InputError, match=r"\[labels\.jsonl\] line 2 has an empty completion"):
        distill.train("lora", base, faulty, steps=1)
    (faulty / "labels.jsonl").write_text("")
    with pytest.raises(InputError, match=r"data has no rows to learn: got '/"):
        distill.train("lora", base, faulty, steps=1)


def test_a_manifest_of_something_else_beside_a_file_of_rows_is_left_alone(tmp_path):
    base = write_chat_model(tmp_path / "chat.gguf")
    row = {"prompt": "a", "completion": "b"}
    folder = write_labelling(tmp_path / "out", [row], name="mine.jsonl", system="Be brief.")
    (whole, _), *_ = learnt(distill.train("lora", base, folder / "mine.jsonl", steps=1, threads=1))
    assert "Be brief." in whole
    (folder / "manifest.json").write_text('{"name": "an app", "icons": []}')
    (whole, _), *_ = learnt(distill.train("lora", base, folder / "mine.jsonl", steps=1, threads=1))
    assert whole.startswith("<|im_start|>user\na<|im_end|>")
    (folder / "mine.jsonl").rename(folder / "labels.jsonl")
    with pytest.raises(FormatError, match="how rows were asked"):
        distill.train("lora", base, folder, steps=1)


def test_the_command_trains_and_goes_on(taught, labelled, tmp_path):
    given = [str(taught[0]), str(labelled), "--rank", "2", "--steps", "2", "--threads", "1"]
    for student, more in (("lora", []), ("logits", ["--temperature", "3", "--soft", "0.9"])):
        out = tmp_path / student
        found = CliRunner().invoke(app, ["distill", "train", student, *given, *more, "-o", str(out)])
        assert found.exit_code == 0, found.output
        assert (out / "adapter_model.safetensors").is_file() and (out / "report.html").is_file()
        again = CliRunner().invoke(app, ["distill", "train", student, *given, *more, "-o", str(out), "--resume"])
        assert again.exit_code != 0 and "no run to go on with" in str(again.output) + str(again.exception)
    dry = CliRunner().invoke(app, ["distill", "train", "logits", *given, "--dry-run"])
    assert dry.exit_code == 0 and "learnt tokens" in dry.output


def test_a_classifier_learns_the_probabilities_of_its_teacher(tmp_path):
    """A teacher that is as often wrong as it says: its probabilities are learnt, not its labels alone."""
    from tiny_st import write_st_folder

    base = write_st_folder(tmp_path / "base")
    rows = []
    for number in range(40):
        word = "refund" if number % 2 else "parcel"
        sure = 0.9 if number % 4 < 2 else 0.6
        chances = {"money": sure, "post": 1 - sure} if number % 2 else {"money": 1 - sure, "post": sure}
        row = {"text": f"{word} {number}", "label": max(chances, key=lambda name: chances[name])}
        rows.append({**row, "probabilities": chances})
    data = tmp_path / "labels.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["distill", "train", "classifier", str(base), str(data), "--c", "100", "--json"]
    heads = {}
    for name, more in (("soft", []), ("hard", ["--hard"])):
        found = CliRunner().invoke(app, [*given, *more, "-o", str(tmp_path / name)])
        assert found.exit_code == 0, found.output
        about = json.loads((tmp_path / name / "classifier.json").read_text())
        assert about["labels"] == ["money", "post"] and about["trained"].get("soft", 0) == (40 if name == "soft" else 0)
        from weft.classify import Classifier

        classifier = Classifier(tmp_path / name)
        logits = classifier.head.logits(classifier.embedder.encode([row["text"] for row in rows]))
        heads[name] = np.abs(logits[:, 0] - logits[:, 1]).mean()
    assert heads["soft"] < 0.7 * heads["hard"]  # it is no surer than its teacher


@pytest.mark.parametrize(
    "wrong", [3, {"a": 0.2, "b": 0.3}, {"a": -1.0, "b": 2.0}, {"a": float("nan"), "b": 0.5}, {"a": "x"}, {"a": True}]
)
def test_probabilities_that_are_none_are_refused(tmp_path, wrong):
    rows = [{"text": "x", "label": "a", "probabilities": wrong}, {"text": "y", "label": "b"}]
    with pytest.raises(InputError, match="labels and probabilities, of a sum of 1"):
        distill.train("classifier", tmp_path, rows, output=tmp_path / "out")
