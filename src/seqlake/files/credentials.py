"""Storage options, translated for each library in one place; never stored, never printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_CLIENT = {"allow_http", "timeout", "connect_timeout", "proxy_url", "user_agent"}

# obstore's names -> pyarrow's S3FileSystem
_PYARROW = {
    "access_key_id": "access_key",
    "secret_access_key": "secret_key",
    "session_token": "session_token",
    "region": "region",
    "endpoint": "endpoint_override",
}
# obstore's names -> pyiceberg's catalog properties
_PYICEBERG = {
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "region": "s3.region",
    "endpoint": "s3.endpoint",
}


def _plain(storage: Mapping[str, str] | None) -> dict[str, str]:
    """Options under their short names: `aws_access_key_id` and `AWS_ACCESS_KEY_ID` are `access_key_id`."""
    names = {name: name.lower().removeprefix("aws_") for name in storage or {}}
    return {names[name]: str(value) for name, value in (storage or {}).items()}


def for_obstore(storage: Mapping[str, str] | None, /) -> dict[str, Any]:
    """Keyword arguments of `obstore.store.from_url`."""
    options = _plain(storage)
    client: dict[str, Any] = {name: options.pop(name) for name in _CLIENT & options.keys()}
    if "allow_http" in client:
        client["allow_http"] = client["allow_http"].lower() == "true"
    made: dict[str, Any] = dict(options)
    if "virtual_hosted_style_request" in made:
        made["virtual_hosted_style_request"] = made["virtual_hosted_style_request"].lower() == "true"
    if "skip_signature" in made:
        made["skip_signature"] = made["skip_signature"].lower() == "true"
    found: dict[str, Any] = {"config": made} if made else {}
    return {**found, "client_options": client} if client else found


def for_pyarrow(storage: Mapping[str, str] | None, /) -> dict[str, Any]:
    """Keyword arguments of `pyarrow.fs.S3FileSystem`."""
    options = _plain(storage)
    made: dict[str, Any] = {theirs: options[ours] for ours, theirs in _PYARROW.items() if ours in options}
    if options.get("allow_http", "").lower() == "true":
        made["scheme"] = "http"
    return made


def for_deltalake(storage: Mapping[str, str] | None, /) -> dict[str, str]:
    """`storage_options` of deltalake, which takes the names of the environment."""
    return {f"AWS_{name.upper()}": value for name, value in _plain(storage).items()}


def for_pyiceberg(storage: Mapping[str, str] | None, /) -> dict[str, str]:
    """Properties of a pyiceberg catalog."""
    options = _plain(storage)
    return {theirs: options[ours] for ours, theirs in _PYICEBERG.items() if ours in options}
