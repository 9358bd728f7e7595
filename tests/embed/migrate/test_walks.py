"""Random walks of writers, queries and migrators over one store agree with a model of plain dicts, move by move.

The model has the documents, the models' names and a state; it knows no SQL, no todo list and no lease. Seeds are fixed;
a failing walk names its seed and the steps it took.
"""

import random
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest
from fake_embedder import FakeEmbedder, vector_of

from weft.embed.migrate import Corpus, Migrator
from weft.embed.stores import Phase, State
from weft.embed.stores.work import Work
from weft.errors import FingerprintError, InputError, InvalidTransitionError

MODELS = {name: FakeEmbedder(name, 4 + at) for at, name in enumerate(("one", "two", "three"))}
IDS = [f"d{i}" for i in range(12)]
WORDS = ("ant", "bee", "cow", "dog", "eel")


@dataclass
class Model:
    """What a store is, told in dicts."""

    texts: dict[str, str] = field(default_factory=dict)
    served: str = "one"
    other: str | None = None  # the model beside the served one: being made, or kept for a rollback
    state: State | None = None
    skipped: dict[str, set[str]] = field(default_factory=lambda: {name: set() for name in MODELS})

    @property
    def open(self) -> bool:
        return self.state is not None

    def written(self) -> list[str]:
        beside = self.other if self.state not in (None, State.PLANNED) else None
        return [self.served] + ([beside] if beside else [])


class Walk:
    """One walk: every step is done to the store and to the model, and both must agree or refuse."""

    def __init__(self, store, seed):
        self.store, self.rng, self.model = store, random.Random(seed), Model()
        self.steps: list[str] = []
        store.adopt(MODELS["one"].fingerprint, MODELS["one"].dimension, "one")

    def step(self):
        name = self.rng.choice(
            ("put",) * 5 + ("delete",) * 3 + ("embed",) * 4 + ("complete",) * 3
            + ("plan", "plan", "start", "start", "pause", "resume", "resume", "fail", "cancel", "rollback", "finish")
            + ("skip", "retry")
        )  # fmt: skip
        self.steps.append(name)
        getattr(self, name)()
        self.agree()

    def expect(self, allowed, call):
        """Call; it must be refused exactly where the model does not allow it."""
        if allowed:
            return call()
        with pytest.raises((InvalidTransitionError, InputError)):
            call()
        return None

    def put(self, among=IDS):
        texts = {self.rng.choice(among): " ".join(self.rng.choices(WORDS, k=3)) for _ in range(2)}
        have = [self.model.served, *self.rng.choices([None, self.model.other], k=1)]
        corpus = Corpus(self.store, *(MODELS[name] for name in have if name))
        corpus.put(texts)
        self.model.texts.update(texts)
        for name in self.model.written():
            self.model.skipped[name] -= texts.keys()

    def delete(self, among=IDS):
        ids = [self.rng.choice(among) for _ in range(2)]
        assert self.store.delete(ids) == len({i for i in ids if self.model.texts.pop(i, None) is not None})
        for skipped in self.model.skipped.values():
            skipped -= set(ids)

    def plan(self):
        target = MODELS[self.rng.choice(list(MODELS))]
        allowed = not self.model.open and target.model != self.model.served
        self.expect(allowed, lambda: self.store.migrations.plan(target.fingerprint, target.dimension, target.model))
        if allowed:
            self.model.other, self.model.state = target.model, State.PLANNED

    def move(self, call, starts, end):
        allowed = self.model.state in starts
        self.expect(allowed, call)
        if allowed:
            self.model.state = end
        return allowed

    def start(self):
        self.move(lambda: self.store.migrations.start("walk"), (State.PLANNED,), State.RUNNING)

    def pause(self):
        self.move(self.store.migrations.pause, (State.RUNNING,), State.PAUSED)

    def resume(self):
        starts = (State.PAUSED, State.FAILED, State.RUNNING)
        self.move(lambda: self.store.migrations.resume("walk"), starts, State.RUNNING)

    def fail(self):
        self.move(lambda: self.store.migrations.fail("walk", "why"), (State.RUNNING,), State.FAILED)

    def cancel(self):
        starts = (State.PLANNED, State.RUNNING, State.PAUSED, State.FAILED)
        if self.move(self.store.migrations.cancel, starts, None):
            self.drop(self.model.other)

    def drop(self, name):
        """Only the served vectors are left."""
        self.model.other = None
        self.model.skipped[name].clear()

    def skip(self):
        """Leave out a document that waits."""
        if self.model.state not in (State.RUNNING, State.PAUSED, State.FAILED) or not self.waiting(self.model.other):
            return
        with self.store.transaction("read") as session:
            ((name,),) = session.rows("SELECT id FROM todo ORDER BY id DESC LIMIT 1")
        self.store.migrations.skip(name)
        self.model.skipped[self.model.other].add(name)

    def retry(self):
        """Embed what was left out, of the migration or of what is served, whatever the state."""
        name = self.rng.choice(self.model.written())
        skipped = self.model.skipped[name]
        if skipped:
            assert Migrator(self.store, MODELS[name], batch=1).retry(ids=skipped).processed == len(skipped)
            skipped.clear()

    def embed(self):
        """A batch of the migrator's, with a change between reading and committing it, now and then."""
        if self.model.state is not State.RUNNING:
            return
        from weft.embed.migrate.embedding import Embedding, waited

        embedder = MODELS[self.model.other]
        work = Work(self.store, embedder.fingerprint, "walk", 30)
        batch = work.take(4)
        if batch and self.rng.random() < 0.5:
            self.rng.choice((self.put, self.delete))([document.id for document in batch])
        running = Embedding(embedder, 1)
        assert work.commit(waited(running.start(batch), 10, lambda: None), 0.0) is not None
        running.close()

    def waiting(self, name):
        """How many documents have no vector of a model."""
        with self.store.transaction("read") as session:
            number = session.row("SELECT number FROM generations WHERE fingerprint = ?", MODELS[name].fingerprint)
            return session.row("SELECT count(*) FROM todo WHERE generation = ?", number[0])[0]

    def complete(self):
        if self.model.state is not State.RUNNING:
            self.expect(False, lambda: self.store.migrations.complete("walk"))
            return
        waits = self.waiting(self.model.other)
        done = self.store.migrations.complete("walk")
        assert (done is None) == bool(waits)
        if done is not None:
            self.model.served, self.model.other = self.model.other, self.model.served
            self.model.state = State.COMPLETED

    def rollback(self):
        if self.model.state is not State.COMPLETED:
            self.expect(False, self.store.migrations.rollback)
            return
        if self.waiting(self.model.other):
            self.expect(False, self.store.migrations.rollback)
        Migrator(self.store, MODELS[self.model.other], batch=3).rollback()
        self.model.served, rolled_back, self.model.state = self.model.other, self.model.served, None
        self.drop(rolled_back)

    def finish(self):
        if self.expect(self.model.state is State.COMPLETED, lambda: self.store.migrations.finish(now=True)):
            self.model.state = None
            self.drop(self.model.other)

    def agree(self):
        """The store is what the model says."""
        model, route = self.model, self.store.route()
        found = self.store.migrations.open()
        assert (None if found is None else found.state) == model.state
        phases = {None: Phase.STABLE, State.PLANNED: Phase.STABLE, State.COMPLETED: Phase.ROLLBACK_WINDOW}
        assert route.phase is phases.get(model.state, Phase.MIGRATING)
        assert route.query == MODELS[model.served].fingerprint
        assert list(route.write) == [MODELS[name].fingerprint for name in model.written()]
        assert self.store.count() == len(model.texts)
        for name in model.written():
            embedder = MODELS[name]
            rows = {i: vector for i, _, vector in self.store.vectors(embedder.fingerprint)}
            assert len(rows) + self.waiting(name) + len(model.skipped[name]) == len(model.texts)
            assert not rows.keys() & model.skipped[name]
            for i, vector in rows.items():
                assert vector.tobytes() == vector_of(name, model.texts[i], embedder.dimension).tobytes()
        assert self.waiting(model.served) == 0


