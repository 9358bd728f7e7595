"""POST /score and /v1/score, as vLLM has them: a score for each pair of texts."""

from __future__ import annotations

from uuid import uuid4

from weft.serve.http.faults import invalid
from weft.serve.http.routes import Answer, Context, Json
from weft.serve.openai.events import now
from weft.serve.tei.classify import usage
from weft.serve.tei.embed import embedder_name, kept
from weft.serve.tei.schemas import ScoreRequest, Texts
from weft.serve.work.scoring import Wanted, first_of, scorer_for


async def score(context: Context, body: ScoreRequest) -> Answer:
    """The scores of pairs: one text with each of several, or two lists of equal length side by side."""
    first, second = _texts(body)
    if len(first) not in (1, len(second)):
        raise invalid(f"has {len(first)} texts; it must have 1, or {len(second)} as text_2", "text_1")
    pairs = list(zip(first * len(second) if len(first) == 1 else first, second))
    model = embedder_name(context, body.model or first_of(context, "rerank"))
    truncate = kept(body.truncate or body.truncate_prompt_tokens == -1, body.truncation_direction)
    raw = body.use_activation is False or body.activation is False
    scorer = await scorer_for(context, model, Wanted("text_2", truncate=truncate, raw=raw or None))
    scores = await scorer.pair_scores(pairs)
    data = [{"index": i, "object": "score", "score": one} for i, one in enumerate(scores)]
    return Json(
        {
            "id": f"score-{uuid4().hex}",
            "object": "list",
            "created": now(),
            "model": model,
            "data": data,
            "usage": usage(scorer.tokens, scorer.dropped),
        }
    )


def _texts(body: ScoreRequest) -> tuple[Texts, Texts]:
    """The two sides, under whichever of vLLM's names they came."""
    sides = ((body.text_1, body.queries, body.data_1), (body.text_2, body.documents, body.data_2))
    found = []
    for number, names in enumerate(sides, 1):
        given = [one for one in names if one is not None]
        if len(given) != 1:
            what = "is missing" if not given else "is given under two names"
            raise invalid(what, f"text_{number}", code=None if given else "missing_parameter")
        found.append([given[0]] if isinstance(given[0], str) else given[0])
    return found[0], found[1]
