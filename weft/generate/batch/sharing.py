"""What requests share: pages of the prefix cache in memory and on disk, and checkpoints of recurrent state beside them.

Models with recurrent state can resume only at a checkpoint. Checkpoints are as large as many pages, so they are made
where a text is likely to be taken up again: at the end of a prompt, where texts part, at the last page of an answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from pathlib import Path

from weft.generate.decoder import Decoder
from weft.generate.sequence import Sequence
from weft.runtime.paged.prefix import Node, Prefixes, token_bytes
from weft.runtime.paged.slots import CHECKPOINT_PAGES, LEAST_PAGES
from weft.runtime.paged.store import PrefixStore


class Sharing:
    """The prefix cache of one engine, whose lock the caller holds. `prefix_dir` None: in memory only."""

    def __init__(self, decoder: Decoder, prefix_dir: str | Path | None, *, prefix_bytes: int, hash_bits: int) -> None:
        self._decoder = decoder
        self.store = PrefixStore(prefix_dir, decoder, limit=prefix_bytes) if prefix_dir is not None else None
        self.prefixes = Prefixes(decoder.pages, slots=decoder.slots, hash_bits=hash_bits, store=self.store)

    def enter(self, sequence: Sequence, adapter: str, others: Iterable[Sequence]) -> None:
        """Let a new request share; `others` are the unfinished ones."""
        root = self.prefixes.root(sequence.request.salt, adapter)
        sequence.share_under(root, self.prefixes)
        self.prefixes.fetch(root, sequence.text, sequence.hashes)
        if self._decoder.slots is None:
            return
        for other in others:  # the first of them leaves a checkpoint where the two part
            if other.root is root and (common := _common(sequence.hashes, other.hashes)) >= LEAST_PAGES:
                sequence.marks.add(common)
                other.marks.add(common)
        known = self.prefixes.find(root, sequence.text, sequence.hashes)
        if len(known) >= len(self.prefixes.resumable(known)) + LEAST_PAGES:
            sequence.marks.add(len(known))

    def begin(self, sequence: Sequence, pages: int) -> None:
        """Start a request with the first `pages` pages, which the cache has."""
        nodes = sequence.shareable(self.prefixes)[:pages]
        self._decoder.pages.share([node.page for node in nodes])
        sequence.begin(nodes)

    def keep(self, sequence: Sequence) -> None:
        """Add full pages to the cache; where it has the same page already, use that one and release the own."""
        pool = self._decoder.pages
        while (full := sequence.full_page()) is not None:
            parent, tokens, page = full
            node = self.prefixes.add(parent, tokens, page)
            if node is None:  # a hash collision: stop sharing
                sequence.root = None
                return
            if node.page != page:
                pool.share([node.page])
                sequence.holding.replace(len(sequence.nodes), node.page)
                pool.release([page])
            else:
                self.prefixes.save(node)
            sequence.nodes.append(node)
        if sequence.holding.slots is not None and sequence.after_last_node:
            self._keep_state(sequence, sequence.holding.slots[0])

    def _keep_state(self, sequence: Sequence, slot: int) -> None:
        """Keep the state after the last page of a request as a checkpoint."""
        count, node = len(sequence.nodes), sequence.nodes[-1]
        if count in sequence.marks:
            if self.prefixes.checkpoint(node, slot):
                self.prefixes.save_checkpoint(node)
        elif count <= len(sequence.hashes):
            self.prefixes.checkpoint(node, slot, spare=True)
        elif self.prefixes.checkpoint(node, slot):  # of an answer only the last one stays
            if sequence.latest is not None:
                last, at = sequence.latest
                if at % CHECKPOINT_PAGES:
                    self.prefixes.drop_checkpoint(last)
                else:
                    self.prefixes.spare_checkpoint(last)
            sequence.latest = node, count

    def leave(self, sequence: Sequence) -> None:
        """Store the state at the last page of a request that has ended."""
        if sequence.latest is not None:
            self.prefixes.save_checkpoint(sequence.latest[0])

    def read(self, root: Node, tokens: list[int]) -> tuple[list[bytes], bytes | None]:
        """The pages in memory from which the longest known prefix of `tokens` can be resumed, and the state there."""
        text = token_bytes(tokens)
        nodes = self.prefixes.resumable(self.prefixes.find(root, text, self.prefixes.hashes(root, text)))
        state = self._decoder.read_slot(nodes[-1].slot) if nodes and self._decoder.slots is not None else None
        return [self._decoder.read_page(node.page) for node in nodes], state

    def write(self, root: Node, tokens: list[int], pages: list[bytes], state: bytes | None) -> None:
        """Put in what `read` gave, as far as there is room."""
        self.prefixes.put(root, token_bytes(tokens), pages, state, self._decoder)

    def close(self) -> None:
        """Return when everything for `prefix_dir` is on disk."""
        if self.store is not None:
            self.store.close()


def _common(first: ListOf[bytes], second: ListOf[bytes]) -> int:
    """How many hashes are the same; each depends on those before it."""
    return bisect_left(range(min(len(first), len(second))), True, key=lambda i: first[i] != second[i])
