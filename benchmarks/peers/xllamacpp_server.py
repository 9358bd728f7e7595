"""llama.cpp through the xllamacpp wheel, which has its server and not its C interface: a completion is a call of the
server, without a socket. Quicker to install than a build of one's own; `load` says which instruction sets it uses."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

NAME = "llama.cpp (xllamacpp)"
PACKAGES = {"xllamacpp": "xllamacpp"}
SETTINGS = {"generate": ["default"]}
SEQUENCES = 16


class Peer:
    def load(self, task: str, model: str, threads: int, setting: str, context: int, files: str) -> dict[str, Any]:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = model
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_parallel = context, 2048, 512, SEQUENCES
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.kv_unified, params.warmup, params.cache_prompt = True, False, False
        self.server = xllamacpp.Server(params)
        self.callers = ThreadPoolExecutor(SEQUENCES)
        return {"about": " ".join(xllamacpp.get_system_info().split())}

    def decode(self, prompt: list[int], tokens: int) -> None:
        """The server answers with text, so there are no tokens to compare."""
        job = {"prompt": prompt, "n_predict": tokens, "temperature": 0.0, "ignore_eos": True, "cache_prompt": False}
        answer = self.server.handle_completions(job)
        if answer.get("usage", {}).get("completion_tokens") != tokens:
            raise RuntimeError(f"not {tokens} tokens: {str(answer)[:200]}")

    def prefill(self, prompt: list[int]) -> None:
        self.decode(prompt, 1)

    def parallel(self, prompts: list[list[int]], tokens: int) -> None:
        list(self.callers.map(lambda prompt: self.decode(prompt, tokens), prompts))
