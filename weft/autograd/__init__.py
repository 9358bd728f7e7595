"""Small networks: variables with gradients over the op catalogue, modules, optimisers, data and a trainer.

    from weft import autograd as ag
    model = ag.Sequential(ag.Linear(64, 32), ag.Activation("relu"), ag.Linear(32, 10))
    optimiser = ag.AdamW(model.parameters(), lr=1e-3)
    loss = ag.cross_entropy(model(x), y)
    loss.backward()
    optimiser.step()

Arrays are numpy's. `ag.compiled` runs a function as one program of a backend, with the same numbers.
"""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.autograd.checking import check_gradients as check_gradients
    from weft.autograd.compilation import compiled as compiled
    from weft.autograd.functions import absolute as absolute
    from weft.autograd.functions import activation as activation
    from weft.autograd.functions import avg_pool2d as avg_pool2d
    from weft.autograd.functions import channels_last as channels_last
    from weft.autograd.functions import concat as concat
    from weft.autograd.functions import conv2d as conv2d
    from weft.autograd.functions import dropout as dropout
    from weft.autograd.functions import global_avg_pool2d as global_avg_pool2d
    from weft.autograd.functions import layer_norm as layer_norm
    from weft.autograd.functions import leaky_relu as leaky_relu
    from weft.autograd.functions import linear as linear
    from weft.autograd.functions import log_softmax as log_softmax
    from weft.autograd.functions import log_sum_exp as log_sum_exp
    from weft.autograd.functions import max_pool2d as max_pool2d
    from weft.autograd.functions import normalised as normalised
    from weft.autograd.functions import padded as padded
    from weft.autograd.functions import rms_norm as rms_norm
    from weft.autograd.functions import softmax as softmax
    from weft.autograd.losses import bce_with_logits as bce_with_logits
    from weft.autograd.losses import cosine_distance as cosine_distance
    from weft.autograd.losses import cross_entropy as cross_entropy
    from weft.autograd.losses import hinge as hinge
    from weft.autograd.losses import huber as huber
    from weft.autograd.losses import kl_divergence as kl_divergence
    from weft.autograd.losses import l1 as l1
    from weft.autograd.losses import mse as mse
    from weft.autograd.modules.attention import MultiHeadAttention as MultiHeadAttention
    from weft.autograd.modules.attention import TransformerBlock as TransformerBlock
    from weft.autograd.modules.convolution import AvgPool2d as AvgPool2d
    from weft.autograd.modules.convolution import BatchNorm1d as BatchNorm1d
    from weft.autograd.modules.convolution import BatchNorm2d as BatchNorm2d
    from weft.autograd.modules.convolution import Conv2d as Conv2d
    from weft.autograd.modules.convolution import GlobalAvgPool2d as GlobalAvgPool2d
    from weft.autograd.modules.convolution import MaxPool2d as MaxPool2d
    from weft.autograd.modules.layers import Activation as Activation
    from weft.autograd.modules.layers import Dropout as Dropout
    from weft.autograd.modules.layers import Embedding as Embedding
    from weft.autograd.modules.layers import Flatten as Flatten
    from weft.autograd.modules.layers import LayerNorm as LayerNorm
    from weft.autograd.modules.layers import Linear as Linear
    from weft.autograd.modules.layers import RMSNorm as RMSNorm
    from weft.autograd.modules.module import Buffer as Buffer
    from weft.autograd.modules.module import Module as Module
    from weft.autograd.modules.module import Sequential as Sequential
    from weft.autograd.modules.recurrent import GRU as GRU
    from weft.autograd.modules.recurrent import LSTM as LSTM
    from weft.autograd.modules.recurrent import GRUCell as GRUCell
    from weft.autograd.modules.recurrent import LSTMCell as LSTMCell
    from weft.autograd.randomness import seed as seed
    from weft.autograd.tape import no_grad as no_grad
    from weft.autograd.training.data import ArrayDataset as ArrayDataset
    from weft.autograd.training.data import BatchSampler as BatchSampler
    from weft.autograd.training.data import DataLoader as DataLoader
    from weft.autograd.training.data import RandomSampler as RandomSampler
    from weft.autograd.training.data import SequentialSampler as SequentialSampler
    from weft.autograd.training.data import WeightedSampler as WeightedSampler
    from weft.autograd.training.metrics import accuracy as accuracy
    from weft.autograd.training.metrics import confusion_matrix as confusion_matrix
    from weft.autograd.training.metrics import f1 as f1
    from weft.autograd.training.metrics import mean_absolute_error as mean_absolute_error
    from weft.autograd.training.metrics import mean_squared_error as mean_squared_error
    from weft.autograd.training.metrics import precision as precision
    from weft.autograd.training.metrics import r2 as r2
    from weft.autograd.training.metrics import recall as recall
    from weft.autograd.training.optimisers import SGD as SGD
    from weft.autograd.training.optimisers import Adam as Adam
    from weft.autograd.training.optimisers import AdamW as AdamW
    from weft.autograd.training.optimisers import Optimiser as Optimiser
    from weft.autograd.training.optimisers import RMSProp as RMSProp
    from weft.autograd.training.optimisers import clip_grad_norm as clip_grad_norm
    from weft.autograd.training.optimisers import clip_grad_value as clip_grad_value
    from weft.autograd.training.optimisers import grad_norm as grad_norm
    from weft.autograd.training.schedules import Constant as Constant
    from weft.autograd.training.schedules import Cosine as Cosine
    from weft.autograd.training.schedules import Line as Line
    from weft.autograd.training.schedules import Plateau as Plateau
    from weft.autograd.training.schedules import StepDecay as StepDecay
    from weft.autograd.training.schedules import WarmUp as WarmUp
    from weft.autograd.training.trainer import EarlyStopping as EarlyStopping
    from weft.autograd.training.trainer import Trainer as Trainer
    from weft.autograd.variable import Parameter as Parameter
    from weft.autograd.variable import Variable as Variable
    from weft.autograd.variable import broadcast as broadcast
    from weft.autograd.variable import take as take
    from weft.autograd.variable import transposed as transposed

