"""Values that receipts hold, as Hypothesis makes them."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from hypothesis import strategies as st

PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.dates(),
    st.datetimes(timezones=st.sampled_from([None, UTC])),
    st.timedeltas(),
    st.decimals(allow_nan=False),
)


def nested(*more: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Plain values and some `more`, within lists, tuples and dictionaries."""
    return st.recursive(
        st.one_of(PLAIN, *more),
        lambda inner: st.one_of(
            st.lists(inner),
            st.lists(inner).map(tuple),
            st.dictionaries(st.one_of(st.text(), st.integers(), st.just("$")), inner),
        ),
        max_leaves=12,
    )
