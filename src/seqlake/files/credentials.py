"""Storage options: held so that nothing prints them, translated for each library in one place.

`storage=` takes obstore's names. They travel with a pickled store to its workers, and nowhere else: not into a
dataset, not into a `repr`, not into an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

# What configures the HTTP client and not the store; obstore takes the two apart.
_CLIENT = {
    "allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only", "pool_idle_timeout",
    "proxy_ca_certificate", "proxy_excludes", "proxy_url", "read_timeout", "root_certificate", "timeout", "user_agent",
}  # fmt: skip
_OURS = {
    "mmap",
    "allow_outside",
    "allow_redirects",
    "allow_hosts",
    "allow_buckets",
    "allow_folders",
    "hf_token",
    "hf_endpoint",
}
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_SECRET = re.compile(r"key|secret|token|password|sas|signature|credential|bearer", re.IGNORECASE)

# Our name -> theirs. `aws_`, `google_` and `azure_storage_` before a name mean nothing.
_PYARROW = {
    "s3": {
        "access_key_id": "access_key", "secret_access_key": "secret_key", "session_token": "session_token",
        "token": "session_token", "region": "region", "default_region": "region", "endpoint": "endpoint_override",
        "endpoint_url": "endpoint_override", "skip_signature": "anonymous", "role_arn": "role_arn",
    },
    "gs": {"skip_signature": "anonymous", "endpoint": "endpoint_override"},
    "az": {"account_name": "account_name", "account_key": "account_key", "sas_token": "sas_token"},
}  # fmt: skip
_PYICEBERG = {
    "s3": {
        "access_key_id": "s3.access-key-id", "secret_access_key": "s3.secret-access-key",
        "session_token": "s3.session-token", "token": "s3.session-token", "region": "s3.region",
        "default_region": "s3.region", "endpoint": "s3.endpoint", "endpoint_url": "s3.endpoint",
        "skip_signature": "s3.anonymous", "role_arn": "s3.role-arn",
    },
    "gs": {"endpoint": "gcs.service.host"},
    "az": {
        "account_name": "adls.account-name", "account_key": "adls.account-key", "sas_token": "adls.sas-token",
        "tenant_id": "adls.tenant-id", "client_id": "adls.client-id", "client_secret": "adls.client-secret",
    },
}  # fmt: skip
_DELTALAKE = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_STORAGE_"}
_TRUTHS = {"allow_http", "allow_invalid_certificates", "http1_only", "http2_only"}
_KINDS = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "azure": "az", "abfs": "az", "abfss": "az", "adl": "az"}


class Storage(Mapping[str, str]):
    """Options as they were given; its `repr` names them and shows no value.

    Example:
        >>> Storage({"aws_secret_access_key": "wJalrXUtnFEMI"})
        Storage(secret_access_key=...)
    """

    __slots__ = ("_options",)

    def __init__(self, options: Mapping[str, str] | None = None, /) -> None:
        given = {} if options is None else options
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            # What was given may hold a secret, so it is not repeated.
            raise ValueError(f"storage: expected options as {{'region': 'eu-west-1'}}, found {type(given).__name__}.")
        self._options = {_short(name): str(value) for name, value in given.items()}

    def __getitem__(self, name: str) -> str:
        return self._options[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    def __repr__(self) -> str:
        return f"Storage({', '.join(f'{name}=...' for name in sorted(self))})"

    def allows(self, name: str, /) -> bool:
        """Whether an option is there and says yes."""
        return self.get(name, "").lower() in {"true", "1", "yes"}

    def redacted(self, text: str, /) -> str:
        """A message without our secrets, and without the query of any address, where signatures stand."""
        secrets = [value for name, value in self.items() if _SECRET.search(name) and value]
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        text = re.sub(r"(\w+://)[^/\s@]+@", r"\1", text)
        return re.sub(r"(\w+://[^\s?\"']+)\?[^\s\"')]*", r"\1?...", text)


def kind_of(scheme: str, /) -> str:
    """The cloud whose scheme this is (`s3` for `s3a`); another scheme as it is."""
    return _KINDS.get(scheme, scheme)


def _short(name: str) -> str:
    return re.sub(r"^(aws|google|azure_storage|azure)_", "", name.lower())


def for_obstore(storage: Mapping[str, str] | None, /, *, scheme: str = "s3") -> dict[str, Any]:
    """Keyword arguments of an obstore store: `config`, `client_options` and, with boto3, where keys come from.

    Plain HTTP is spoken to this very machine without asking, and to others only with `allow_http="true"`.
    """
    options = dict(Storage(storage))
    client: dict[str, Any] = {name: options.pop(name) for name in sorted(_CLIENT & options.keys())}
    client.update({name: Storage(storage).allows(name) for name in sorted(_TRUTHS & client.keys())})
    config = {name: value for name, value in options.items() if name not in _OURS}
    named = [options.get("endpoint"), options.get("endpoint_url"), *(os.environ.get(name) for name in _ENDPOINTS)]
    endpoint = next((url for url in named if url), "")
    if endpoint.startswith("http://") and urlsplit(endpoint).hostname in _LOOPBACK:
        client.setdefault("allow_http", True)
    arguments: dict[str, Any] = {"config": config, "client_options": client}
    if _KINDS.get(scheme) == "s3" and (provider := _profile(config)) is not None:
        arguments["credential_provider"] = provider
    return arguments


def _profile(config: Mapping[str, str]) -> Any:
    """The keys of `~/.aws`, which obstore does not read, where nothing nearer names any and boto3 is there."""
    if {"access_key_id", "skip_signature"} & config.keys() or "AWS_ACCESS_KEY_ID" in os.environ:
        return None
    file = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")).expanduser()
    if "AWS_PROFILE" not in os.environ and not file.is_file():
        return None
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return None
    return Boto3CredentialProvider()


def for_pyarrow(storage: Mapping[str, str] | None, /, *, scheme: str = "s3") -> dict[str, Any]:
    """Keyword arguments of pyarrow's `S3FileSystem`, `GcsFileSystem` or `AzureFileSystem`.

    Example:
        >>> for_pyarrow({"region": "eu-west-1"})
        {'region': 'eu-west-1'}
    """
    options = Storage(storage)
    arguments: dict[str, Any] = _renamed(options, _PYARROW, scheme)
    if "anonymous" in arguments:
        arguments["anonymous"] = options.allows("skip_signature")
    override = arguments.get("endpoint_override", "")
    if override.startswith("http://") or options.allows("allow_http"):
        arguments["scheme"] = "http"
    if "://" in override:
        arguments["endpoint_override"] = override.partition("://")[2]
    return arguments


def for_deltalake(storage: Mapping[str, str] | None, /, *, scheme: str = "s3") -> dict[str, str]:
    """`storage_options` of deltalake, which takes the names of the environment."""
    before = _DELTALAKE[_kind(scheme)]
    options = {name: value for name, value in Storage(storage).items() if name not in _OURS}
    return {f"{before}{name.upper()}": value for name, value in options.items()}


def for_pyiceberg(storage: Mapping[str, str] | None, /, *, scheme: str = "s3") -> dict[str, str]:
    """Properties of a pyiceberg catalog or `FileIO`."""
    return _renamed(Storage(storage), _PYICEBERG, scheme)


def from_pyiceberg(properties: Mapping[str, str], /, *, scheme: str = "s3") -> dict[str, str]:
    """Options of obstore from the properties of a pyiceberg `FileIO`, handed-out credentials among them."""
    if scheme == "file":
        return {}
    names = {theirs: ours for ours, theirs in reversed(_PYICEBERG[_kind(scheme)].items())}
    options = {ours: str(properties[theirs]) for theirs, ours in names.items() if properties.get(theirs)}
    if options.get("endpoint", "").startswith("http://"):
        options["allow_http"] = "true"
    return options


def _renamed(options: Storage, names: Mapping[str, Mapping[str, str]], scheme: str) -> dict[str, str]:
    return {theirs: options[ours] for ours, theirs in names[_kind(scheme)].items() if ours in options}


def _kind(scheme: str) -> str:
    if scheme not in _KINDS:
        raise ValueError(f"expected one of {', '.join(_KINDS)} as scheme, found {scheme!r}.")
    return _KINDS[scheme]
