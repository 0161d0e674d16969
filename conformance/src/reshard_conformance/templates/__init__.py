"""Texts with gaps: the report's page and badge, and the files of a new adapter."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

__all__ = ["scaffold", "template"]


def template(name: str, /, **values: Any) -> str:
    """The text of that name with its gaps filled; what goes into a page or an image is escaped."""
    return environment().get_template(name).render(**values)


def scaffold(name: str) -> dict[str, str]:
    """The files of a package with an adapter, by their path in it."""
    places = {
        "pyproject.toml": "new/pyproject.toml.jinja",
        "README.md": "new/README.md.jinja",
        f"src/{name}/__init__.py": "new/adapter.py.jinja",
    }
    return {place: template(source, name=name) for place, source in places.items()}


@cache
def environment() -> Environment:
    return Environment(
        loader=PackageLoader("reshard_conformance"),
        autoescape=select_autoescape(("html", "svg")),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
