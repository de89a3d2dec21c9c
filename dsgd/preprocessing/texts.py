"""Texts as hashed counts of their words and n-grams, of length one.

The rows are those of scikit-learn's `HashingVectorizer` with its defaults: words of two and more letters, digits and
``_``, in lower case; MurmurHash3 of each n-gram says its feature and sign; rows are divided by their Euclidean norm.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import scipy.sparse as sp

from dsgd.inputs.tables import Coded, utf8
from dsgd.preprocessing.kernels import count_words, hash_documents

_NOT_OF_WORDS: Final = re.compile(r"[^\w]+")


def hashed_texts(texts: Coded, n_features: int, ngram_range: tuple[int, int], dtype: Any) -> Any:
    """Return hashed n-grams of texts."""
    # What is a letter beyond ASCII, and its lower case, Python says; compiled code takes all of it for letters then.
    data, offsets = utf8([_NOT_OF_WORDS.sub(" ", str(text).lower()) for text in texts.listed()])
    n = len(offsets) - 1
    n_words = np.empty(n, np.int64)
    count_words(data, offsets, n_words)
    # There are none longer than the longest text.
    high = min(ngram_range[1], int(n_words.max(initial=0)))
    low = min(ngram_range[0], high + 1)
    n_grams = sum(np.maximum(n_words - k + 1, 0) for k in range(low, high + 1))
    n_entries = int(np.sum(n_grams))
    longest = int(np.diff(offsets).max(initial=0))
    words = np.empty(longest + 2, np.uint8), np.empty(longest + 1, np.int64), np.empty(longest + 1, np.int64)
    indptr, indices, values = np.empty(n + 1, np.int64), np.empty(n_entries, np.int32), np.empty(n_entries)
    hash_documents(data, offsets, (low, high), n_features, words, indptr, indices, values)
    rows = sp.csr_array((values, indices, indptr), shape=(n, n_features))
    rows.sum_duplicates()
    norms = np.sqrt(rows.multiply(rows).sum(axis=1))
    rows.data /= np.repeat(np.where(norms == 0, 1.0, norms), np.diff(rows.indptr))
    if (texts.codes < 0).any():
        rows = sp.vstack([rows, sp.csr_array((1, n_features))], format="csr")
    found = rows[texts.codes] if n else sp.csr_array((len(texts.codes), n_features))
    return found.astype(dtype)
