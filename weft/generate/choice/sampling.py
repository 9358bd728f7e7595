"""Sampling: choose the next token from logits. The same seed gives the same tokens, whatever else is in the batch.

The rules apply in this order:

1. logit bias is added;
2. repetition penalty: the logit of every id seen so far, prompt included and each id once, is divided by the penalty
   where it is positive and multiplied by it where it is not;
3. presence penalty, and frequency penalty times its count, are subtracted from the logit of every id generated so far;
4. tokens that a grammar or `min_tokens` does not allow are removed;
5. temperature 0 takes the largest logit, the lowest id among equals, and nothing below applies; else divide by it;
6. top-k keeps the k largest logits, lower ids first among equals;
7. softmax of the remaining logits;
8. typical-p keeps the fewest tokens, those first whose information is nearest to the mean (the entropy), that together
   reach `typical_p`, and renormalises;
9. min-p keeps tokens with at least `min_p` times the largest probability, and renormalises;
10. top-p keeps the fewest tokens, most probable first, that together reach `top_p` (at least one), and renormalises;
11. the token drawn is the first, most probable first and lower ids first among equals, where r < cumulative sum.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import field
from numbers import Integral, Real
from typing import TYPE_CHECKING

import numpy as np

from weft.errors import InputError
from weft.frozen import frozen

if TYPE_CHECKING:
    from weft.runtime.decoder import TopRows

_MASK = (1 << 64) - 1
_LARGEST = float(np.finfo(np.float32).max)
_MOST = 2.0  # largest magnitude of presence and frequency penalties
MAX_BIASES, MOST_BIAS = 1024, 100.0
_SMALL = 2048  # up to this many candidates are all sorted; of more, only the head that can be drawn
_COLUMNS = 1024  # columns into which the vocabulary is cut to find the k largest
_USUAL = 0.01, 100.0  # temperatures at which float32 sums weights well
_DOUBT = 1e-4  # more than weights that are summed in float32 can be off
_HEADS = (0.2, 0.05, 1e-2, 2e-3, 1e-4, 1e-6, 1e-9, 1e-15)  # where a head may end: weights, the largest being 1


@frozen
class Sampling:
    """How tokens are chosen; the default is greedy. `seed` None takes a fresh one, which the result reports."""

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _real(self, "temperature", 0.0, math.inf, "a finite number of at least 0")
        _real(self, "top_p", 0.0, 1.0, "a number from 0 to 1")
        _real(self, "min_p", 0.0, 1.0, "a number from 0 to 1")
        _real(self, "repetition_penalty", math.ulp(0.0), math.inf, "a finite number above 0")
        _real(self, "typical_p", 0.0, 1.0, "a number from 0 to 1")
        _real(self, "presence_penalty", -_MOST, _MOST, f"a number from -{_MOST:g} to {_MOST:g}")
        _real(self, "frequency_penalty", -_MOST, _MOST, f"a number from -{_MOST:g} to {_MOST:g}")
        _whole(self, "top_k", 2**31 - 1, "a whole number from 0 (off) to 2^31 - 1")
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        if self.seed is not None:
            _whole(self, "seed", _MASK, "None or a whole number from 0 to 2^64 - 1")


def _real(sampling: Sampling, name: str, low: float, high: float, wanted: str) -> None:
    """Check that field `name` is in low..high and make it a float."""
    value = getattr(sampling, name)
    number = _number(value)
    if not (math.isfinite(number) and low <= number <= high):
        raise InputError("sampling", f"must be {wanted}", field=name, given=value)
    object.__setattr__(sampling, name, number)


def _number(value: object) -> float:
    """A float; NaN for a value that is not a number."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # an integer too large for a float
        return math.inf


def _biases(given: object) -> dict[int, float]:
    """The bias of each token id; ids may be strings, as in JSON."""
    if not isinstance(given, Mapping):
        raise InputError("sampling", "must map token ids to numbers", field="logit_bias", given=given)
    if len(given) > MAX_BIASES:
        limit = f"has {len(given)} entries; at most {MAX_BIASES} are allowed"
        raise InputError("sampling", limit, field="logit_bias")
    found: dict[int, float] = {}
    for key, value in given.items():
        whole = isinstance(key, Integral) and not isinstance(key, bool)
        if not whole and not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 11):
            raise InputError("sampling", "must have token ids as keys", field="logit_bias", given=key)
        number = _number(value)
        if not -MOST_BIAS <= number <= MOST_BIAS:
            limit = f"must be -{MOST_BIAS:g} to {MOST_BIAS:g} for token {key}"
            raise InputError("sampling", limit, field="logit_bias", given=value)
        found[int(key)] = number
    return found


