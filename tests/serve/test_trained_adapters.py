"""What a server says of texts under a trained adapter is the loss that the training had of them."""

import json

import httpx
import numpy as np
import pytest
import tiny
from tiny_chat import write_chat_model

from weft import train
from weft.serve import ModelSpec

ROWS = [
    {"messages": [{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": f"it is {i}{i}"}]}
    for i in range(24)
]
OPTIONS = {"rate": 0.01, "schedule": "constant", "warmup": 0.0, "batch_tokens": 400, "rank": 4}
STEPS = 3


@pytest.mark.parametrize("name", ["llama-grouped", "qwen3_moe"])
def test_served_log_probabilities_are_the_loss_of_the_training(serve, tmp_path, name):
    """The loss of a step is that of the adapter which the steps before have made."""
    base = write_chat_model(tmp_path / "tiny.gguf", model=tiny.CONFIGS[name])
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    adapter = tmp_path / "loras" / "mine"
    assert len(list(train.lora(base, data, output=adapter, steps=STEPS, **OPTIONS))) == STEPS
    longer = train.lora(base, data, steps=STEPS + 1, **OPTIONS)
    batch = list(longer.run.batches())[STEPS]
    before, *_, last = [longer.run.each_loss(longer.data.lessons, longer.run.parameters), *longer]
    spec = ModelSpec("tiny", str(base), {"threads": 1, "compute": "f32", "kv_dtype": "f32"})
    running = serve(models=(spec,), lora_dir=adapter.parent)
    with httpx.Client(base_url=running.url, timeout=60) as client:
        loaded = client.post("/v1/load_lora_adapter", json={"lora_name": "mine", "model": "tiny"})
        assert loaded.status_code == 200, loaded.text

        def losses(model: str, number: int) -> np.ndarray:
            lesson = longer.data.lessons[number]
            body = {"model": model, "prompt": lesson.ids.tolist(), "max_tokens": 0, "echo": True, "logprobs": 1}
            (choice,) = client.post("/v1/completions", json=body).json()["choices"]
            values = choice["logprobs"]["token_logprobs"]
            assert len(values) == len(lesson.ids) and values[0] is None
            return -np.asarray(values[1:])[lesson.shares[1:] != 0]

        served = [losses("mine", number) for number in batch]
        targets = sum(len(one) for one in served)
        assert targets == last.targets and len(batch) > 1
        assert abs(sum(one.sum() for one in served) / targets - last.loss) <= 1e-5
        assert abs(losses("tiny", batch[0]).sum() - before[batch[0]]) / len(served[0]) <= 1e-5
    assert abs(sum(before[number] for number in batch) / targets - last.loss) > 0.01  # the steps did something
