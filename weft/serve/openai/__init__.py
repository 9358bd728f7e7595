"""OpenAI's API: chat, completions, embeddings, responses, models; with the extensions of vLLM and llama-server."""
