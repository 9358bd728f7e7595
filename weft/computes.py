"""The kinds of arithmetic that a model can be loaded with: what activations are rounded to before products.

    f32      nothing is rounded
    f16      half precision, where the processor multiplies it; on a GPU products of halves, added up in f32
    bf16     bfloat16
    bf16x3   each number as the sum of two bfloat16 numbers, three products: near f32
    int8     rows of int8 with a scale
    auto     of an embedder: the fastest of these whose vectors are near those of f32, by measurement at load;
             of a training: the faster arithmetic of the machine if its gradients are near those of f32

Which of them is the default, and what each needs, is said by `weft.load`, `weft.Embedder` and `weft.train.Options`.
"""

AUTO = "auto"
ENCODER_COMPUTES = ("f32", "f16", "bf16x3", "bf16", "int8")
EMBEDDER_COMPUTES = (*ENCODER_COMPUTES, AUTO)
DECODER_COMPUTES = ("int8", "bf16", "f16", "f32")
TRAINING_COMPUTES = ("f32", "f16", "bf16")
