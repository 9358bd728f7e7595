"""The page pool: which pages of the key/value state are whose. One table serves all layers."""

from weft.errors import InputError

PAGE_TOKENS = 32  # csrc/core/state.h: kPage


def pages_for(tokens: int) -> int:
    """Pages that `tokens` tokens occupy."""
    return -(-tokens // PAGE_TOKENS)


class PagePool:
    """`count` pages with reference counts, so that sequences may share a prefix page by page."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._users = [0] * count

    @property
    def free_count(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` pages with one user each; all or nothing."""
        if count > len(self._free):
            raise InputError(f"[pages] {count} pages wanted, {len(self._free)} of {self.count} free; wait or cancel")
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._users[page] = 1
        return taken

    def share(self, pages: list[int]) -> None:
        """One more user for each of `pages`, which must be in use."""
        for page in pages:
            assert self._users[page] > 0, f"page {page} is free"
            self._users[page] += 1

    def release(self, pages: list[int]) -> None:
        """One user less for each of `pages`; a page without users is free again."""
        for page in pages:
            assert self._users[page] > 0, f"page {page} is free already"
            self._users[page] -= 1
            if not self._users[page]:
                self._free.append(page)
