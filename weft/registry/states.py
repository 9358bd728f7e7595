"""The states of a version, and the moves between them."""

from __future__ import annotations

from weft.errors import InvalidTransitionError

PENDING, VALIDATED, STAGED = "pending", "validated", "staged"
PRODUCTION, DEPRECATED, ARCHIVED = "production", "deprecated", "archived"

# A state, and the states that may follow it.
MOVES: dict[str, tuple[str, ...]] = {
    PENDING: (VALIDATED, STAGED, DEPRECATED, ARCHIVED),  # added; nothing is known about it
    VALIDATED: (STAGED, PRODUCTION, DEPRECATED, ARCHIVED),  # it has an evaluation, or passed shadow
    STAGED: (VALIDATED, PRODUCTION, DEPRECATED, ARCHIVED),  # the candidate, or production before
    PRODUCTION: (STAGED,),  # only another version's promotion, or a rollback, ends it
    DEPRECATED: (VALIDATED, ARCHIVED),  # loads, with a warning
    ARCHIVED: (),  # does not load; gc removes its files
}
WHY = {
    (PENDING, PRODUCTION): "it has no evaluation and has not passed shadow; record one with `weft registry evaluate`, "
    "or promote with --force",
    (DEPRECATED, PRODUCTION): "mark it validated first",
}


def check_move(name: str, version: str, before: str, after: str) -> None:
    """Raise InvalidTransitionError unless a version may go from `before` to `after`."""
    if after in MOVES.get(before, ()):
        return
    if before == PRODUCTION:
        advice = "promote another version, or roll back; then it is staged"
    elif (before, after) in WHY:
        advice = WHY[before, after]
    elif not MOVES.get(before):
        advice = f"{before} is final; add the files again as another version"
    else:
        advice = f"from {before} it may become {', '.join(MOVES[before])}"
    what = f"{name}@{version} is {before} and cannot become {after}"
    raise InvalidTransitionError("registry", what, advice=advice)