@pytest.mark.parametrize("seed", range(6))
def test_a_walk_agrees_with_its_model(store, seed):
    walk = Walk(store, seed)
    for _ in range(150):
        try:
            walk.step()
        except BaseException:
            print(f"seed {seed}, steps {' '.join(walk.steps)}")
            raise
    assert len({*walk.steps}) == 14


def test_queries_never_see_mixed_vectors(opened):
    """Queries and writes go on in threads while models change five times, some of them back.

    Every answer is of one model: its scores are those that model's vectors give for the texts it returned. A document
    whose text never changes is always found.
    """
    base = opened()
    base.adopt(MODELS["one"].fingerprint, MODELS["one"].dimension, "one")
    Corpus(base, MODELS["one"]).put({f"d{i:03}": f"text {i}" for i in range(120)})
    stop, faults, seen = threading.Event(), [], set()

    def watched(work):
        def loop():
            try:
                rng = random.Random(work.__name__)
                corpus = Corpus(opened(), *MODELS.values())
                while not stop.is_set():
                    work(corpus, rng)
            except BaseException as error:
                faults.append(error)
                stop.set()

        return threading.Thread(target=loop)

    def ask(corpus, rng):
        text = f"text {rng.randrange(60)}"  # of the half that is never written again
        name, hits = corpus.search(text, 3)
        model = name.removeprefix("fake:")
        query = vector_of(model, text, MODELS[model].dimension)
        assert hits[0].text == text, (name, hits)
        for hit in hits:
            vector = vector_of(model, hit.text, MODELS[model].dimension)
            cosine = float(vector @ query / np.linalg.norm(vector) / np.linalg.norm(query))
            assert abs(cosine - hit.score) < 1e-4, (name, hit)
        seen.add(name)

    def change(corpus, rng):
        at = rng.randrange(60, 140)
        corpus.put({f"d{at:03}": f"again {rng.random()}"}) if rng.random() < 0.8 else corpus.delete([f"d{at:03}"])

    threads = [watched(work) for work in (ask, change)]
    for thread in threads:
        thread.start()
    try:
        for number, name in enumerate(("two", "three", "one", "two", "three")):
            before = base.route().query.removeprefix("fake:")
            assert Migrator(base, MODELS[name], batch=10).run().state is State.COMPLETED
            if number % 2:
                Migrator(base, MODELS[before], batch=10).rollback()
            else:
                base.migrations.finish(now=True)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if faults:
        raise faults[0]
    assert len(seen) >= 2


def test_a_query_of_the_old_model_is_refused_after_the_cut_over(store):
    old, new = MODELS["one"], MODELS["two"]
    store.adopt(old.fingerprint, old.dimension)
    Corpus(store, old).put({"a": "ant"})
    Migrator(store, new).run()
    with pytest.raises(FingerprintError, match="serves fake:two"):
        store.search(vector_of("one", "ant", 4), fingerprint=old.fingerprint)
