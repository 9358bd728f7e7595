"""llama-server's own routes: texts to tokens and back, templates."""