_HOMES = {
    "Activation": "modules.layers",
    "Adam": "training.optimisers",
    "AdamW": "training.optimisers",
    "ArrayDataset": "training.data",
    "AvgPool2d": "modules.convolution",
    "BatchNorm1d": "modules.convolution",
    "BatchNorm2d": "modules.convolution",
    "BatchSampler": "training.data",
    "Buffer": "modules.module",
    "Constant": "training.schedules",
    "Conv2d": "modules.convolution",
    "Cosine": "training.schedules",
    "DataLoader": "training.data",
    "Dropout": "modules.layers",
    "EarlyStopping": "training.trainer",
    "Embedding": "modules.layers",
    "Flatten": "modules.layers",
    "GRU": "modules.recurrent",
    "GRUCell": "modules.recurrent",
    "GlobalAvgPool2d": "modules.convolution",
    "LSTM": "modules.recurrent",
    "LSTMCell": "modules.recurrent",
    "LayerNorm": "modules.layers",
    "Line": "training.schedules",
    "Linear": "modules.layers",
    "MaxPool2d": "modules.convolution",
    "Module": "modules.module",
    "MultiHeadAttention": "modules.attention",
    "Optimiser": "training.optimisers",
    "Parameter": "variable",
    "Plateau": "training.schedules",
    "RMSNorm": "modules.layers",
    "RMSProp": "training.optimisers",
    "RandomSampler": "training.data",
    "SGD": "training.optimisers",
    "Sequential": "modules.module",
    "SequentialSampler": "training.data",
    "StepDecay": "training.schedules",
    "Trainer": "training.trainer",
    "TransformerBlock": "modules.attention",
    "Variable": "variable",
    "WarmUp": "training.schedules",
    "WeightedSampler": "training.data",
    "absolute": "functions",
    "accuracy": "training.metrics",
    "activation": "functions",
    "avg_pool2d": "functions",
    "bce_with_logits": "losses",
    "broadcast": "variable",
    "channels_last": "functions",
    "check_gradients": "checking",
    "clip_grad_norm": "training.optimisers",
    "clip_grad_value": "training.optimisers",
    "compiled": "compilation",
    "confusion_matrix": "training.metrics",
    "concat": "functions",
    "conv2d": "functions",
    "cosine_distance": "losses",
    "cross_entropy": "losses",
    "dropout": "functions",
    "f1": "training.metrics",
    "global_avg_pool2d": "functions",
    "grad_norm": "training.optimisers",
    "hinge": "losses",
    "huber": "losses",
    "kl_divergence": "losses",
    "l1": "losses",
    "layer_norm": "functions",
    "leaky_relu": "functions",
    "linear": "functions",
    "log_softmax": "functions",
    "log_sum_exp": "functions",
    "max_pool2d": "functions",
    "mean_absolute_error": "training.metrics",
    "mean_squared_error": "training.metrics",
    "mse": "losses",
    "no_grad": "tape",
    "normalised": "functions",
    "padded": "functions",
    "precision": "training.metrics",
    "r2": "training.metrics",
    "recall": "training.metrics",
    "rms_norm": "functions",
    "seed": "randomness",
    "softmax": "functions",
    "take": "variable",
    "transposed": "variable",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
