"""Addresses as DuckDB spells them, and what is wrong with those that are not."""

from __future__ import annotations

import pytest

from seqlake.tables import ducklake
from seqlake.tables.ducklake.address import parse


def test_the_three_kinds_of_catalog():
    file = parse("ducklake:/data/lake.ducklake?table=episodes")
    assert (file.kind, file.target, file.schema, file.table) == ("duckdb", "/data/lake.ducklake", "main", "episodes")
    assert file.default_data_path == "/data/lake.ducklake.files"
    sqlite = parse("ducklake:sqlite:/data/lake.sqlite?table=robots.episodes&data_path=s3://bucket/a%26b/")
    assert (sqlite.kind, sqlite.schema, sqlite.data_path) == ("sqlite", "robots", "s3://bucket/a&b")
    server = parse("ducklake:postgres:dbname=lake host=db?table=e&metadata_schema=x")
    assert (server.kind, server.target, server.metadata_schema) == ("postgres", "dbname=lake host=db", "x")
    uri = parse("ducklake:postgresql:postgresql://me@db/lake?sslmode=require?table=e")
    assert uri.target == "postgresql://me@db/lake?sslmode=require"
    assert parse("ducklake:lake.ducklake?table=e").target.endswith("/lake.ducklake")


def test_what_is_no_address_says_what_would_be():
    for location in ("ducklake:lake.ducklake", "ducklake:?table=e", "ducklake:lake.ducklake?table="):
        with pytest.raises(ValueError, match=r"ducklake:CATALOG\?table=NAME"):
            parse(location)
    with pytest.raises(ValueError, match="sqlite: or postgres:, found mysql"):
        parse("ducklake:mysql:db=lake?table=e")
    with pytest.raises(ValueError, match=r"ducklake:postgres:dbname"):
        parse("ducklake:dbname=lake?table=e")
    with pytest.raises(ValueError, match="found 'tabel'"):
        parse("ducklake:lake.ducklake?tabel=e")


def test_a_password_is_refused_and_never_shown():
    for target in ("dbname=lake password=hunter2", "postgresql://me:hunter2@db/lake", "password='hunter2 x' host=db"):
        with pytest.raises(ValueError, match="PGPASSWORD") as raised:
            parse(f"ducklake:postgres:{target}?table=e")
        assert "hunter2" not in str(raised.value)


def test_only_such_addresses_match():
    assert ducklake.matches("ducklake:lake.ducklake?table=e")
    assert not ducklake.matches("lake.ducklake")
    assert not ducklake.matches(object())


def test_no_password_is_shown_beside_a_wrong_option():
    with pytest.raises(ValueError, match="found 'tabel'") as raised:
        parse("ducklake:postgres:dbname=lake password=hunter2?tabel=e")
    assert "hunter2" not in str(raised.value)
