"""Metadata routing of scikit-learn (its user guide, "Metadata Routing"), without its base class: an estimator of rotrnn
needs scikit-learn only where scikit-learn calls it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rotrnn._support.text import an, nearest

METHODS = "fit", "partial_fit", "predict", "predict_proba", "predict_log_proba", "score"
"""The methods to which scikit-learn routes metadata."""


def metadata_of(kind: type, method: str) -> tuple[str, ...]:
    """Returns the arguments of a method beside the data, x and y."""
    return tuple(name for name in inspect.signature(getattr(kind, method)).parameters if name not in ("self", "x", "y"))


def routing(estimator: Any) -> Any:
    """Returns the requests of an estimator, a ``sklearn.utils.metadata_routing.MetadataRequest``: those that were set,
    and None, which refuses metadata, for others."""
    from sklearn.utils.metadata_routing import MetadataRequest, get_routing_for_object

    if hasattr(estimator, "_metadata_request"):  # which `sklearn.clone` copies
        return get_routing_for_object(estimator._metadata_request)
    requests, kind = MetadataRequest(owner=estimator), type(estimator)
    for method in METHODS:
        for name in metadata_of(kind, method) if hasattr(kind, method) else ():
            getattr(requests, method).add_request(param=name, alias=None)
    return requests


def setter(kind: type, method: str) -> Callable[..., Any]:
    """Returns the method ``set_{method}_request`` of a class of estimators."""
    known, name = metadata_of(kind, method), f"set_{method}_request"

    def set_request(self: Any, **requests: bool | str | None) -> Any:
        import sklearn

        title = f"{type(self).__name__}.{name}"
        if not sklearn.get_config()["enable_metadata_routing"]:
            raise RuntimeError(f"{title}: needs sklearn.set_config(enable_metadata_routing=True)")
        if unknown := [one for one in requests if one not in known]:
            raise TypeError(f"{title}: got {unknown[0]!r}{nearest(unknown[0], known)}")
        found = routing(self)
        for one, value in requests.items():
            if not (value is None or isinstance(value, bool) or (isinstance(value, str) and value.isidentifier())):
                got = repr(value) if isinstance(value, str) else an(type(value).__name__)
                raise ValueError(f"{title}: {one} is {got}, expected True, False, None or the name of an argument")
            getattr(found, method).add_request(param=one, alias=value)
        self._metadata_request = found
        return self

    set_request.__name__, set_request.__qualname__ = name, f"{kind.__qualname__}.{name}"
    set_request.__doc__ = (
        f"Sets which metadata scikit-learn passes to `{method}`, of {', '.join(known)}: True, False, None (refuses it, "
        "the default), or the name by which the caller gives it. Returns self. RuntimeError if metadata routing is not "
        "enabled, TypeError for another argument, ValueError for another value."
    )
    return set_request
