"""What decides the numbers of a run over vectors: sentence-transformers' usual recipe is the default."""

from __future__ import annotations

from weft.computes import AUTO
from weft.errors import InputError
from weft.frozen import frozen
from weft.train.options import Learning
from weft.train.vectors.losses import MARGIN, NAMES, SCALE


@frozen
class VectorOptions(Learning):
    """How an embedder or a reranker learns, beside what all kinds of training have. A rank of 0 trains all weights.

    batch          examples of a step of the optimiser; for `ranking` all texts of a batch are told apart
    loss           "ranking", "triplet", "cosine", "cosent", "mse"; of a reranker "binary"
    dims           lengths to which vectors may be cut (Matryoshka): the loss is the sum over all of them
    sharpness      what cosines are multiplied by in the losses ranking and cosent
    margin         of the loss triplet
    max_length     tokens of the longest text, 0 for as many as the model takes; longer ones are cut
    dropout        the part of its activations that the encoder leaves out while it learns, "auto" for what its config
                   says (0.1 for BERT), which is what sentence-transformers trains with
    prompts        whether texts are learnt with the prompts that the model is served with
    """

    rank: int = 0
    rate: float = 2e-5
    schedule: str = "linear"
    warmup: float = 0.1
    batch: int = 16
    loss: str = "ranking"
    dims: tuple[int, ...] = ()
    sharpness: float = SCALE
    margin: float = MARGIN
    max_length: int = 0
    dropout: float | str = "auto"
    prompts: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._whole(1, "batch")
        self._whole(0, "max_length")
        self._above_zero("sharpness", "margin")
        part = isinstance(self.dropout, (int, float)) and not isinstance(self.dropout, bool) and 0 <= self.dropout < 1
        self._check("dropout", part or self.dropout == AUTO, f"must be {AUTO}, or 0 or more and below 1")
        self._check("loss", self.loss in (*NAMES, "binary"), f"must be one of {', '.join(NAMES)}")
        right = all(type(dim) is int and dim >= 1 for dim in self.dims)
        self._check("dims", right and len(set(self.dims)) == len(self.dims), "must be different whole numbers")
        if self.loss == "binary" and self.dims:
            raise InputError("train", "are of embedders only", field="dims", given=self.dims)
