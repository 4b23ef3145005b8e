"""Rooms and modules are named after what they hold; the front door is what it says it is."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.trees import SOURCE, nodes

import seqlake

ROOT = Path(__file__).parents[2]
FORBIDDEN = {"utils", "helpers", "common", "misc", "core", "base", "manager"}


def test_no_module_is_named_after_nothing() -> None:
    assert not [p for p in SOURCE.rglob("*.py") if p.stem in FORBIDDEN or p.parent.name in FORBIDDEN]


@pytest.mark.parametrize("name", seqlake.__all__)
def test_public_name_resolves_and_is_documented(name: str) -> None:
    value = getattr(seqlake, name)
    assert value.__doc__
    assert value.__doc__.strip()


def test_public_names_are_sorted_and_all_there_is() -> None:
    assert list(seqlake.__all__) == sorted(seqlake.__all__)
    assert list(seqlake._HOME) == sorted(seqlake._HOME)
    assert set(dir(seqlake)) == set(seqlake.__all__)
    with pytest.raises(AttributeError):
        _ = seqlake.nothing_of_that_name


def test_the_stub_says_what_the_front_door_does() -> None:
    """Editors and type checkers read `__init__.pyi`; `import x as x` is what Jedi takes for public there."""
    tree = ast.parse((SOURCE / "__init__.pyi").read_text())
    homes, modules, listed = {}, [], []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            assert all(one.asname == one.name for one in node.names), ast.unparse(node)
            if node.module == "seqlake":
                modules += [one.name for one in node.names]
            else:
                homes |= {one.name: (node.module or "").removeprefix("seqlake.") for one in node.names}
        elif isinstance(node, ast.Assign):
            listed = ast.literal_eval(node.value)
    assert homes == seqlake._HOME
    assert modules == list(seqlake._MODULES)
    assert listed == seqlake.__all__


def test_editors_complete_the_front_door() -> None:
    jedi = pytest.importorskip("jedi")
    names = {one.name for one in jedi.Script("import seqlake as sl\nsl.").complete()}
    assert not set(seqlake.__all__) - names
    (opening,) = jedi.Script("import seqlake as sl\nsl.open(").get_signatures()
    assert opening.to_string().startswith("open(location: ")
    assert opening.to_string().endswith("-> Dataset")
    (loader,) = jedi.Script("import seqlake as sl\nsl.Loader(").get_signatures()
    assert {"window", "batch_size", "shuffle", "seed"} <= {one.name for one in loader.params}
    given = {one.name for one in jedi.Script("import seqlake as sl\nsl.open('x').").complete()}
    assert {"where", "sql", "writer", "add_column", "validate"} <= given
    called = [name for name in seqlake.__all__ if callable(getattr(seqlake, name))]
    script = jedi.Script("import seqlake as sl\n" + "".join(f"sl.{name}()\n" for name in called))
    columns = [len(f"sl.{name}(") for name in called]
    unknown = [
        name
        for line, (name, column) in enumerate(zip(called, columns, strict=True), 2)
        if not script.get_signatures(line, column)
    ]
    assert not unknown


def test_no_module_imports_from_the_front_door() -> None:
    """Rooms import each other's modules, so that the front door may import any of them."""

    def guilty(node: ast.AST) -> bool:
        if isinstance(node, ast.Import):
            return any(one.name == "seqlake" for one in node.names)
        if not (isinstance(node, ast.ImportFrom) and node.module == "seqlake" and node.level == 0):
            return False
        return any(not (SOURCE / f"{one.name}.py").exists() and not (SOURCE / one.name).is_dir() for one in node.names)

    assert not [path.relative_to(SOURCE) for path, node in nodes() if guilty(node)]


def test_importing_seqlake_loads_nothing_heavy() -> None:
    heavy = ["numpy", "pyarrow", "duckdb", "torch", "av", "obstore", "pandas", "polars", "click"]
    code = f"import sys, seqlake; print([m for m in {heavy!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"


def test_the_command_loads_nothing_heavy_for_help() -> None:
    heavy = ["numpy", "pyarrow", "duckdb", "torch", "av", "obstore", "pandas", "polars"]
    code = (
        "import sys\nfrom seqlake.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip().splitlines()[-1] == "[]"


def test_suppressions_are_explained() -> None:
    """A `noqa` or `type: ignore` names its code, and a `noqa` its reason."""
    bare = []
    for path in [*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"#\s*noqa(?!: [A-Z]+\d+(?:, ?[A-Z]+\d+)* - \S)", line) and "re.search" not in line:
                bare.append(f"{path.relative_to(ROOT)}:{number}")
            if re.search(r"#\s*type: ignore(?!\[)", line) and "re.search" not in line:
                bare.append(f"{path.relative_to(ROOT)}:{number}")
    assert not bare


def test_opening_a_folder_imports_no_lake(tmp_path: Path) -> None:
    code = (
        "import sys, seqlake as sl; "
        f"place = {str(tmp_path / 'arm')!r}; sl.create(place, {{'action': sl.Trajectory(dim=2)}}); sl.open(place); "
        "print([m for m in sys.modules if '_lakes' in m or m.endswith('.engine')])"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"
