"""Settings of the site. It builds without a network: no intersphinx, no fonts or scripts from elsewhere."""

project = "restripe"
author = "the restripe authors"
copyright = author  # noqa: A001 - Sphinx's own name for it
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3  # requirements are third-level headings: each has its link
exclude_patterns = ["_build"]
nitpicky = True
html_theme = "furo"
html_title = "restripe"
