"""The page pool: which sequence holds which pages of the KV cache. One table serves all layers."""

from collections.abc import Callable, Iterable

from weft.errors import InputError

PAGE_TOKENS = 32  # csrc/core/state.h: kPage


def pages_for(tokens: int) -> int:
    """Pages that `tokens` tokens occupy."""
    return -(-tokens // PAGE_TOKENS)


class PagePool:
    """`count` pages with reference counts, so that sequences may share a prefix page by page.

    A page without users is free. One that was marked by `keep` holds a cached prefix: it is taken only when no other
    page is free, least recently released first, and the callback given to `keep` is called.
    """

    what = "pages"

    def __init__(self, count: int) -> None:
        self.count = count
        self._empty = list(range(count - 1, -1, -1))
        self._kept: dict[int, None] = {}  # without users, marked; the one given back first comes first
        self._marked: dict[int, Callable[[int], None]] = {}  # what to call when the page is taken
        self._users = [0] * count

    @property
    def free_count(self) -> int:
        """Pages without users, those that are kept among them."""
        return len(self._empty) + len(self._kept)

    @property
    def kept_count(self) -> int:
        return len(self._kept)

    def users(self, page: int) -> int:
        return self._users[page]

    def take(self, count: int) -> list[int]:
        """`count` pages with one user each; all or nothing."""
        if count > self.free_count:
            raise InputError(
                self.what, f"{count} {self.what} wanted, {self.free_count} of {self.count} free; wait or cancel"
            )
        taken = [self._take_one() for _ in range(count)]
        for page in taken:
            self._users[page] = 1
        return taken

    def _take_one(self) -> int:
        if self._empty:
            return self._empty.pop()
        page = self._oldest_kept()
        on_reuse = self._marked[page]
        self.drop(page)
        on_reuse(page)
        return self._empty.pop()

    def _oldest_kept(self) -> int:
        return next(iter(self._kept))

    def share(self, pages: Iterable[int]) -> None:
        """One more user for each of `pages`, which must be in use or kept."""
        for page in pages:
            assert self._users[page] > 0 or page in self._kept, f"page {page} is free"
            self._kept.pop(page, None)
            self._users[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One user less for each of `pages`, last page first: the end of a text is evicted before its start."""
        for page in reversed(list(pages)):
            assert self._users[page] > 0, f"page {page} is free already"
            self._users[page] -= 1
            if self._users[page]:
                continue
            if page in self._marked:
                self._kept[page] = None
            else:
                self._empty.append(page)

    def keep(self, page: int, on_reuse: Callable[[int], None]) -> None:
        """Keep what `page` holds when its users have gone; `on_reuse` is called when it is taken for something else."""
        assert self._users[page] > 0, f"page {page} is free"
        self._marked[page] = on_reuse

    def drop(self, page: int) -> None:
        """Stop keeping `page`."""
        self._marked.pop(page, None)
        if page in self._kept:
            del self._kept[page]
            self._empty.append(page)
