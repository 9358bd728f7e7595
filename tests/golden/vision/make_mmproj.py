"""What llama.cpp computes with tiny GGUF files and their mmproj files, all written by weft: mmproj.npz.

    python tests/golden/vision/make_mmproj.py      (weft and xllamacpp, a build of llama.cpp with mtmd)

Weights come from a seed alone (tests/pictures/tiny_eyes.py, tiny_sights.py), so only outputs are stored: what a prompt
with pictures is cut into, the vectors of its tiles, and the logits after every fifth token. Sizes of the pictures are
whole tiles, which nobody resizes but for the whole of each. llama.cpp is called by the C interface of its headers of
August 2026; structures that are passed by value are taken as bytes from its functions for defaults.
"""

import ctypes
import importlib.util
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "pictures")]
import tiny_eyes  # noqa: E402
import tiny_sights  # noqa: E402
from made_with import note_versions  # noqa: E402

POINTER, SIZE, INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32


class Blob(ctypes.Structure):
    """A structure that is passed by value, longer than any of them."""

    _fields_ = (("bytes", ctypes.c_ubyte * 512),)


class Text(ctypes.Structure):
    _fields_ = (
        ("text", ctypes.c_char_p), ("length", SIZE), ("add_special", ctypes.c_bool), ("parse_special", ctypes.c_bool),
    )  # fmt: skip


class Place(ctypes.Structure):
    """The position of a token of a picture in each of the directions that it is turned by."""

    _fields_ = (("time", INT), ("col", INT), ("row", INT), ("depth", INT))


class Batch(ctypes.Structure):
    _fields_ = (
        ("count", INT), ("token", ctypes.POINTER(INT)), ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(INT)), ("seqs", ctypes.POINTER(INT)),
        ("seq", ctypes.POINTER(ctypes.POINTER(INT))), ("logits", ctypes.POINTER(ctypes.c_int8)),
    )  # fmt: skip


def library():
    """xllamacpp's module, whose C functions are visible."""
    import xllamacpp  # noqa: F401

    folder = Path(importlib.util.find_spec("xllamacpp").origin).parent
    lib = ctypes.CDLL(str(next(folder.glob("xllamacpp*.so"))), ctypes.RTLD_GLOBAL)
    for name in ("llama_model_default_params", "llama_context_default_params", "mtmd_context_params_default"):
        getattr(lib, name).restype = Blob
    given = {
        "llama_model_load_from_file": (POINTER, ctypes.c_char_p, Blob),
        "llama_init_from_model": (POINTER, POINTER, Blob),
        "llama_decode": (INT, POINTER, Batch),
        "llama_set_causal_attn": (None, POINTER, ctypes.c_bool),
        "mtmd_decode_use_non_causal": (ctypes.c_bool, POINTER, POINTER),
        "mtmd_decode_use_mrope": (ctypes.c_bool, POINTER),
        "mtmd_input_chunk_get_n_pos": (INT, POINTER),
        "mtmd_input_chunk_get_tokens_image": (POINTER, POINTER),
        "mtmd_image_tokens_get_decoder_pos": (Place, POINTER, INT, SIZE),
        "llama_model_n_embd_inp": (INT, POINTER),
        "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), POINTER, INT),
        "mtmd_init_from_file": (POINTER, ctypes.c_char_p, POINTER, Blob),
        "mtmd_default_marker": (ctypes.c_char_p,),
        "mtmd_bitmap_init": (POINTER, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p),
        "mtmd_input_chunks_init": (POINTER,),
        "mtmd_input_chunks_size": (SIZE, POINTER),
        "mtmd_input_chunks_get": (POINTER, POINTER, SIZE),
        "mtmd_tokenize": (INT, POINTER, POINTER, POINTER, POINTER, SIZE),
        "mtmd_input_chunk_get_type": (INT, POINTER),
        "mtmd_input_chunk_get_n_tokens": (SIZE, POINTER),
        "mtmd_input_chunk_get_tokens_text": (ctypes.POINTER(INT), POINTER, POINTER),
        "mtmd_encode_chunk": (INT, POINTER, POINTER),
        "mtmd_get_output_embd": (ctypes.POINTER(ctypes.c_float), POINTER),
    }
    for name, (result, *arguments) in given.items():
        getattr(lib, name).restype, getattr(lib, name).argtypes = result, arguments
    return lib


def context_params(lib):
    """A KV cache of f32, where defaults have f16, and no flash attention."""
    params = lib.llama_context_default_params()
    words = np.frombuffer(memoryview(params.bytes), np.int32)
    words[[0, 1, 2]] = 512  # n_ctx, n_batch, n_ubatch
    flash = 9 + 4  # after nine counts and four choices
    assert words[flash] == -1, words[:16]
    words[flash] = 0
    types = [i for i in range(flash + 8, 40) if words[i] == 1 and words[i + 1] == 1]
    assert len(types) == 1, words[:48]
    words[types[0]] = words[types[0] + 1] = 0
    return params


