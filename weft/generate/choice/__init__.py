"""What follows: how the next token of a request is chosen, drafted, and brought to an end."""
