// words: attribute values that are words, as the kernels see them. weft/ops/registry.py has the same lists.
#pragma once

namespace weft {

enum class Activation : int { none, gelu, gelu_tanh, silu, relu, tanh, sigmoid, softplus, relu2, quick_gelu };
inline constexpr const char* kActivations[] = {"none", "gelu", "gelu_tanh", "silu", "relu", "tanh", "sigmoid",
                                                "softplus", "relu2", "quick_gelu"};

enum class PoolMode : int { mean, first, last, max, mean_sqrt_len, weightedmean };
inline constexpr const char* kPoolModes[] = {"mean", "first", "last", "max", "mean_sqrt_len", "weightedmean"};

}  // namespace weft