def tokenised(lib, seeing, prompt, pictures, width):
    """The chunks of a prompt: token ids [n] of texts, vectors [n, width] of tiles; and the places of their tokens, of
    tiles that are turned by rows and columns [4, n]."""
    bitmaps = (POINTER * len(pictures))(*[
        lib.mtmd_bitmap_init(one.shape[1], one.shape[0], np.ascontiguousarray(one).tobytes()) for one in pictures
    ])  # fmt: skip
    text, chunks = prompt.encode(), lib.mtmd_input_chunks_init()
    asked = Text(text, len(text), False, True)
    assert lib.mtmd_tokenize(seeing, chunks, ctypes.byref(asked), bitmaps, len(pictures)) == 0
    found, places, at = [], [], 0
    for i in range(lib.mtmd_input_chunks_size(chunks)):
        chunk = lib.mtmd_input_chunks_get(chunks, i)
        count = lib.mtmd_input_chunk_get_n_tokens(chunk)
        places.append(np.arange(at, at + count, dtype=np.int32))
        if lib.mtmd_input_chunk_get_type(chunk) == 0:
            ids = lib.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(SIZE()))
            found.append(np.array(ids[:count], np.int32))
        else:
            assert lib.mtmd_encode_chunk(seeing, chunk) == 0
            found.append(np.ctypeslib.as_array(lib.mtmd_get_output_embd(seeing), (count, width)).copy())
            if lib.mtmd_decode_use_mrope(seeing):
                image = lib.mtmd_input_chunk_get_tokens_image(chunk)
                all = [lib.mtmd_image_tokens_get_decoder_pos(image, at, token) for token in range(count)]
                places[-1] = np.array([[one.time, one.row, one.col, one.depth] for one in all], np.int32).T.copy()
        at += lib.mtmd_input_chunk_get_n_pos(chunk)
    return found, places


def logits(lib, context, chunks, places, vocab, both_ways):
    """Logits after every token of the chunks, one after another; tokens of a picture see each other `both_ways`."""
    found = []
    for chunk, place in zip(chunks, places):
        count = len(chunk)
        batch = Batch(count=count)
        if chunk.ndim == 1:
            batch.token = chunk.ctypes.data_as(ctypes.POINTER(INT))
        else:
            batch.embd = chunk.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        batch.pos, batch.seqs = place.ctypes.data_as(ctypes.POINTER(INT)), (INT * count)(*[1] * count)
        zero = (INT * 1)(0)
        batch.seq = (ctypes.POINTER(INT) * count)(*[ctypes.cast(zero, ctypes.POINTER(INT))] * count)
        batch.logits = (ctypes.c_int8 * count)(*[1] * count)
        lib.llama_set_causal_attn(context, not (both_ways and chunk.ndim == 2))
        assert lib.llama_decode(context, batch) == 0
        found += [np.ctypeslib.as_array(lib.llama_get_logits_ith(context, i), (vocab,)).copy() for i in range(count)]
    return np.array(found)


def answers(lib, pair, prompts, vocab):
    """name.chunk.N and name.logits of each prompt."""
    found = {}
    text, mmproj = pair
    model = lib.llama_model_load_from_file(str(text).encode(), lib.llama_model_default_params())
    seeing = lib.mtmd_init_from_file(str(mmproj).encode(), model, lib.mtmd_context_params_default())
    marker, width = lib.mtmd_default_marker().decode(), lib.llama_model_n_embd_inp(model)
    for name, (prompt, pictures) in prompts.items():
        chunks, places = tokenised(lib, seeing, prompt.replace("<image>", marker), pictures, width)
        context = lib.llama_init_from_model(model, context_params(lib))
        both_ways = lib.mtmd_decode_use_non_causal(seeing, None)
        found |= {f"{name}.chunk.{i}": chunk for i, chunk in enumerate(chunks)}
        found[f"{name}.logits"] = logits(lib, context, chunks, places, vocab, both_ways)[::5]
    return found


def main():
    lib = library()
    with tempfile.TemporaryDirectory() as folder:
        pair = tiny_eyes.write_pair(Path(folder) / "idefics3")
        arrays = answers(lib, pair, tiny_eyes.WHOLE_TILES, tiny_eyes.VOCAB + 1)
        for kind, prompt in tiny_sights.OWN_SIZES.items():
            pair = tiny_sights.write_pair(Path(folder) / kind, kind)
            vocab = tiny_sights.TYPES[kind]["config"]["text_config"]["vocab_size"]
            arrays |= answers(lib, pair, {kind: prompt}, vocab)
    np.savez_compressed(HERE / "mmproj.npz", **arrays)
    note_versions(HERE / "mmproj.npz", "xllamacpp", "numpy")


if __name__ == "__main__":
    main()
