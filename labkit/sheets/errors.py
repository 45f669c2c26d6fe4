"""What goes wrong when a sheet is made."""


class SheetError(ValueError):
    """A sheet cannot be made; the message says which line and what to change."""
