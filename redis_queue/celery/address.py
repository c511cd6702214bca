"""Read from the configuration of a Celery app where its Redis is: URL, TLS, login and options of Sentinels."""

from __future__ import annotations

import math
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from kombu.utils.imports import symbol_by_name
from redis.credentials import CredentialProvider

from redis_queue.errors import ConfigurationError
from redis_queue.store.urls import scheme_of

SCHEMES: Final = ("redis", "rediss", "unix", "sentinel")

_MIN_OPTIONS: Final = {"socket_timeout": 0.001, "socket_connect_timeout": 0.001, "health_check_interval": 0}
_KEEPALIVE: Final = ("socket_keepalive", "socket_keepalive_options")

_OVER_TLS: Final = {
    "redis": "rediss",
    "rediss": "rediss",
    "sentinel": "rediss+sentinel",
    "redis+sentinel": "rediss+sentinel",
    "rediss+sentinel": "rediss+sentinel",
    "redis+cluster": "rediss+cluster",
    "rediss+cluster": "rediss+cluster",
}


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """One Redis: its URL, and the client options that a URL cannot hold."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _SettingNames:
    """Names of the settings that belong to one URL; "" if Celery has no such setting."""

    url: str
    transport: str
    tls: str = ""
    username: str = ""
    password: str = ""
    provider: str = ""


_OWN: Final = _SettingNames("redis_queue_url", "broker_transport_options")
_BROKER: Final = _SettingNames(
    "broker_url", "broker_transport_options", "broker_use_ssl", "broker_user", "broker_password"
)
_RESULTS: Final = _SettingNames(
    "result_backend",
    "result_backend_transport_options",
    "redis_backend_use_ssl",
    "redis_username",
    "redis_password",
    "redis_backend_credential_provider",
)


def address_of(conf: Any) -> RedisAddress:
    """Return ``redis_queue_url``, else the broker, else the result backend: the first that is one Redis.

    As in Celery and kombu, TLS, login, the name of the primary and the options of Sentinels also come from other
    settings, with the same precedence. Raises ConfigurationError if none is one Redis.
    """
    for place in (_OWN, _BROKER, _RESULTS):
        value = _setting(conf, place.url) or ""
        url = value if isinstance(value, str) else _joined(place.url, value)
        if url.partition("://")[0].partition("+")[0] in SCHEMES and _is_one(url):
            return _completed(conf, place, url)
        if place is _OWN and url:
            raise ConfigurationError(f"redis_queue_url has the scheme {scheme_of(url)!r}: must be one Redis")
    raise ConfigurationError("neither broker nor result backend is one Redis: set redis_queue_url")


def results_of(conf: Any) -> RedisAddress | None:
    """Return the result backend; None unless it is one Redis. Raises ConfigurationError for invalid options."""
    url = _setting(conf, _RESULTS.url)
    if not isinstance(url, str) or url.partition("://")[0].partition("+")[0] not in SCHEMES or not _is_one(url):
        return None
    return _completed(conf, _RESULTS, url)


def _completed(conf: Any, place: _SettingNames, url: str) -> RedisAddress:
    options: dict[str, Any] = {}
    transport = _setting(conf, place.transport) or {}
    given = _options_of(url)
    if _is_sentinel(url):
        # A URL that names its primary may have other Sentinels than the broker.
        if transport.get("master_name") and not (place is _OWN and "master_name" in given):
            url = _with_options(url, {"master_name": str(transport["master_name"])})
        if transport.get("sentinel_kwargs"):
            options["sentinel_kwargs"] = transport["sentinel_kwargs"]
    provider = given.get("credential_provider") or _setting(conf, place.provider)
    if provider:
        url = _with_options(url, {"credential_provider": None})
        options["credential_provider"] = _provider(provider)
    else:
        url = _with_login(url, _setting(conf, place.username), _setting(conf, place.password))
    if place is _BROKER or _setting(conf, _BROKER.url) == _setting(conf, place.url):
        options |= _socket_options(transport, given, tcp=not url.startswith(("unix", "redis+socket")))
    url, rest = _with_tls(url, _tls(conf, place, given))
    return RedisAddress(url, {**options, **rest})


def _socket_options(transport: Mapping[str, Any], given: Mapping[str, str], *, tcp: bool) -> Mapping[str, Any]:
    """Return the socket options among the broker's *transport* options, except those *given* in the URL.

    None keeps the default of the store, which is never infinite. Raises ConfigurationError.
    """
    named = (*_MIN_OPTIONS, *_KEEPALIVE) if tcp else tuple(_MIN_OPTIONS)
    found = {name: transport[name] for name in named if transport.get(name) is not None and name not in given}
    for name in _MIN_OPTIONS:
        value = found.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not _MIN_OPTIONS[name] <= value < math.inf:
            raise ConfigurationError(
                f"broker_transport_options: {name}={value!r}: must be a number of seconds >= {_MIN_OPTIONS[name]}"
            )
    return found


def _setting(conf: Any, name: str) -> Any:
    return getattr(conf, name, None) if name else None


def _tls(conf: Any, place: _SettingNames, given: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the TLS options of the settings, except those *given* in the URL."""
    named = _setting(conf, place.tls)
    own = {name for name in given if name.startswith("ssl_")}
    # kombu ignores a plain True, and uses the options of a URL instead of the setting; Celery uses both.
    if not isinstance(named, Mapping) or (place is _BROKER and own):
        return {}
    return {name: value for name, value in named.items() if name not in own}


