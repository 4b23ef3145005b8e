"""What a plug is asked for stands in a protocol; nobody feels for members of our own."""

from __future__ import annotations

import ast

from tests.trees import SOURCE, nodes

from seqlake import abilities, protocols

FOREIGN = {
    "the system may lack it": """
        EDQUOT O_BINARY O_CLOEXEC O_DIRECTORY O_NOFOLLOW fork memfd_create preadv register_at_fork renameat2
        sched_getaffinity setitimer st_blocks sysconf winerror _register_atexit
    """,
    "protocols of Python and of arrays": """
        __annotations__ __array__ __arrow_c_stream__ __dlpack__ __iter__ __name__ cpu detach dtype isoformat items
        ndim shape tobytes tolist
    """,
    "pyarrow's types, arrays and datasets": "flatten scanner value_field value_type values",
    "frames of pandas and Polars": "columns dtypes get_columns iloc reset_index to_numpy",
    "NumPy": "vecdot",
    "click": "__click_params__",
    "pyiceberg's tables and types": "catalog element_field key_field",
    "deltalake's tables": "_storage_options table_uri",
    "Pillow's images": "filename mode save",
    "PyAV's containers": "metadata_errors",
    "databases' errors": "sqlite_errorcode sqlstate",
    "trimesh's geometries": "colors faces vertices visual",
    "urllib's errors": "reason",
    "torch's fetchers": "auto_collation collate_fn",
    "zlib's decoders": "unconsumed_tail",
}
"""Names that are felt for with `getattr` or `hasattr`, by whose they are."""


def probes() -> dict[str, list[str]]:
    """Constant names in `getattr` and `hasattr` -> where."""
    places: dict[str, list[str]] = {}
    for path, node in nodes():
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1):
            continue
        name = node.args[1]
        if node.func.id in {"getattr", "hasattr"} and isinstance(name, ast.Constant):
            places.setdefault(name.value, []).append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    return places


def test_only_members_of_others_are_felt_for() -> None:
    """For ours there is a protocol, an ability or `isinstance`."""
    known = set(" ".join(FOREIGN.values()).split())
    places = probes()
    assert not {name: where for name, where in places.items() if name not in known}
    assert not known - places.keys(), "no longer felt for: take it out of the list"


def test_training_follows_protocols_and_casts_nothing() -> None:
    """Where an engine needs `cast`, what it is given is not what its protocol says."""
    casts = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path, node in nodes()
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "cast"
        and path.is_relative_to(SOURCE / "training")
    ]
    assert not casts


def test_an_ability_has_a_few_members() -> None:
    kinds = [
        kind for kind in vars(abilities).values() if isinstance(kind, type) and kind.__module__ == abilities.__name__
    ]
    assert len(kinds) > 20
    for kind in kinds:
        own = [name for name in (*vars(kind), *vars(kind).get("__annotations__", {})) if not name.startswith("_")]
        assert 1 <= len(own) <= 6, kind.__name__


def test_no_protocol_stands_twice() -> None:
    """A class of a room that is called like a protocol would make two things of one word; l5kit's is public by now."""
    names = {name for module in (protocols, abilities) for name, kind in vars(module).items() if isinstance(kind, type)}
    twice = [
        f"{path.relative_to(SOURCE)}: {node.name}"
        for path, node in nodes()
        if path.name not in {"protocols.py", "abilities.py"} and isinstance(node, ast.ClassDef) and node.name in names
    ]
    assert twice == ["formats/l5kit/store.py: Store"]


def test_types_of_numbers_are_not_asked_of_pandas() -> None:
    """`to_pandas_dtype` needs pandas, which is no dependency, in pyarrow before 26: `dtype_of` stands for it."""
    asking = [path for path in sorted(SOURCE.rglob("*.py")) if ".to_pandas_dtype(" in path.read_text(encoding="utf-8")]
    assert [str(path.relative_to(SOURCE)) for path in asking] == ["spec/schema.py"]
