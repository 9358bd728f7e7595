"""Models in the forms that peers read. Not a peer; run it with an interpreter that has what the step needs.

    python benchmarks/peers/export.py MODEL OUT STEP…

    onnx       model.onnx      an encoder's folder           torch, transformers, onnx
    fused      fused.onnx      from model.onnx               onnxruntime, onnx, sympy
    int8       int8.onnx       from fused.onnx               onnxruntime, onnx
    ct2        ct2/            a folder, or from hf/         ctranslate2, transformers, torch
    gguf       model.gguf      a BERT encoder's folder, f32  gguf, safetensors
    hf         hf/             a GGUF file, widened          torch, transformers, gguf
    openvino   openvino_int4/  from hf/                      optimum-intel, nncf, openvino

OUT is what `weft bench vs … --files` takes: one folder for each model.
"""

import json
import os
import sys
import time
from typing import Any

NAMES = ["input_ids", "attention_mask", "token_type_ids"]


def onnx(model: str, out: str) -> str:
    import torch
    from transformers import AutoModel

    class Hidden(torch.nn.Module):  # type: ignore[misc]
        """The last hidden state alone: pooling is the caller's."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = AutoModel.from_pretrained(model, attn_implementation="eager", add_pooling_layer=False).eval()

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            return self.encoder(input_ids, attention_mask, token_type_ids).last_hidden_state

    ids = torch.randint(5, 1000, (2, 9))
    axes = {name: {0: "texts", 1: "tokens"} for name in [*NAMES, "last_hidden_state"]}
    torch.onnx.export(
        Hidden(),
        (ids, torch.ones_like(ids), torch.zeros_like(ids)),
        os.path.join(out, "model.onnx"),
        input_names=NAMES,
        output_names=["last_hidden_state"],
        dynamic_axes=axes,
        opset_version=17,
        dynamo=False,
    )
    return "torch.onnx.export"


def fused(model: str, out: str) -> str:
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    with open(os.path.join(model, "config.json")) as file:
        config = json.load(file)
    made = optimizer.optimize_model(
        os.path.join(out, "model.onnx"),
        model_type="bert",
        num_heads=config["num_attention_heads"],
        hidden_size=config["hidden_size"],
        opt_level=1,
        optimization_options=FusionOptions("bert"),
    )
    made.save_model_to_file(os.path.join(out, "fused.onnx"))
    return str({name: count for name, count in made.get_fused_operator_statistics().items() if count})


def int8(model: str, out: str) -> str:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    source, target = os.path.join(out, "fused.onnx"), os.path.join(out, "int8.onnx")
    options = {"DefaultTensorType": 1}  # float: fused ops have no shapes of their own
    quantize_dynamic(source, target, weight_type=QuantType.QInt8, per_channel=True, extra_options=options)
    return "dynamic, per channel"


def ct2(model: str, out: str) -> str:
    import ctranslate2

    folder = os.path.join(out, "hf") if os.path.isfile(model) else model
    ctranslate2.converters.TransformersConverter(folder).convert(os.path.join(out, "ct2"), force=True)
    return folder


def gguf(model: str, out: str) -> str:
    import gguf as library
    from safetensors.numpy import load_file

    with open(os.path.join(model, "config.json")) as file:
        config = json.load(file)
    with open(os.path.join(model, "vocab.txt"), encoding="utf-8") as file:
        words = file.read().splitlines()
    tensors = load_file(os.path.join(model, "model.safetensors"))
    names = library.get_tensor_name_map(library.MODEL_ARCH.BERT, config["num_hidden_layers"])
    writer = library.GGUFWriter(os.path.join(out, "model.gguf"), "bert")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(library.PoolingType.MEAN)
    writer.add_tokenizer_model("bert")
    writer.add_token_list([word[2:] if word.startswith("##") else "\u2581" + word for word in words])
    writer.add_token_types([library.TokenType.NORMAL] * len(words))
    writer.add_token_type_count(config["type_vocab_size"])
    for name, values in tensors.items():
        found = names.get_name(name.removeprefix("bert."), try_suffixes=(".weight", ".bias"))
        if found:  # not position_ids, nor the pooler
            writer.add_tensor(found, values.astype("float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return f"{len(tensors)} tensors"


def hf(model: str, out: str) -> str:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, name = os.path.split(os.path.abspath(model))
    target = os.path.join(out, "hf")
    made = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.bfloat16)
    made.hf_quantizer = None  # the weights are widened by now, and may be written
    if hasattr(made.config, "quantization_config"):
        del made.config.quantization_config
    made.save_pretrained(target)
    AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(target)
    return "bfloat16"


def openvino(model: str, out: str) -> str:
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    weights = OVWeightQuantizationConfig(bits=4, sym=True, group_size=64)
    source = os.path.join(out, "hf")
    made = OVModelForCausalLM.from_pretrained(
        source, export=True, compile=False, stateful=True, load_in_8bit=False, quantization_config=weights
    )
    made.save_pretrained(os.path.join(out, "openvino_int4"))
    return "int4, symmetric, groups of 64"


STEPS = {step.__name__: step for step in (onnx, fused, int8, gguf, hf, ct2, openvino)}


def main() -> None:
    if len(sys.argv) < 4 or not set(sys.argv[3:]) <= set(STEPS):
        sys.exit(__doc__)
    model, out = sys.argv[1], sys.argv[2]
    os.makedirs(out, exist_ok=True)
    for name in sys.argv[3:]:
        before = time.perf_counter()
        how = STEPS[name](model, out)
        print(f"{name}: {how} ({time.perf_counter() - before:.1f} s)")


main()
