"""Make the small tokenizers beside this file and what the tokenizers library does with them.

    python tests/golden/text/make_tokenizers.py [NAME...]

Needs the `tokenizers` package. Each <name>.json holds the tokenizer and its cases:
text, ids with special tokens parsed, ids with them as text, and the decoded text.
"""

import json
import random
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "text")]
from made_with import note_versions  # noqa: E402
from texts import random_texts  # noqa: E402

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SUBJECTS = [
    "the weaver",
    "a small engine",
    "her brother",
    "this machine",
    "the old river",
    "naïve readers",
    "WE",
    "они",
    "das Mädchen",
]
VERBS = [
    "doesn't run",
    "has counted",
    "is weaving",
    "they'll see",
    "kept 1234 of",
    "schätzt",
    "видит",
    "won't stop",
    "re-reads",
]
OBJECTS = [
    "threads of wool",
    "tokens, quickly!",
    "12 numbers",
    "the façade",
    "[brackets] and {braces}",
    "日本語の本",
    "ничего",
    "x += 1;\n",
]


def corpus() -> list[str]:
    rng = random.Random(0)
    return [f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)}." for _ in range(2000)]


def added() -> list[AddedToken]:
    """One token for every flag."""
    return [
        AddedToken("<|end|>", special=True, normalized=False),
        AddedToken("<|end|>>", special=True, normalized=False),
        AddedToken("<left>", lstrip=True, normalized=False),
        AddedToken("<right>", rstrip=True, normalized=False),
        AddedToken("<both>", lstrip=True, rstrip=True, special=True, normalized=False),
        AddedToken("word", single_word=True, normalized=False),
        AddedToken("Größe", normalized=True),
        AddedToken("<think>", normalized=False),
    ]


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=40))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(corpus(), trainers.WordPieceTrainer(vocab_size=300, special_tokens=specials))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def byte_bpe(split: pre_tokenizers.PreTokenizer, normaliser: normalizers.Normalizer | None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split
    if normaliser is not None:
        tokenizer.normalizer = normaliser
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def gpt2() -> Tokenizer:
    tokenizer = byte_bpe(pre_tokenizers.ByteLevel(add_prefix_space=True), None)
    tokenizer.post_processor = processors.RobertaProcessing(("<s>", 0), ("<s>", 0))
    return tokenizer


def llama3() -> Tokenizer:
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), last])
    tokenizer = byte_bpe(split, normalizers.NFC())
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(),
            processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 0)]),
        ]
    )
    return tokenizer


def nemo() -> Tokenizer:
    """Tekken's expression, and words that are tokens whatever the merges say."""
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = byte_bpe(pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(TEKKEN), "isolated"), last]), None)
    content = json.loads(tokenizer.to_str())
    content["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(content))


def falcon() -> Tokenizer:
    parts = [
        pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
    ]
    return byte_bpe(pre_tokenizers.Sequence(parts), None)


def smollm() -> Tokenizer:
    parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return byte_bpe(
        pre_tokenizers.Sequence(parts), normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
    )


def llama2() -> Tokenizer:
    """BPE of characters with bytes for the others, as Llama 2 is published."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    spaced = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.pre_tokenizer = spaced  # for training only: no piece lies across words
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=600, special_tokens=specials))
    content = json.loads(tokenizer.to_str()) | {"pre_tokenizer": None}
    content["added_tokens"] = content["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def mistral() -> Tokenizer:
    """The same, with the mark put in by the pre-tokenizer and only at the start of the whole text."""
    tokenizer = llama2()
    content = json.loads(tokenizer.to_str()) | {"normalizer": None}
    content["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    return Tokenizer.from_str(json.dumps(content))


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>")
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return tokenizer


def cases(tokenizer: Tokenizer) -> list[list[object]]:
    texts = random_texts(11, 80, [token.content for token in added()] + ["größe", "swordfish", "<|end|", "<s>"])
    rows: list[list[object]] = []
    for text in [*texts, "", " ", "word", "a" * 100, *corpus()[:20]]:
        tokenizer.encode_special_tokens = False
        parsed = tokenizer.encode(text)
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text).ids
        offsets = [place for pair in parsed.offsets for place in pair]
        rows.append([text, parsed.ids, plain, tokenizer.decode(parsed.ids), offsets])
    return rows


def kept(name: str) -> Tokenizer:
    """The committed tokenizer: training some kinds again gives others."""
    return Tokenizer.from_str(json.dumps(json.loads((HERE / f"{name}.json").read_text())["tokenizer"]))


def main() -> None:
    keep, names = "--keep" in sys.argv, [name for name in sys.argv[1:] if name != "--keep"]
    for make in (word_piece, gpt2, llama3, nemo, falcon, smollm, llama2, mistral, unigram):
        if names and make.__name__ not in names:
            continue
        name = make.__name__
        tokenizer = kept(name) if keep else make()
        if not keep:
            tokenizer.add_tokens(added())
        pairs = [[a, b, *_pair(tokenizer, a, b)] for a, b in [("the river", "ran <|end|> on"), ("", "x"), ("word", "")]]
        content = {"tokenizer": json.loads(tokenizer.to_str()), "cases": cases(tokenizer), "pairs": pairs}
        path = HERE / f"{name}.json"
        path.write_text(json.dumps(content, ensure_ascii=True, separators=(",", ":")) + "\n")
        note_versions(path, "tokenizers")
        print(path.name, path.stat().st_size)


def _pair(tokenizer: Tokenizer, first: str, second: str) -> list[list[int]]:
    encoded = tokenizer.encode(first, second)
    return [encoded.ids, encoded.type_ids, encoded.offsets]


if __name__ == "__main__":
    main()
