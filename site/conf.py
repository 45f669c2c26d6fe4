"""Sphinx configuration. The source tree is put together by ``render.py``; build through that."""

import hashlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

project = "Bytes over Bandwidth"
html_title = "Bytes over Bandwidth"
language = "en"

extensions = [
    "myst_nb",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinxcontrib.bibtex",
    "sphinx.ext.mathjax",
    "offline_mathjax",
    "cell_anchors",
]
include_patterns = ["index.md", "site/*.md", "chapters/*.ipynb", "solutions/*.ipynb"]
root_doc = "index"

# Notebooks arrive executed; what they hold is what is shown.
nb_execution_mode = "off"
nb_merge_streams = True
nb_output_stderr = "show"

# Chapters are plain Markdown; the directives are for the site's own pages. A price such as $2 must
# not open a formula, so a space or digit next to a dollar sign keeps it a dollar.
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath", "html_image"]
myst_dmath_allow_space = False
myst_dmath_allow_digits = False
myst_heading_anchors = 6

bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "plain"

html_theme = "sphinx_book_theme"
html_static_path = ["_static"]
html_css_files = ["book.css", "stepper.css", "calculator.css"]
html_js_files = ["book.js", "stepper.js", "calc.js", "calculator.js"]
html_favicon = "_static/mark.svg"
html_show_sphinx = False
html_show_copyright = False
html_use_index = False
html_domain_indices = False
html_sourcelink_suffix = ""
# Summaries are fetched page by page, which a browser refuses on file://.
html_show_search_summary = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "Bytes over Bandwidth"},
    "home_page_in_toc": False,
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "toc_title": "On this page",
    "use_download_button": True,
    "use_fullscreen_button": False,
    "pygments_light_style": "friendly",
    "pygments_dark_style": "nord",
    "navbar_persistent": [],
    "footer_content_items": ["extra-footer.html"],
    "extra_footer": "Text and figures: CC BY 4.0. Code: Apache-2.0.",
}

copybutton_selector = "div.cell_input div.highlight pre, div.highlight-bash div.highlight pre"
copybutton_exclude = ".linenos, .gp"

# Changing the extension or this file invalidates what Sphinx has cached.
book_sources = hashlib.sha256(
    b"".join(path.read_bytes() for path in sorted(HERE.glob("*.py")))
).hexdigest()