def _whole(sampling: Sampling, name: str, high: int, wanted: str) -> None:
    """Check that field `name` is in 0..high and make it an int."""
    value = getattr(sampling, name)
    if not isinstance(value, Integral) or isinstance(value, bool) or not 0 <= int(value) <= high:
        raise InputError("sampling", f"must be {wanted}", field=name, given=value)
    object.__setattr__(sampling, name, int(value))


def fresh_seed() -> int:
    """A random seed of 53 bits, so that it survives as a number in JSON."""
    return int.from_bytes(os.urandom(8), "little") >> 11


def uniform(seed: int, index: int) -> float:
    """The number in [0, 1) that draws token `index` of a request: output `index` of splitmix64 from `seed`, 53 bits."""
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


class Sampler:
    """Chooses the tokens of one request: its rules, its seed, and the ids it has seen."""

    def __init__(self, sampling: Sampling, prompt: Iterable[int], seed: int | None = None) -> None:
        self.rules = sampling
        self.seed = seed if seed is not None else fresh_seed() if sampling.seed is None else sampling.seed
        self._repetition = sampling.repetition_penalty != 1.0
        self._counted = bool(sampling.presence_penalty or sampling.frequency_penalty)
        self._bias = np.fromiter(sampling.logit_bias.values(), np.float32, len(sampling.logit_bias))
        self.changes = self._repetition or self._counted or len(self._bias) > 0  # rules 1 to 3 apply
        # The ids that these rules change, those with a bias first, and what is known of each. A new one is appended:
        # making arrays of what was seen for each token would cost as much as looking through a vocabulary.
        self._places = {id: place for place, id in enumerate(sampling.logit_bias)}
        self._ids = np.fromiter(self._places, np.int64, len(self._places))
        self._seen = np.zeros(len(self._ids), bool)  # in the prompt or generated
        self._times = np.zeros(len(self._ids))  # generated
        if self._repetition:
            for id in prompt:
                place = self._place(id)  # which may make the arrays anew
                self._seen[place] = True

    @property
    def decided_by(self) -> int:
        """How many of the largest logits decide the token, beside those of `changed`; 0: all of them, or `masses`."""
        return 1 if self.rules.temperature == 0 else self.rules.top_k

    @property
    def masses(self) -> bool:
        """Whether some of the largest logits and the masses of all decide the token nearly always."""
        low, high = _USUAL
        return self.decided_by == 0 and self.rules.typical_p == 1 and low <= self.rules.temperature <= high

    @property
    def changed(self) -> np.ndarray:
        """The ids whose logits rules 1 to 3 change, each once; a new one comes after the others."""
        return self._ids[: len(self._places)]

    def choose(self, logits: np.ndarray | TopRows, index: int, allowed: np.ndarray | None = None) -> int:
        """Token `index` of the request, from logits [vocab] (float32, finite); `allowed` [vocab] is a boolean mask.

        Or from one row of the largest logits of allowed tokens, `decided_by` or more of them, with those of `changed`
        put aside, in this order, before others. Where they and the masses do not decide, the whole row is read.
        """
        row = logits
        if not isinstance(row, np.ndarray):
            found = self._choose_among(row, index)
            if found is not None:
                return found
            row = row.whole()
        if self.changes:
            row = row.copy()
            row[self.changed] = self._adjusted(row[self.changed])
        if allowed is not None:
            row = np.where(allowed, row, np.float32(-np.inf))
        return self._chosen(row, index)

    def _choose_among(self, row: TopRows, index: int) -> int | None:
        """`choose` from the largest logits and those that were put aside; None where they do not decide."""
        ids, values, aside = row.ids[0], row.values[0], row.largest
        if not self.changes and self.decided_by:
            if self.rules.temperature == 0:
                return int(ids[0])
            return int(ids[self._chosen(values[: self.decided_by], index)])
        if self.changes:  # a token that is not allowed has minus infinity, which is not adjusted
            changed = values[aside : aside + len(self._places)]
            values = values.copy()
            values[aside : aside + len(changed)] = np.where(changed > -np.inf, self._adjusted(changed), changed)
        if self.decided_by:
            decide = min(self.decided_by, len(values))
            least = np.partition(values, len(values) - decide)[len(values) - decide]
            some = np.flatnonzero((values >= least) & (values > -np.inf))
            some = some[np.argsort(ids[some])]  # as in a whole row: lower ids first
            return int(ids[some[self._chosen(values[some], index)]])
        by_id = np.argsort(ids)
        head = by_id[_descending(values[by_id], np.arange(len(by_id)))][:aside]  # of others some are not here
        head = head[values[head] > -np.inf]
        if row.masses is None or not len(head):
            return None
        top, temperature = float(values[head[0]]), self.rules.temperature
        largest, sums = row.masses[0].T.astype(np.float64)
        total = float(sums @ np.exp((largest - top) / temperature))
        total += float(np.exp((values[aside:].astype(np.float64) - top) / temperature).sum())
        place = draw_first(values[head], total, self.rules, uniform(self.seed, index))
        return None if place is None else int(ids[head[place]])

    def _chosen(self, logits: np.ndarray, index: int) -> int:
        """Where in logits that are adjusted, lower ids first among equals, token `index` is."""
        if self.rules.temperature == 0:
            return int(logits.argmax())
        return draw(logits, self.rules, uniform(self.seed, index))

    def _adjusted(self, logits: np.ndarray) -> np.ndarray:
        """Rules 1 to 3 for the logits of `changed`."""
        count = len(self._places)
        logits = logits.copy()
        logits[: len(self._bias)] += self._bias
        if self._repetition:
            logits = np.where(self._seen[:count], penalise(logits, self.rules.repetition_penalty), logits)
        if self._counted:
            times = self._times[:count]
            logits -= (times > 0) * self.rules.presence_penalty + self.rules.frequency_penalty * times
        return logits

    def note(self, token: int) -> None:
        """Record `token`, which is now part of the sequence, for the penalties."""
        if self._repetition or self._counted:
            place = self._place(token)
            self._seen[place] = True
            self._times[place] += 1

    def _place(self, id: int) -> int:
        """Where this id is in the arrays, which have room for more than there are."""
        place = self._places.setdefault(id, len(self._places))
        if place == len(self._ids):
            more = max(64, place)
            self._ids = np.append(self._ids, np.zeros(more, np.int64))
            self._seen = np.append(self._seen, np.zeros(more, bool))
            self._times = np.append(self._times, np.zeros(more))
        self._ids[place] = id
        return place


