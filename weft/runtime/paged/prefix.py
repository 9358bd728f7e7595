"""Prefix sharing: pages of the state found by what they hold, so that a text's beginning is computed once.

A full page is known by a keyed hash over the one before it and its own tokens; the first is hashed over a root, which
stands for everything else that decides the page's bits: model, adapter, tenant. A hash only leads to a candidate: its
tokens and the page before it are compared, so a collision costs a hit and never gives a wrong page.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from weft.digest import framed
from weft.runtime.paged.pages import PAGE_TOKENS, PagePool
from weft.runtime.paged.slots import NONE, SlotPool

if TYPE_CHECKING:
    from weft.runtime.paged.store import PagedState, PrefixStore

Write = Callable[[int, bytes], None]  # a page, or a slot

HASH_BITS = 128
_PAGE_BYTES = 4 * PAGE_TOKENS  # of its tokens


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Tokens as they are hashed and compared: 32-bit little-endian numbers."""
    return b"".join(token.to_bytes(4, "little") for token in tokens)


class Node:
    """A page's content: its tokens, after those of `parent`. A root has neither page nor parent; its name is there
    instead of tokens. `slot` is a checkpoint, the recurrent state after the page, where one is kept."""

    __slots__ = ("__weakref__", "hash", "page", "parent", "slot", "tokens")

    def __init__(self, hash: bytes, parent: Node | None, tokens: bytes, page: int) -> None:
        self.hash = hash
        self.parent = parent
        self.tokens = tokens
        self.page = page
        self.slot = NONE

    def text(self) -> bytes:
        """The root's name and all tokens after it."""
        parts: list[bytes] = []
        node: Node | None = self
        while node is not None:
            parts.append(node.tokens)
            node = node.parent
        return b"".join(reversed(parts))