def _with_tls(url: str, tls: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return *url* with the options *tls*, and those of them that a URL cannot hold."""
    scheme, _, rest = url.partition("://")
    if not tls or scheme not in _OVER_TLS:
        return url, {}
    written = {name: _written(name, value) for name, value in tls.items()}
    return (
        _with_options(f"{_OVER_TLS[scheme]}://{rest}", {name: text for name, text in written.items() if text}),
        {name: tls[name] for name, text in written.items() if text is None},
    )


def _written(name: str, value: Any) -> str | None:
    """Return the text of a TLS option in a URL: "" to leave it out, None if a URL cannot hold it."""
    if name == "ssl_cert_reqs":
        text = "none" if value is None else value.name if isinstance(value, ssl.VerifyMode) else str(value)
        return text.removeprefix("CERT_").lower()
    if name == "ssl_check_hostname":
        return str(bool(value)).lower()
    return "" if value is None else value if isinstance(value, str) else None


def _provider(given: Any) -> CredentialProvider:
    """Return *given*, or an object of the class with this name. Raises ConfigurationError."""
    try:
        found = symbol_by_name(given)() if isinstance(given, str) else given
    except Exception as error:  # the class of a user may raise anything
        raise ConfigurationError(f"credential_provider={given!r}: {type(error).__name__}: {error}") from error
    if not isinstance(found, CredentialProvider):
        raise ConfigurationError(f"credential_provider={given!r}: must be a redis.CredentialProvider")
    return found


def _with_login(url: str, username: Any, password: Any) -> str:
    scheme, _, rest = url.partition("://")
    # kombu also accepts a function as the password; RabbitMQ's client calls it, the client of Redis does not.
    login = [text if isinstance(text, str) else "" for text in (username, password)]
    if not any(login) or "@" in rest.partition("/")[0].partition("?")[0]:
        return url
    return f"{scheme}://{':'.join(quote(text, safe='') for text in login)}@{rest}"


def _options_of(url: str) -> dict[str, str]:
    # Of several URLs, the options of the last one count.
    return dict(parse_qsl(url.rstrip(";").rpartition(";")[2].partition("?")[2]))


def _with_options(url: str, more: Mapping[str, str | None]) -> str:
    """Return *url* with the options *more*; None removes an option."""
    *others, last = url.rstrip(";").split(";")
    bare, _, query = last.partition("?")
    kept = [(name, text) for name, text in parse_qsl(query) if name not in more]
    options = urlencode([*kept, *((name, text) for name, text in more.items() if text is not None)])
    return ";".join([*others, f"{bare}?{options}" if options else bare])


def _joined(name: str, urls: Any) -> str:
    """Return a list of URLs as one URL in Celery's form."""
    if isinstance(urls, list | tuple) and all(isinstance(url, str) for url in urls):
        return ";".join(urls)
    raise ConfigurationError(f"{name} of type {type(urls).__name__}: must be a URL or a list of URLs")


def _is_one(url: str) -> bool:
    # A list of Sentinels is one Redis. Several brokers are several, and it is unknown which of them is meant.
    return _is_sentinel(url) or ";" not in url


def _is_sentinel(url: str) -> bool:
    return "sentinel" in url.partition("://")[0]
