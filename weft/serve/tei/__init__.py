"""TEI's API, and reranking in the bodies of Jina, Cohere and TEI."""
