"""weft as a measured engine: the methods of a peer, over the public interface."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "measured_peer":  # run by path in a worker process: import the package that this file belongs to
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from weft.computes import ENCODER_COMPUTES, TRAINING_COMPUTES

if TYPE_CHECKING:
    import numpy as np

NAME = "weft"
PACKAGES = {"weft": "weft-engine", "numpy": "numpy"}
# One token per step, and nothing reused from an earlier turn.
PLAIN: dict[str, Any] = {"ignore_eos": True, "prefix_cache": False, "speculate": False}
SETTINGS = {"generate": ["default"], "embed": list(ENCODER_COMPUTES), "train": list(TRAINING_COMPUTES)}
SETTINGS["train_memory"] = ["f32"]
# What is trained, the same for every engine: these are defaults of `weft train lora` and of peft.
LORA: dict[str, Any] = {"rank": 8, "alpha": 16.0, "targets": "all-linear", "rate": 2e-4, "schedule": "constant"}
ENDLESS = 1_000_000  # steps


class Peer:
    """Call `load` once; every other call is one repetition to be timed."""

    def load(
        self,
        task: str,
        model: str,
        threads: int,
        setting: str,
        context: int = 0,
        files: str = "",
        kv_dtype: str | None = None,
    ) -> dict[str, Any]:
        if task == "embed":
            return self._load_embedder(model, threads, setting)
        if task.startswith("train"):
            return self._load_learner(model, threads, setting, again=task == "train_memory")
        return self._load_model(model, threads, setting, kv_dtype)

    def _load_model(self, model: str, threads: int, setting: str, kv_dtype: str | None) -> dict[str, Any]:
        from weft.generate import load

        compute = None if setting == "default" else setting
        self.model = load(model, threads=threads, compute=compute, kv_dtype=kv_dtype)
        return self.model.info

    def _load_embedder(self, model: str, threads: int, setting: str) -> dict[str, Any]:
        from weft.embed import Embedder

        self.embedder = Embedder(model, threads=threads, compute=setting)
        # The folder may allow fewer tokens than the model has positions; peers embed documents of 512 tokens too.
        self.embedder.max_tokens = self.embedder.positions
        return self.embedder.info

    def _load_learner(self, model: str, threads: int, setting: str, again: bool) -> dict[str, Any]:
        """With `again`, everything is computed again where its gradient is wanted, as checkpointing does."""
        from weft.graph.passes.learn import LowRank
        from weft.train.learner import Learner
        from weft.train.options import Options
        from weft.train.targets import changes_of, choose
        from weft.train.training import Base

        base, options = Base.open(model), Options(**LORA)
        change = LowRank(options.rank, options.scale)
        changes = changes_of(base.weights, choose(base.weights, options.targets), change)
        self.learner = Learner(base.checkpoint, changes, threads=threads, compute=setting)
        self.learner.again = self.learner.parts if again else 0
        return {"parameters": self.learner.parameters}

    def begin(self, lessons: list[dict[str, list[int]]]) -> list[float]:
        """Make new matrices and one step with them; returns the mean loss of a target before it."""
        import numpy as np

        from weft.train.learner import Lesson
        from weft.train.options import Options
        from weft.train.run import Run

        given = [Lesson(np.array(one["ids"], np.int32), np.array(one["learnt"], np.float32)) for one in lessons]
        whole = sum(len(one.ids) for one in given)  # all lessons are one batch
        self.steps = iter(Run(self.learner, given, Options(**LORA, warmup=0.0, steps=ENDLESS, batch_tokens=whole)))
        return self.step()

    def step(self) -> list[float]:
        """One step on all lessons, from their loss to changed matrices."""
        return [next(self.steps).loss]

    def decode(self, prompt: list[int], tokens: int) -> list[int]:
        """Greedy tokens after a prompt, exactly `tokens` of them."""
        return list(self.model.generate(prompt, max_tokens=tokens, **PLAIN).tokens)

    def prefill(self, prompt: list[int]) -> list[int]:
        return self.decode(prompt, 1)

    def parallel(self, prompts: list[list[int]], tokens: int) -> list[int]:
        """Generate `tokens` tokens for every prompt at once; returns those of the first."""
        return list(self.model.generate(prompts, max_tokens=tokens, **PLAIN)[0].tokens)

    def embed(self, texts: list[str]) -> "np.ndarray":
        """float32 [len(texts), dimension]"""
        return self.embedder.encode(texts)
