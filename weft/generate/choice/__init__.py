"""How the next token of a request is chosen and drafted, and where generation stops."""
