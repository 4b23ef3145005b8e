"""Lists of every form around other values: compared with Python's own lists."""

from __future__ import annotations

from itertools import product

import pyarrow as pa
import pytest

from seqlake.dataset.changing.units import _Linear, _turned
from seqlake.dataset.writing.conforming import conform
from seqlake.shards.cells import revalued, without_list_views

FORMS = {
    "list": pa.list_,
    "large": pa.large_list,
    "view": pa.list_view,
    "large view": pa.large_list_view,
    "fixed": lambda kind: pa.list_(kind, 2),
}
ROWS = [None, [[9, 8], None], [[1, 2], None, [3, None], [5, 6]], [], [[7, 7], [0, 1]], None, [[4, 4]]]
NESTED = [
    pytest.param(outer, inner, id=f"{outer} of {inner}") for outer, inner in product(FORMS, FORMS) if outer != "fixed"
]


def array(outer: str, inner: str) -> pa.Array:
    """Rows and steps that are null among others, the first of them hidden by a slice, and rows that hide values."""
    kind = FORMS[outer](FORMS[inner](pa.float64()))
    hiding = pa.array([[[6, 6]], *ROWS], pa.list_(FORMS[inner](pa.float64())))
    if outer == "list":  # a null cell with values below it, which Arrow allows
        valid = pa.array([row is None for row in [[], *ROWS]])
        hiding = pa.ListArray.from_arrays(hiding.offsets, hiding.values, type=kind, mask=valid)
    return (hiding if outer == "list" else pa.array([[[6, 6]], *ROWS], kind)).slice(1)


def doubled(cells: object) -> object:
    return [doubled(one) for one in cells] if isinstance(cells, list) else cells if cells is None else 2 * cells


@pytest.mark.sampled
@pytest.mark.parametrize(("outer", "inner"), NESTED)
def test_lists_around_other_values(outer: str, inner: str) -> None:
    cells = array(outer, inner)
    assert cells.to_pylist() == ROWS
    there = cells.flatten().flatten()
    new = revalued(cells, pa.array([doubled(one) for one in there.to_pylist()], pa.float32()))
    new.validate(full=True)
    assert new.to_pylist() == doubled(ROWS)
    assert revalued(cells, there).to_pylist() == ROWS


@pytest.mark.sampled
@pytest.mark.parametrize(("outer", "inner"), NESTED)
def test_units_of_lists(outer: str, inner: str) -> None:
    turned = _turned(array(outer, inner), [_Linear(2.0), _Linear(2.0)], "action")
    turned.validate(full=True)
    assert turned.to_pylist() == doubled(ROWS)


@pytest.mark.sampled
@pytest.mark.parametrize("wanted", ["list", "large", "fixed"])
@pytest.mark.parametrize(("outer", "inner"), NESTED)
def test_lists_in_another_form(outer: str, inner: str, wanted: str) -> None:
    for form in ("list", "large"):
        expected = FORMS[form](FORMS[wanted](pa.float32()))
        formed = conform(array(outer, inner), expected, where="column 'action'")
        formed.validate(full=True)
        assert formed.type == expected
        assert formed.to_pylist() == ROWS
    plain = without_list_views(array(outer, inner))
    plain.validate(full=True)
    assert plain.to_pylist() == ROWS
