"""A labelling: rows in, a teacher's answers out, with a ledger of every request and a manifest.

The folder has `ledger.sqlite` (each reply as it came, and its cost), `labels.jsonl` (the rows that have an answer, in
the order of the data), `failed.jsonl` (the others, with the reason) and `manifest.json`. Run again, it asks only for
what has no reply yet: nothing, if all have one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from weft import __version__
from weft.distill.asking import Ask, Asker, Limits
from weft.distill.dialects import CUT, DIALECTS, REFUSED, Message, OpenAI, Reply, Settings, UnreadableError
from weft.distill.ledger import PAID, Ledger
from weft.distill.prices import Price, Worst, money, read_prices, shown, worst_case
from weft.distill.rows import Prompting, read_questions
from weft.distill.teachers import Answers, LocalModel, Named, Server, digest_of
from weft.errors import BudgetError, InputError, TooLongError, WeftError
from weft.frozen import frozen
from weft.train.data.rows import Data, Row
from weft.weights.files import replacing

LABELS, FAILED, MANIFEST = "labels.jsonl", "failed.jsonl", "manifest.json"
FORMAT = "weft-labels 1"
FREE = Price(0, 0)
Tell = Callable[[int, int], None]


@frozen
class Plan:
    """What a run would do: rows, requests that differ, those with a reply, and the most that the others can cost."""

    rows: int
    requests: int
    kept: int
    worst: int
    spent: int


@frozen
class Labelled:
    """What a run has done. `stopped` if it ended before all was asked; `cost` is that of all runs in the folder."""

    rows: int
    labelled: int
    failed: dict[str, int]
    sent: int
    cost: int
    stopped: bool


@frozen
class Question:
    """A row, its messages, and the key that its reply is kept under."""

    row: Row
    messages: Sequence[Message]
    key: str
    data: bytes = b""


class Labelling:
    """Opened with all that decides it; `plan` says what `run` would send. Close it, or use it in a `with` block."""

    def __init__(
        self,
        data: Data,
        teacher: str,
        output: str | os.PathLike[str],
        *,
        prompting: Prompting | None = None,
        max_tokens: int = 256,
        temperature: float | None = 0.0,
        top_logprobs: int = 0,
        base_url: str | None = None,
        allow_hosts: Sequence[str] = (),
        prices: str | os.PathLike[str] | Price | None = None,
        max_cost: Any = None,
        limits: Limits | None = None,
        **options: Any,
    ) -> None:
        self.named = Named.read(teacher)
        self.prompting = prompting or Prompting()
        self.settings = _settings(self.named.model, max_tokens, temperature, top_logprobs)
        self.limits = limits or Limits()
        self.rows = read_questions(data)
        self.data = data
        self.teacher = self._opened(base_url, allow_hosts, options)
        self.price = self._price(prices)
        self.cap = None if max_cost is None else money(max_cost, "max_cost")
        self._check_cap()
        self.folder = Path(output)
        self.questions = list(self._questions())
        self.ledger = Ledger(self.folder)

    def _opened(self, base_url: str | None, allowed: Sequence[str], options: dict[str, Any]) -> Any:
        if self.named.kind in DIALECTS:
            if options:
                raise InputError("distill", f"there is no option {next(iter(options))} of a server")
            return Server(self.named, self.settings, base_url, None, allowed)
        if base_url is not None:
            raise InputError("distill", f"is for servers, not for {self.named.kind} teachers", field="base_url")
        return LocalModel(self.named, self.settings, **options) if self.named.kind == "local" else Answers(self.named)

    def _price(self, given: str | os.PathLike[str] | Price | None) -> Price:
        if isinstance(given, Price):
            return given
        if given is not None:
            return read_prices(given, self.named.model)
        if isinstance(self.teacher, Server) and not self.teacher.local:
            advice = "give --price-in and --price-out, or a file with --prices; 0 for a server that charges nothing"
            raise InputError("distill", "are needed for a server of others", field="prices", advice=advice)
        return FREE

    def _check_cap(self) -> None:
        if self.cap is None and not self.price.free:
            advice = "give --max-cost, in the currency of the prices"
            raise InputError("distill", "is needed where requests cost something", field="max_cost", advice=advice)

    def _questions(self) -> Iterator[Question]:
        for row in self.rows:
            try:
                messages = self.prompting.messages(row)
                if isinstance(self.teacher, Server):
                    data = self.teacher.data(messages)
                    yield Question(row, messages, self.teacher.key(data), data)
                elif isinstance(self.teacher, LocalModel):
                    yield Question(row, messages, self.teacher.key(messages))
                else:
                    yield Question(row, messages, "")
            except WeftError as error:
                raise (error if error.where == row.file else row.blamed(error)) from None

    def close(self) -> None:
        self.ledger.close()

    def __enter__(self) -> Labelling:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _worst(self, one: Question) -> Worst:
        return worst_case(one.messages, self.settings.max_tokens, self.price)

    def _open_questions(self) -> tuple[list[Question], int]:
        """The questions without a reply, each request once, and how many requests differ."""
        unique = {one.key: one for one in self.questions}
        paid = self.ledger.keys_paid()
        return [one for key, one in unique.items() if key not in paid], len(unique)

    @property
    def plan(self) -> Plan:
        if isinstance(self.teacher, Answers):
            return Plan(len(self.rows), 0, 0, 0, 0)
        left, requests = self._open_questions()
        worst = sum(self._worst(one).cost for one in left)
        return Plan(len(self.rows), requests, requests - len(left), worst, self.ledger.cost)

    def run(self, tell: Tell | None = None) -> Labelled:
        """Ask for what has no reply, then write the labels. `tell` gets the number of replies and the cost so far.

        Where the cap or an error ends it, what there is by then is written first.
        """
        tell = tell or (lambda done, cost: None)
        left = [] if isinstance(self.teacher, Answers) else self._open_questions()[0]
        failures: dict[str, str] = {}
        stopped, problem = False, None
        try:
            if isinstance(self.teacher, Server):
                poster = self.teacher.poster(self.limits.timeout_s)
                asks = [Ask(one.key, one.messages, one.data, self._worst(one)) for one in left]
                asker = Asker(poster, self.teacher.dialect, self.ledger, self.limits, self.price, self.cap)
                found = asker.run(asks, tell)
                failures, stopped = found.failed, found.stopped
            elif isinstance(self.teacher, LocalModel):
                failures = self._run_local(self.teacher, left, tell)
        except KeyboardInterrupt:
            stopped = True
        except (WeftError, OSError) as error:
            problem = error
        done = self._write(failures, len(left), stopped or problem is not None)
        if problem is not None:
            raise problem
        return done

    def _run_local(self, model: LocalModel, left: list[Question], tell: Tell) -> dict[str, str]:
        """Keep the answers to all questions that fit the model; why the others failed."""
        failures: dict[str, str] = {}
        for done, (one, body) in enumerate(zip(left, model.answers([one.messages for one in left])), 1):
            if isinstance(body, TooLongError):
                failures[one.key] = f"{body.field} {body.what}"
                continue
            number = self.ledger.reserve(one.key, 0, None)
            assert number is not None, "without a cap there is always room"
            reply = model.dialect.read(body)
            counts = (reply.input_tokens or 0, reply.output_tokens or 0)
            self.ledger.settle(number, PAID, 0, tokens=counts, status=200, body=body)
            tell(done, 0)
        return failures

    def reply(self, one: Question) -> tuple[Reply | None, dict[str, Any]]:
        """The reply to a question as it is kept, and what weft's own models say beside it."""
        if isinstance(self.teacher, Answers):
            text = self.teacher.answer(one.row.fields, one.messages[-1]["content"])
            if text is None:
                own = next((v for n, v in one.row.fields.items() if n in ("text", "prompt") and isinstance(v, str)), "")
                text = self.teacher.answer(one.row.fields, own)
            return (None if text is None else Reply(text, "stop", None, None)), {}
        kept = self.ledger.paid(one.key)
        if kept is None:
            return None, {}
        dialect = self.teacher.dialect if isinstance(self.teacher, Server) else OpenAI()
        extra = {} if isinstance(self.teacher, Server) else json.loads(kept.body)["weft"]
        return dialect.read(kept.body), extra

    def _row(self, one: Question, failures: dict[str, str]) -> tuple[dict[str, Any] | None, str]:
        """The row with its answer, or why it has none."""
        try:
            reply, extra = self.reply(one)
        except UnreadableError as error:
            return None, f"unreadable: {error}"
        if reply is None:
            return None, f"failed: {failures[one.key]}" if one.key in failures else "not asked"
        if reply.finish in (CUT, REFUSED):
            why = f"cut: longer than {self.settings.max_tokens} tokens" if reply.finish == CUT else "refused"
            return None, why
        made = self.prompting.answered(one.row, reply.text)
        if made is None:
            return None, f"no label: {reply.text[:200]}"
        if isinstance(self.teacher, Answers) and self.prompting.labels:
            chances = self.teacher.probabilities(one.row.fields)
            made |= {} if chances is None else {"probabilities": chances}
        if reply.choices is not None:
            made["logprobs"] = [[one.token, one.logprob, [list(pair) for pair in one.top]] for one in reply.choices]
        if "top" in extra:
            made["teacher"] = {
                name: extra[name] for name in ("prompt", "tokens", "top", "end", "text") if name in extra
            }
        return made, ""

    def _write(self, failures: dict[str, str], asked: int, stopped: bool) -> Labelled:
        reasons: dict[str, int] = {}
        count = 0
        with replacing(self.folder / LABELS) as good, replacing(self.folder / FAILED) as bad:
            for one in self.questions:
                made, why = self._row(one, failures)
                if made is not None:
                    good.write(_line(made))
                    count += 1
                    continue
                kind = why.partition(":")[0]
                reasons[kind] = reasons.get(kind, 0) + 1
                bad.write(_line({**one.row.fields, "reason": why}))
        left = 0 if isinstance(self.teacher, Answers) else len(self._open_questions()[0])
        cost = self.ledger.cost
        with replacing(self.folder / MANIFEST) as out:
            out.write(json.dumps(self._manifest(count, reasons), indent=2, ensure_ascii=False).encode() + b"\n")
        return Labelled(len(self.rows), count, reasons, asked - left, cost, stopped)

    def _manifest(self, count: int, reasons: dict[str, int]) -> dict[str, Any]:
        """All that decided the labels, with digests; without the key."""
        named: dict[str, Any] = {"kind": self.named.kind, "model": self.named.model}
        if isinstance(self.teacher, Server):
            named |= {"base_url": self.teacher.base_url}
        named |= {"max_tokens": self.settings.max_tokens, "temperature": self.settings.temperature}
        asked = {"template": self.prompting.template, "system": self.prompting.system}
        rows = json.dumps([dict(row.fields) for row in self.rows], sort_keys=True, ensure_ascii=False)
        states = self.ledger.summary()
        return {
            "format": FORMAT,
            "weft": __version__,
            "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "teacher": {**named, "top_logprobs": self.settings.top_logprobs},
            "prompt": {**asked, "labels": list(self.prompting.labels)},
            "data": {"rows": len(self.rows), "sha256": digest_of(rows)},
            "labels": {"file": LABELS, "rows": count, "sha256": _file_digest(self.folder / LABELS)},
            "failed": reasons,
            "prices": {
                "input_per_million": shown(self.price.input * 10**6),
                "output_per_million": shown(self.price.output * 10**6),
            },
            "cost": {"spent": shown(self.ledger.cost), "cap": None if self.cap is None else shown(self.cap)},
            "attempts": {state: {**facts, "cost": shown(facts["cost"])} for state, facts in states.items()},
        }


def label(data: Data, teacher: str, output: str | os.PathLike[str], **options: Any) -> Labelled:
    """Have a teacher answer the rows of a file, or of Python, into the folder `output`. Options as for `Labelling`."""
    with Labelling(data, teacher, output, **options) as labelling:
        return labelling.run()


def _settings(model: str, max_tokens: int, temperature: float | None, top: int) -> Settings:
    if type(max_tokens) is not int or not 1 <= max_tokens <= 10**6:
        raise InputError("distill", "must be a whole number from 1 on", field="max_tokens", given=max_tokens)
    if temperature is not None and not (isinstance(temperature, (int, float)) and 0 <= temperature <= 2):
        raise InputError("distill", "must be from 0 to 2", field="temperature", given=temperature)
    if type(top) is not int or top < 0:
        raise InputError("distill", "must be a whole number from 0 on", field="top_logprobs", given=top)
    return Settings(model, max_tokens, None if temperature is None else float(temperature), top)


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def _file_digest(path: Path) -> str:
    from weft.digest import of_file

    with open(path, "rb") as file:
        return of_file(file)


__all__ = ["BudgetError", "Labelled", "Labelling", "Plan", "label"]