def penalise(logits: np.ndarray, penalty: float) -> np.ndarray:
    """Logits made less likely; rounded to float32, and kept finite."""
    x = logits.astype(np.float64)
    with np.errstate(over="ignore"):
        return np.clip(np.where(x > 0, x / penalty, x * penalty), -_LARGEST, _LARGEST).astype(np.float32)


def draw(logits: np.ndarray, rules: Sampling, r: float) -> int:
    """Rules 5 to 11 on logits [vocab] (float32, finite or -inf), with temperature above 0 and r in [0, 1)."""
    top = float(logits.max())
    ids, beyond = _candidates(logits, top, rules, r)
    ids = _descending(logits, ids)
    with np.errstate(over="ignore"):  # a tiny temperature: exp(-inf) is 0, as it should be
        weights = np.exp((logits[ids].astype(np.float64) - top) / rules.temperature)  # descending from exactly 1
    if rules.typical_p < 1:
        kept = _typical(weights, rules.typical_p)
        ids, weights = ids[kept], weights[kept]
    if rules.min_p > 0:
        weights = weights[: np.count_nonzero(weights >= rules.min_p * weights[0])]
    sums = np.cumsum(weights)
    last, total = len(sums) - 1, float(sums[-1]) + beyond
    if rules.top_p < 1:
        last = min(int(np.searchsorted(sums, rules.top_p * total)), last)
        total = float(sums[last])
    return int(ids[min(int(np.searchsorted(sums, r * total, side="right")), last)])


def draw_first(logits: np.ndarray, total: float, rules: Sampling, r: float) -> int | None:
    """`draw` where only the largest logits are known, larger first: the token's place; None where it may be another.

    `total` is the weight of all (the largest logit weighs 1), summed in float32 as in `_head`. A token counts as drawn
    only if it is for every total that this could stand for, so that whole rows draw the same.
    """
    weights = np.exp((logits.astype(np.float64) - float(logits[0])) / rules.temperature)
    least, most = total * (1 - _DOUBT), total * (1 + _DOUBT)
    end = first = last = len(weights)  # first and last: the least and the most that the last token's place can be
    if rules.min_p > 0:
        end = int(np.count_nonzero(weights >= rules.min_p * weights[0]))
        if end == len(weights):  # some that are not here may count, too
            return None
        weights = weights[:end]
        first = last = end - 1
    sums = np.cumsum(weights)
    if rules.min_p > 0:
        least = most = float(sums[-1])
    if rules.top_p < 1:
        first = min(int(np.searchsorted(sums, rules.top_p * least)), first)
        last = min(int(np.searchsorted(sums, rules.top_p * most)), last)
        # One that is not here weighs at most as much as the last that is.
        least = float(sums[first]) if first < end else rules.top_p * least
        most = float(sums[last]) if last < end else rules.top_p * most + float(weights[-1])
    place = min(int(np.searchsorted(sums, r * least, side="right")), first)
    other = min(int(np.searchsorted(sums, r * most, side="right")), last)
    return place if place == other < end else None


