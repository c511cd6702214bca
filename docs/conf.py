"""Sphinx: the pages of this directory as a site. ``make docs`` builds it."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed
from pathlib import Path

# The pages are made from the code beside them, not from what is installed.
sys.path.insert(0, str(Path(__file__).parent.parent))

project = "redis_queue"
author = "The redis_queue authors"
release = installed("celery-redis-queue")

extensions = ["myst_parser", "sphinx_copybutton", "docs.generated"]
exclude_patterns = ["README.md"]

# Links to headings are written as GitHub makes them.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]

# They would make other characters of options such as --json.
smartquotes = False
highlight_language = "none"
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = "redis_queue"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
