"""Templates of the report's page and badge, and of the files of a new adapter."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

__all__ = ["render_template", "scaffold"]


def render_template(name: str, /, **values: Any) -> str:
    """Return the rendered template; values in a page or an image are escaped."""
    return template_environment().get_template(name).render(**values)


def scaffold(name: str) -> dict[str, str]:
    """Return the files of a package with an adapter, by their path in it."""
    sources = {
        "pyproject.toml": "new/pyproject.toml.jinja",
        "README.md": "new/README.md.jinja",
        f"src/{name}/__init__.py": "new/adapter.py.jinja",
    }
    return {place: render_template(source, name=name) for place, source in sources.items()}


@cache
def template_environment() -> Environment:
    return Environment(
        loader=PackageLoader("reshard_conformance", "data/templates"),
        autoescape=select_autoescape(("html", "svg")),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
