"""What is shipped of others is what they published, and the page keeps the forms that an export relies on."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
import zipfile
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

import seqlake

STATIC = Path(seqlake.__file__).parent / "viewer" / "static"
VENDOR = json.loads((STATIC / "vendor" / "vendor.json").read_text(encoding="utf-8"))["packages"]
MODULES = sorted(STATIC.glob("*.js"))


@pytest.mark.parametrize("package", VENDOR, ids=[one["name"] for one in VENDOR])
def test_vendored_files_are_the_recorded_ones(package: dict[str, Any]) -> None:
    for file in package["files"]:
        assert hashlib.sha256((STATIC / "vendor" / file["file"]).read_bytes()).hexdigest() == file["sha256"]
    assert package["licence_file"] in [file["file"] for file in package["files"]]


def test_nothing_else_is_vendored() -> None:
    named = {file["file"] for package in VENDOR for file in package["files"]} | {"vendor.json"}
    assert {path.name for path in (STATIC / "vendor").iterdir()} == named


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
@pytest.mark.parametrize("package", VENDOR, ids=[one["name"] for one in VENDOR])
def test_what_was_published_has_the_same_bytes(package: dict[str, Any], tmp_path: Path) -> None:
    command = [
        "npm",
        "pack",
        f"{package['name']}@{package['version']}",
        "--silent",
        "--pack-destination",
        str(tmp_path),
    ]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    packed = next(tmp_path.glob("*.tgz")).read_bytes()
    assert f"sha512-{b64encode(hashlib.sha512(packed).digest()).decode()}" == package["integrity"]
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for file in package["files"]:
            member = tar.extractfile(f"package/{file['source']}")
            assert member
            assert member.read() == (STATIC / "vendor" / file["file"]).read_bytes()


def test_the_wheel_grows_by_less_than_300_kilobytes() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path in STATIC.rglob("*"):
            if path.is_file():
                wheel.write(path)
    assert len(packed.getvalue()) < 300_000


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_modules_keep_to_the_forms_that_an_export_joins(module: Path) -> None:
    """One classic script is made of them for `file://`, by their import and export statements."""
    text = module.read_text(encoding="utf-8")
    imports = re.findall(r'^import (?:\{[^}]*\}|\* as \w+) from "\./([\w/.]+\.js)";$', text, re.MULTILINE)
    assert len(imports) == len(re.findall(r"^\s*import\b", text, re.MULTILINE))
    assert all((STATIC / name).is_file() for name in imports)
    exports = re.findall(r"^export (?:async function|function|const|class) \w+", text, re.MULTILINE)
    assert len(exports) == len(re.findall(r"^\s*export\b", text, re.MULTILINE))
    assert "import(" not in text
    assert "import.meta" not in text


def test_modules_import_each_other_one_way() -> None:
    graph = {
        path.name: re.findall(
            r'^import [^;]*? from "\./([\w/.]+\.js)";', path.read_text(encoding="utf-8"), re.MULTILINE
        )
        for path in MODULES
    }
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"a circle: {' > '.join([*above, name])}"
        if name not in done:
            for other in graph[name]:
                visit(other, (*above, name))
            done.add(name)

    for name in graph:
        visit(name, ())
    assert "main.js" in done


def test_the_page_names_no_other_origin() -> None:
    allowed = ("http://www.w3.org/2000/svg",)
    for path in [*MODULES, STATIC / "app.css", STATIC / "index.html", STATIC / "icon.svg"]:
        text = path.read_text(encoding="utf-8")
        assert not [url for url in re.findall(r"https?://[^\s\"'`)]+", text) if not url.startswith(allowed)], path.name
        assert "innerHTML" not in text
        assert "dangerouslySetInnerHTML" not in text