class Prefixes:
    """What the pages of a pool hold. Callers hold the engine's lock.

    `hash_bits` below 128 is for tests: it makes collisions. With a `store`, full pages are written there too, and
    looked for there when memory does not have them. With `slots` a request can only resume at a checkpoint.
    """

    def __init__(
        self,
        pool: PagePool,
        *,
        slots: SlotPool | None = None,
        secret: bytes | None = None,
        hash_bits: int = HASH_BITS,
        store: PrefixStore | None = None,
    ) -> None:
        self._pool = pool
        self._slots = slots
        self._secret = secret or (store.secret if store else os.urandom(32))
        self._bits = hash_bits
        self._store = store
        self._nodes: dict[bytes, Node] = {}
        self._of_page: dict[int, Node] = {}
        self._of_slot: dict[int, Node] = {}
        self._roots: WeakValueDictionary[bytes, Node] = WeakValueDictionary()
        self.version = 0  # changes with what can be found
        self.collisions = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def root(self, *parts: str) -> Node:
        """The start of all texts under these circumstances."""
        name = framed(*parts)
        root = self._roots.get(name)
        if root is None:
            root = self._roots[name] = Node(self._hash(b"root", name), None, name, -1)
        return root

    def hashes(self, root: Node, text: bytes) -> list[bytes]:
        """The hashes of the full pages of `text` (see token_bytes)."""
        found, last = [], root.hash
        for start in range(0, len(text) - _PAGE_BYTES + 1, _PAGE_BYTES):
            last = self._hash(last, text[start : start + _PAGE_BYTES])
            found.append(last)
        return found

    def find(self, root: Node, text: bytes, hashes: Sequence[bytes]) -> list[Node]:
        """The pages that hold the beginning of `text`, one after another, as far as they are known."""
        found: list[Node] = []
        parent = root
        for index, key in enumerate(hashes):
            node = self._nodes.get(key)
            if node is None:
                break
            tokens = text[index * _PAGE_BYTES : (index + 1) * _PAGE_BYTES]
            if node.parent is not parent or node.tokens != tokens:
                self.collisions += 1
                break
            found.append(node)
            parent = node
        return found

    def resumable(self, nodes: list[Node]) -> list[Node]:
        """The pages of `find` that a request can start from: with recurrent state, those up to the last checkpoint."""
        if self._slots is None:
            return nodes
        return nodes[: next((i for i in range(len(nodes), 0, -1) if nodes[i - 1].slot != NONE), 0)]

    def checkpoint(self, node: Node, slot: int, *, spare: bool = False) -> bool:
        """Keep `slot` as the recurrent state after `node`; False if there is one already or the page is gone.

        A `spare` checkpoint goes before others when slots are needed.
        """
        assert self._slots is not None
        if self._nodes.get(node.hash) is not node:
            return False
        if node.slot != NONE:
            if not spare:
                self._slots.spare(node.slot, False)
            return False
        self._slots.keep(slot, self._forget_checkpoint)
        self._slots.spare(slot, spare)
        node.slot = slot
        self._of_slot[slot] = node
        self.version += 1
        return True

    def spare_checkpoint(self, node: Node) -> None:
        """Let the checkpoint after `node` go before others."""
        if node.slot != NONE and self._slots is not None:
            self._slots.spare(node.slot, True)

    def drop_checkpoint(self, node: Node) -> None:
        """Stop keeping the recurrent state after `node`, if there is one."""
        if node.slot != NONE and self._slots is not None:
            self._slots.drop(node.slot)
            self._forget_checkpoint(node.slot)

    def add(self, parent: Node, tokens: bytes, page: int) -> Node | None:
        """`page` holds `tokens` (a page full) after `parent`; the node that stands for this content now.

        None when another content has its hash: the page, and what follows it, cannot be found.
        """
        key = self._hash(parent.hash, tokens)
        node = self._nodes.get(key)
        if node is not None:
            same = node.parent is parent and node.tokens == tokens
            self.collisions += not same
            return node if same else None
        node = Node(key, parent, tokens, page)
        self._nodes[key] = node
        self._of_page[page] = node
        self._pool.keep(page, self._forget)
        self.version += 1
        return node

    def fetch(self, root: Node, text: bytes, hashes: Sequence[bytes]) -> None:
        """Read pages of `text` that memory lacks and the store has."""
        store = self._store
        if store is None:
            return
        found, state = self.find(root, text, hashes), None
        known = len(found)
        texts = [root.tokens + text[:end] for end in range(_PAGE_BYTES, len(hashes) * _PAGE_BYTES + 1, _PAGE_BYTES)]
        if self._slots is not None:  # pages are of use up to the last checkpoint
            begun = len(self.resumable(found))
            counts = range(len(hashes), begun, -1)
            stored = (store.read(hashes[n - 1], texts[n - 1], kind="slot") for n in counts)
            count, state = next(((n, data) for n, data in zip(counts, stored) if data is not None), (begun, None))
            hashes = hashes[:count]
        reads = (store.read(key, whole) for key, whole in zip(hashes[known:], texts[known:]))
        self._fill(root, text, hashes, known, reads, store.decoder.write_page)
        if state is not None:
            self._put_state(root, text, hashes, state, store.decoder.write_slot)

    def put(self, root: Node, text: bytes, pages: Sequence[bytes], state: bytes | None, decoder: PagedState) -> None:
        """Make the content of the first `pages` of `text` known, as far as there is room, and `state` behind them."""
        hashes = self.hashes(root, text)[: len(pages)]
        known = len(self.find(root, text, hashes))
        self._fill(root, text, hashes, known, pages[known:], decoder.write_page)
        if state is not None:
            self._put_state(root, text, hashes, state, decoder.write_slot)

    def _put_state(self, root: Node, text: bytes, hashes: Sequence[bytes], state: bytes, write: Write) -> None:
        """Make `state` the checkpoint after the last page of `hashes`, if that page is known."""
        nodes = self.find(root, text, hashes)
        if self._slots is None or len(nodes) < len(hashes) or not nodes or not self._slots.free_count:
            return
        held = self._slots.take(1)
        write(held[0], state)
        self.checkpoint(nodes[-1], held[0])
        self._slots.release(held)

    def _fill(
        self,
        root: Node,
        text: bytes,
        hashes: Sequence[bytes],
        known: int,
        contents: Iterable[bytes | None],
        write: Write,
    ) -> None:
        """Write `contents` to free pages, as those of `text` behind the `known` ones."""
        found = self.find(root, text, hashes)
        parent = found[-1] if found else root
        held = [node.page for node in found]
        self._pool.share(held)  # so that making room does not take them
        for index, content in enumerate(contents, known):
            if content is None or not self._pool.free_count:
                break
            (page,) = self._pool.take(1)
            held.append(page)
            write(page, content)
            node = self.add(parent, text[index * _PAGE_BYTES : (index + 1) * _PAGE_BYTES], page)
            if node is None or node.page != page:
                break
            parent = node
        self._pool.release(held)

    def save(self, node: Node) -> None:
        """Hand a new page to the store, which writes it when it can."""
        if self._store is not None:
            self._store.write(node.hash, node.text(), self._store.decoder.read_page, node.page)

    def save_checkpoint(self, node: Node) -> None:
        """Hand the recurrent state after `node`, if it is kept, to the store."""
        if self._store is not None and node.slot != NONE:
            self._store.write(node.hash, node.text(), self._store.decoder.read_slot, node.slot, kind="slot")

    def _forget(self, page: int) -> None:
        node = self._of_page.pop(page)
        del self._nodes[node.hash]
        self.drop_checkpoint(node)
        self.version += 1

    def _forget_checkpoint(self, slot: int) -> None:
        self._of_slot.pop(slot).slot = NONE
        self.version += 1

    def clear(self) -> None:
        """Forget everything; pages in use stay with their users."""
        for page in self._of_page:
            self._pool.drop(page)
        for slot in [*self._of_slot]:
            assert self._slots is not None
            self._slots.drop(slot)
            self._forget_checkpoint(slot)
        self._nodes.clear()
        self._of_page.clear()
        self.version += 1

    def _hash(self, last: bytes, content: bytes) -> bytes:
        digest = blake2b(last + content, digest_size=16, key=self._secret).digest()
        if self._bits == HASH_BITS:
            return digest
        number = int.from_bytes(digest, "little") & ((1 << self._bits) - 1)
        return number.to_bytes(16, "little")
