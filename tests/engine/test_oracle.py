"""The oracle: KV is a pure function of prefix, identity, layer and head."""

from __future__ import annotations

import numpy as np

from kvconform.engine.oracle import poison, stream, unpoison, words_of
from kvconform.scenario.identity import Identity


def test_kv_follows_from_the_prefix() -> None:
    a, b = stream((5, 6, 7, 8), Identity(), 0), stream((5, 6, 9, 8), Identity(), 0)
    assert np.array_equal(a.words(0, 0)[:2], b.words(0, 0)[:2])
    assert not (a.words(0, 0)[2:] == b.words(0, 0)[2:]).any()  # also where the token is the same


def test_kv_follows_from_identity_layer_and_head() -> None:
    plain, salted = stream((5, 6), Identity(), 0), stream((5, 6), Identity("a"), 0)
    assert not (plain.words(0, 0) == salted.words(0, 0)).any()
    assert not (plain.words(0, 0) == plain.words(1, 0)).any()
    assert not (plain.words(0, 0) == plain.words(0, 1)).any()


def test_words_are_finite_normal_floats() -> None:
    digests = np.arange(1, 2000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    floats = words_of(digests, 3, 1).view(np.float32)
    assert np.isfinite(floats).all()
    assert (np.abs(floats) >= np.finfo(np.float32).tiny).all()


def test_output_is_known_in_advance() -> None:
    whole = stream((5, 6, 7), Identity(), 4)
    again = stream(tuple(whole.tokens[:5]), Identity(), 2)
    assert whole.tokens == again.tokens
    assert whole.next_token(3) == whole.tokens[3]


def test_poison_tells_where_it_came_from() -> None:
    (word,) = poison(2, [77], [5])
    assert unpoison(int(word)) == (2, 77, 5)
    assert unpoison(int(stream((5, 6), Identity(), 0).words(0, 0)[0, 0])) is None


def test_kv_of_an_image_differs_from_its_place_on() -> None:
    plain, image = (stream((5, 6, 7), i, 0) for i in (Identity(), Identity(media="x", at=1)))
    same = (plain.words(0, 0) == image.words(0, 0)).all(axis=1)
    assert same.tolist() == [True, False, False]


def test_embeddings_are_zeros_to_vllm_and_differ_all_the_same() -> None:
    one, two = (stream((5, token), Identity(embeds="x"), 1) for token in (6, 7))
    assert one.tokens[:2] == two.tokens[:2] == [0, 0]
    assert not (one.words(0, 0)[1] == two.words(0, 0)[1]).any()
