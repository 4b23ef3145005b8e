"""Names in a Unity Catalog: where a table lies, and the keys that the catalog lends for it.

Two requests of the catalog's open REST interface. deltalake can load such a table but does not say where it lies, which
is needed to read shards and write beside them.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from seqlake.errors import DatasetNotFoundError, ReadOnlyError

if TYPE_CHECKING:
    from collections.abc import Mapping

_API = "/api/2.1/unity-catalog"
_TIMEOUT = 30.0
_ADDRESS = ("unity_workspace_url", "databricks_workspace_url", "databricks_host")
_TOKEN = ("unity_access_token", "databricks_access_token", "databricks_token")
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def resolve(address: str, /, *, storage: Mapping[str, str] | None = None) -> tuple[str, dict[str, str]]:
    """Where a table of a Unity Catalog lies, and the storage options that open it.

    Args:
        address: As in `uc://catalog.schema.table`.
        storage: `databricks_workspace_url` and `databricks_access_token`, by default from the variables of these
            names in capitals; other options go on to the store.

    Raises:
        DatasetNotFoundError: The catalog does not know the table, or there is none to ask.
        ReadOnlyError: It refuses.

    Example:
        ```python
        location, options = resolve("uc://robots.lab.episodes")
        ```
    """
    given = {name.lower(): value for name, value in (storage or {}).items()}
    catalog, token = _first(given, _ADDRESS), _first(given, _TOKEN)
    if not catalog or not token:
        raise DatasetNotFoundError(
            f"{address}: no Unity Catalog is configured.",
            path=address,
            hint="Set DATABRICKS_WORKSPACE_URL and DATABRICKS_ACCESS_TOKEN, or pass them as storage=.",
        )
    name = address.removeprefix("uc://").strip("/")
    table = _ask(catalog, token, f"/tables/{quote(name, safe='.')}", address=address)
    location = str(table.get("storage_location") or "")
    rest = {key: value for key, value in given.items() if not key.startswith(("unity_", "databricks_"))}
    if urlsplit(location).scheme in {"", "file"}:
        return location, rest
    return location, {**rest, **_lent(catalog, token, str(table.get("table_id")), address=address)}


def _first(given: Mapping[str, str], names: tuple[str, ...]) -> str:
    values = (given.get(name) or os.environ.get(name.upper()) for name in names)
    return next((value for value in values if value), "").rstrip("/")


def _lent(catalog: str, token: str, table: str, *, address: str) -> dict[str, str]:
    """Keys for a table: to write if the catalog lets us, else to read."""
    for operation in ("READ_WRITE", "READ"):
        try:
            body = {"table_id": table, "operation": operation}
            answer = _ask(catalog, token, "/temporary-table-credentials", body, address=address)
        except ReadOnlyError:
            if operation == "READ":
                raise
            continue
        return _as_options(answer)
    raise AssertionError("the last operation returns or raises")


def _as_options(lent: Mapping[str, Any]) -> dict[str, str]:
    aws, azure = lent.get("aws_temp_credentials"), lent.get("azure_user_delegation_sas")
    google = lent.get("gcp_oauth_token")
    if aws:
        names = ("access_key_id", "secret_access_key", "session_token")
        return {name: str(aws[name]) for name in names if aws.get(name)}
    if azure:
        return {"sas_token": str(azure["sas_token"])}
    return {"bearer_token": str(google["oauth_token"])} if google else {}


def _ask(catalog: str, token: str, path: str, body: Mapping[str, str] | None = None, *, address: str) -> dict[str, Any]:
    place = urlsplit(catalog if "://" in catalog else f"https://{catalog}")
    if place.scheme != "https" and place.hostname not in _LOOPBACK:
        raise ReadOnlyError(f"{address}: a token is sent over https only, found {place.scheme}://{place.hostname}.")
    request = urllib.request.Request(  # noqa: S310 - https, or this machine
        f"{place.scheme}://{place.netloc}{_API}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "User-Agent": "seqlake"},
    )
    # A redirect may lead to another host, or out of https: the token does not go along.
    request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310 - as above
            document: dict[str, Any] = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise DatasetNotFoundError(
                f"{address}: the catalog at {place.hostname} knows no such table.",
                path=address,
                hint="The address is uc://catalog.schema.table.",
            ) from None
        raise ReadOnlyError(
            f"{address}: the catalog at {place.hostname} refused ({error.code} {error.reason}).",
            path=address,
            hint="Ask for USE and SELECT on the table, and for external use of its schema.",
        ) from None
    return document
