"""Slots of recurrent state have the users they should have, and checkpoints lead to the state after their page."""

import random

import pytest

from weft.errors import InputError
from weft.runtime.paged.pages import PAGE_TOKENS, PagePool
from weft.runtime.paged.prefix import Node, Prefixes, token_bytes
from weft.runtime.paged.slots import (
    CHECKPOINT_PAGES,
    LEAST_SHARE,
    LEAST_SLOTS,
    NONE,
    Recurrence,
    SlotPool,
    checkpoint_bytes,
    slots_for,
)


def test_a_state_has_slots_for_running_requests_and_checkpoints() -> None:
    small = {"page_bytes": 4096, "slot_bytes": 4096}
    assert slots_for(0, **small) == LEAST_SLOTS
    assert slots_for(1, **small) == slots_for(CHECKPOINT_PAGES, **small) == LEAST_SLOTS + 1
    assert slots_for(70 * CHECKPOINT_PAGES, **small) == LEAST_SLOTS + 70


def test_checkpoints_have_no_more_memory_than_pages() -> None:
    page, slot = 393_216, 20 << 20  # of a Qwen3.5 with 0.8 billion weights
    pages = 16 * 8192 // PAGE_TOKENS
    checkpoints = slots_for(pages, page, slot) - LEAST_SLOTS
    assert checkpoints == -(-pages * page // slot) and checkpoints * slot < 1.02 * pages * page
    assert checkpoint_bytes(0, slot) == slot // LEAST_SHARE, "a model without attention has some too"


def test_spare_checkpoints_go_first() -> None:
    pool, gone = SlotPool(4), []
    slots = pool.take(4)
    for slot in slots:
        pool.keep(slot, gone.append)
    for slot in (slots[1], slots[3], slots[2]):
        pool.spare(slot, True)
    pool.spare(slots[2], False)
    for slot in slots:  # one after another
        pool.release([slot])
    assert pool.checkpoints == 4
    pool.take(4)
    assert gone == [slots[1], slots[3], slots[0], slots[2]] and pool.checkpoints == 0


def test_a_request_reads_one_slot_and_writes_another() -> None:
    pool = SlotPool(4)
    state = Recurrence(pool)
    state.resume(NONE)
    state.ready()
    first = state.target
    state.ready()  # the step was interrupted: the same slot once more
    assert (state.source, state.target) == (NONE, first) and pool.users(first) == 1
    state.advance()
    state.ready()
    assert state.source == first != state.target and pool.free_count == 2
    other = Recurrence(pool)
    other.resume(first)
    assert pool.users(first) == 2
    state.advance()
    assert pool.users(first) == 1 and other.source == first
    state.drop()
    other.drop()
    assert pool.free_count == 4
    with pytest.raises(InputError, match="5 slots wanted, 4 of 4 free"):
        pool.take(5)


class Model:
    """Texts that grow page by page, each with its recurrent state; a slot holds the text that it is the state of."""

    def __init__(self, seed: int, bits: int) -> None:
        self.rng = random.Random(seed)
        self.pages, self.slots = PagePool(24), SlotPool(10)
        self.prefixes = Prefixes(self.pages, slots=self.slots, secret=b"k" * 32, hash_bits=bits)
        self.root = self.prefixes.root("root")
        self.holds: dict[int, bytes] = {}  # slot -> the text of its state
        self.texts: list[tuple[list[int], list[Node], Recurrence, bytes]] = []
        self.resumed = self.checkpoints = 0

    def operate(self) -> None:
        full = len(self.texts) >= self.slots.most_running or not self.pages.free_count
        if self.texts and (full or self.rng.random() < 0.2):
            pages, _, state, _ = self.texts.pop(self.rng.randrange(len(self.texts)))
            self.pages.release(pages)
            state.drop()
        elif self.texts and self.rng.random() < 0.6:
            self.extend(self.rng.randrange(len(self.texts)))
        else:
            self.open()

    def text(self, pages: int) -> bytes:
        return b"".join(token_bytes([self.rng.randrange(3)] * PAGE_TOKENS) for _ in range(pages))

    def open(self) -> None:
        text = self.text(6)
        found = self.prefixes.find(self.root, text, self.prefixes.hashes(self.root, text))
        nodes = self.prefixes.resumable(found)
        assert not nodes or nodes[-1].slot != NONE
        assert all(node.slot == NONE for node in found[len(nodes) :]), "not the last checkpoint"
        self.pages.share([node.page for node in nodes])
        state = Recurrence(self.slots)
        state.resume(nodes[-1].slot if nodes else NONE)
        begun = text[: len(nodes) * 4 * PAGE_TOKENS]
        assert not nodes or self.holds[state.source] == begun, "the state of another text"
        self.resumed += bool(nodes)
        self.texts.append(([node.page for node in nodes], nodes, state, begun))

    def extend(self, index: int) -> None:
        pages, nodes, state, text = self.texts[index]
        if len(pages) != len(nodes):
            return
        more = self.text(1)
        (page,) = self.pages.take(1)
        state.ready()
        self.holds[state.target] = text + more
        state.advance()
        node = self.prefixes.add(nodes[-1] if nodes else self.root, more, page)
        if node is not None:
            if node.page != page:
                self.pages.share([node.page])
                self.pages.release([page])
            nodes.append(node)
            if self.rng.random() < 0.5:
                self.prefixes.checkpoint(node, state.source)
                self.checkpoints += 1
        self.texts[index] = ([*pages, node.page if node else page], nodes, state, text + more)

    def check(self) -> None:
        held = [slot for *_, state, _ in self.texts for slot in (state.source, state.target) if slot != NONE]
        assert all(held.count(slot) == self.slots.users(slot) for slot in range(self.slots.count))
        assert len(set(held)) + self.slots.free_count == self.slots.count
        kept = {node.slot: node for node in self.prefixes._nodes.values() if node.slot != NONE}
        assert kept == self.prefixes._of_slot


@pytest.mark.parametrize("seed", range(8))
def test_forks_evictions_and_checkpoints_leak_no_slot(seed: int) -> None:
    model = Model(seed, bits=4 if seed % 2 else 128)
    for number in range(3_000):
        model.operate()
        if number % 50 == 0:
            model.check()
        if number % 1_000 == 999:
            model.prefixes.clear()
            assert model.slots.kept_count == 0
    for pages, _, state, _ in model.texts:
        model.pages.release(pages)
        state.drop()
    assert model.slots.free_count == 10 and model.pages.free_count == 24
    assert model.resumed > 50 and model.checkpoints > 100
