"""Haystack takes the classes as components: in a pipeline, and written to YAML and read again."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import weft

pytest.importorskip("haystack", reason="Haystack is not installed; pip install haystack-ai")
from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.document_stores.in_memory import InMemoryDocumentStore

from weft.integrations.haystack import WeftDocumentEmbedder, WeftTextEmbedder

TEXTS = ["the cat sat", "one two three", "the quick brown fox"]


def test_a_pipeline_finds_what_is_near_after_a_trip_through_yaml(
    tiny_folder: Path, tiny_embedder: weft.Embedder
) -> None:
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    made = WeftDocumentEmbedder(str(tiny_folder)).run([Document(content=text) for text in TEXTS])
    assert made["meta"]["fingerprint"] == str(tiny_embedder.fingerprint)
    store.write_documents(made["documents"])
    pipeline = Pipeline()
    pipeline.add_component("embedder", WeftTextEmbedder(str(tiny_folder), {"threads": 1}))
    pipeline = Pipeline.loads(pipeline.dumps(), allowed_modules=["weft.integrations.haystack"])
    pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=3))
    pipeline.connect("embedder.embedding", "retriever.query_embedding")
    found = pipeline.run({"embedder": {"text": "one two three"}})["retriever"]["documents"]
    assert [one.content for one in found] == [TEXTS[r.index] for r in tiny_embedder.rank("one two three", TEXTS)]


def test_documents_are_copied_and_may_have_fields_embedded(tiny_folder: Path, tiny_embedder: weft.Embedder) -> None:
    given = [Document(content="the cat", meta={"title": "one"}), Document(content="a")]
    component = WeftDocumentEmbedder(str(tiny_folder), meta_fields_to_embed=["title"], separator=" ")
    component.warm_up()
    made = component.run(given)["documents"]
    assert given[0].embedding is None and [one.content for one in made] == ["the cat", "a"]
    expected = tiny_embedder.encode_document(["one the cat", "a"])
    assert np.allclose([one.embedding for one in made], expected)
    assert component.run([])["documents"] == []
    for wrong in ("text", [1]):
        with pytest.raises(TypeError):
            component.run(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        WeftTextEmbedder(str(tiny_folder)).run(given)  # type: ignore[arg-type]


def test_a_load_that_failed_is_remembered(tmp_path: Path) -> None:
    component = WeftTextEmbedder(str(tmp_path / "none"))
    errors = []
    for _ in range(2):
        with pytest.raises(weft.WeftError) as caught:
            component.warm_up()
        errors.append(caught.value)
    assert errors[0] is errors[1]


@pytest.mark.parametrize("kind", [WeftTextEmbedder, WeftDocumentEmbedder])
def test_what_was_loaded_is_written_with_its_fingerprint_and_no_other_model_is_read(
    tiny_folder: Path, tmp_path: Path, kind: type
) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    component = kind(str(folder), compute="int8")
    assert component.to_dict()["init_parameters"]["fingerprint"] is None  # nobody has loaded it
    component.warm_up()
    pipeline = Pipeline()
    pipeline.add_component("embedder", component)
    written = pipeline.dumps()
    fingerprint = str(weft.Embedder(str(folder), compute="int8").fingerprint)
    assert fingerprint in written
    again = Pipeline.loads(written, allowed_modules=["weft.integrations.haystack"])
    assert fingerprint in again.dumps()  # though it is not loaded yet
    again.warm_up()
    pooling = folder / "1_Pooling" / "config.json"
    config = json.loads(pooling.read_text())
    config.update(pooling_mode_cls_token=False, pooling_mode_mean_tokens=True)
    pooling.write_text(json.dumps(config))
    changed = Pipeline.loads(written, allowed_modules=["weft.integrations.haystack"])
    with pytest.raises(weft.errors.FingerprintError, match="embed the documents again"):
        changed.get_component("embedder").warm_up()


def test_an_embedder_may_be_given_and_options_as_keywords(tiny_folder: Path, tiny_embedder: weft.Embedder) -> None:
    given = WeftTextEmbedder(embedder=tiny_embedder)
    assert given.run("a cat")["embedding"] == tiny_embedder.encode_query("a cat").tolist()
    assert given.run("a cat")["meta"]["fingerprint"] == str(tiny_embedder.fingerprint)
    documents = WeftDocumentEmbedder(embedder=tiny_embedder).run([Document(content="the cat")])["documents"]
    assert documents[0].embedding == tiny_embedder.encode_document("the cat").tolist()
    with pytest.raises(weft.WeftError, match="cannot be written down"):
        given.to_dict()
    rounded = WeftDocumentEmbedder(str(tiny_folder), compute="int8", separator=" ")
    written = rounded.to_dict()["init_parameters"]
    assert written["options"] == {"compute": "int8"} and written["separator"] == " "
    assert WeftDocumentEmbedder.from_dict(rounded.to_dict()).options == {"compute": "int8"}
    with pytest.raises(weft.WeftError, match="no option is called 'device'"):
        WeftTextEmbedder(str(tiny_folder), device="cpu")


def test_a_document_without_content_may_have_fields_and_one_without_both_is_told_first(tiny_folder: Path) -> None:
    component = WeftDocumentEmbedder(str(tiny_folder), meta_fields_to_embed=["title"])
    assert component.run([Document(meta={"title": "one"})])["documents"][0].embedding
    with pytest.raises(weft.WeftError, match="has no content"):
        WeftDocumentEmbedder("no-such-model").run([Document(content="a"), Document()])
