"""Bytes of numbers in each dtype, packed, and of the scales that go with them."""

BYTES_PER_ELEMENT = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}


def bytes_per_element(dtype: str) -> float:
    """Bytes of one number of ``dtype``; ``ValueError`` for a name that is not known."""
    if dtype not in BYTES_PER_ELEMENT:
        raise ValueError(f"unknown dtype {dtype!r}: one of {', '.join(BYTES_PER_ELEMENT)}")
    return BYTES_PER_ELEMENT[dtype]


def packed(elements: int, dtype: str) -> int:
    """Whole bytes of ``elements`` numbers that lie side by side; two 4-bit ones share a byte."""
    bits = int(8 * bytes_per_element(dtype))
    return -(-elements * bits // 8)


def scales(elements: int, group_size: int | None, scale_bytes: int) -> int:
    """Bytes of one scale for each group of ``group_size`` numbers, the last one perhaps short."""
    check_count("scale_bytes", scale_bytes)
    if group_size is None:
        return 0
    check_count("group_size", group_size, least=1)
    return -(-elements // group_size) * scale_bytes


def check_count(name: str, value: int, least: int = 0) -> None:
    """Raise ``ValueError`` unless ``value`` is a whole number of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value < least:
        rule = "cannot be negative" if least == 0 else f"must be at least {least}"
        raise ValueError(f"{name} {rule}, got {value}")
