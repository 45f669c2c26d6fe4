"""What a figure is: data, a drawing of it, a takeaway and a text for those who do not see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from figures import style

Data = dict[str, Any]
FOLDER = Path(__file__).parent / "svg"


@dataclass(frozen=True)
class Record:
    """One figure of the book.

    ``data()`` is what is drawn, as plain Python numbers and lists. ``takeaway`` and ``describe``
    are written from that data, so that no number in a title or an alt text can rot.
    """

    name: str
    data: Callable[[], Data]
    takeaway: Callable[[Data], str]
    describe: Callable[[Data], str]
    plot: Callable[[Data, str], Figure]

    @property
    def title(self) -> str:
        """The sentence written above the figure."""
        return self.takeaway(self.data())

    @property
    def alt(self) -> str:
        """What the figure shows, in words."""
        return style.paragraph(self.describe(self.data()))

    @property
    def path(self) -> Path:
        """Where the committed SVG lies."""
        return FOLDER / f"{self.name}.svg"

    @property
    def markdown(self) -> str:
        """The line with which a chapter embeds the figure."""
        return f"![{self.alt}](../figures/svg/{self.name}.svg)"

    def draw(self) -> Figure:
        """A fresh matplotlib figure in the book's look."""
        with style.applied():
            return self.plot(self.data(), self.title)

    def svg(self) -> bytes:
        """The figure as SVG, the same bytes on every run."""
        with style.applied():
            return style.to_svg(self.draw(), name=self.name, alt=self.alt)