def _candidates(logits: np.ndarray, top: float, rules: Sampling, r: float) -> tuple[np.ndarray, float]:
    """Ids that include every token that can be drawn, and the weight of the others (the largest logit weighs 1)."""
    if 0 < rules.top_k < len(logits):
        return _top_k(logits, rules.top_k), 0.0
    if rules.typical_p < 1:
        return np.arange(len(logits)), 0.0
    if rules.min_p > 0:
        # exp((x - top) / T) >= min_p, solved for x and lowered by more than the comparison in float32 can err.
        bound = top + rules.temperature * math.log(rules.min_p)
        bound -= 1e-6 * (1 + abs(top) + abs(bound))
        return np.flatnonzero(logits >= np.float32(max(bound, -_LARGEST))), 0.0
    return _head(logits, top, rules, r)


def _typical(weights: np.ndarray, share: float) -> np.ndarray:
    """Ascending positions of the tokens that rule 8 keeps; `weights` are descending."""
    share_of = weights / weights.sum()
    some = share_of > 0
    information = np.where(some, -np.log(np.where(some, share_of, 1.0)), np.inf)
    entropy = float((share_of[some] * information[some]).sum())
    nearest = np.argsort(np.abs(information - entropy), kind="stable")
    reached = int(np.searchsorted(np.cumsum(share_of[nearest]), share))
    return np.sort(nearest[: reached + 1])


def _top_k(logits: np.ndarray, k: int) -> np.ndarray:
    """Ids of the k largest logits, lower ones first among equals."""
    ids = np.arange(len(logits)) if 4 * k > _COLUMNS or len(logits) < 8 * _COLUMNS else _above_k_maxima(logits, k)
    values = logits[ids]
    least = np.partition(values, len(values) - k)[len(values) - k]
    above = ids[values > least]
    return np.concatenate([above, ids[values == least][: k - len(above)]])


def _above_k_maxima(logits: np.ndarray, k: int) -> np.ndarray:
    """Few ids, ascending, with the k largest logits among them; much cheaper than selecting from all.

    k column maxima are at or above the k-th largest column maximum, so the k largest logits are too.
    """
    columns = logits[: len(logits) // _COLUMNS * _COLUMNS].reshape(-1, _COLUMNS).max(axis=0)
    return np.flatnonzero(logits >= np.partition(columns, _COLUMNS - k)[_COLUMNS - k])


def _head(logits: np.ndarray, top: float, rules: Sampling, r: float) -> tuple[np.ndarray, float]:
    """The most probable ids, enough of them for this draw, and the weight of the tail, which is not sorted.

    The tail only contributes to the total, so its weight is summed from float32 exponentials (error below 1e-5).
    """
    if len(logits) <= _SMALL or not 1e-6 < rules.temperature < 1e6:  # beyond, float32 is not precise enough
        return np.arange(len(logits)), 0.0
    with np.errstate(over="ignore"):
        weights = np.exp((logits - np.float32(top)) / np.float32(rules.temperature))
    total = float(weights.sum(dtype=np.float64))
    needed = total * (rules.top_p if rules.top_p < 1 else r)
    for least in _HEADS:
        head = np.flatnonzero(weights >= least)
        mass = float(weights[head].sum(dtype=np.float64))
        if mass > needed * (1 + 1e-5):  # the margin is the error of float32
            return head, total - mass
    return np.arange(len(logits)), 0.0


def _descending(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """`ids` by descending logit, lower ids first among equals: one sort of 64-bit keys (logit, id)."""
    bits = (logits[ids] + np.float32(0)).view(np.uint32)  # + 0 turns -0 into 0, which is equal
    falling = np.where(bits >> 31, bits, ~(bits | np.uint32(0x80000000)))  # unsigned, descending in the logit
    keys = (falling.astype(np.uint64) << np.uint64(32)) | ids.astype(np.uint64)
    return (np.sort(keys) & np.uint64(0xFFFFFFFF)).astype(np.int64)
