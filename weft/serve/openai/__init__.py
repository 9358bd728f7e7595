"""OpenAI's API: chat, completions, embeddings, responses, models; with what vLLM and llama-server added to it."""
