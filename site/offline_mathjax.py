"""MathJax 3 in its SVG form, one file, copied from ``sphinx-mathjax-offline``.

That package selects the CHTML form, whose fonts a browser may refuse on ``file://``, and copies
all of MathJax; the SVG bundle draws its own glyphs and needs nothing else.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.fileutil import copy_asset

NAME = "tex-svg.js"


def bundle() -> Path:
    """Path of the MathJax bundle; ``RuntimeError`` says what to install when it is absent."""
    spec = importlib.util.find_spec("sphinx-mathjax-offline")
    if spec is None or spec.origin is None:
        raise RuntimeError("the site needs the package sphinx-mathjax-offline for its maths")
    return Path(spec.origin).parent / "static" / "mathjax" / NAME


def _configure(app: Sphinx) -> None:
    # Here and not in conf.py, so that nothing that loads later can put a remote address back.
    app.config.mathjax_path = f"mathjax/{NAME}"
    app.config.mathjax3_config = {
        "options": {
            "enableMenu": False,
            "ignoreHtmlClass": "tex2jax_ignore|mathjax_ignore|document",
            "processHtmlClass": "tex2jax_process|mathjax_process|math|output_area",
        },
        "svg": {"fontCache": "local"},
    }


def _copy(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        copy_asset(bundle(), Path(app.outdir) / "_static" / "mathjax")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", _configure, priority=900)
    app.connect("build-finished", _copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
