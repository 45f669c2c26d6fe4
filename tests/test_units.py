"""Sizes as text and back: units named, rounded, parsed, refused."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import rows

from refimpl.units import format_bytes, format_count, format_si_bytes, parse_size, speedup

IEC = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
SI = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}


@pytest.mark.parametrize(
    ("num_bytes", "binary", "decimal"),
    [
        (0, "0 B", "0 B"),
        (1, "1 B", "1 B"),
        (999, "999 B", "999 B"),
        (1000, "1000 B", "1 kB"),
        (1023, "1023 B", "1.02 kB"),
        (1024, "1 KiB", "1.02 kB"),
        (327_680, "320 KiB", "327.68 kB"),
        (2**30, "1 GiB", "1.07 GB"),
        (5 * 2**28, "1.25 GiB", "1.34 GB"),
        (141_107_412_992, "131.42 GiB", "141.11 GB"),
        (2**20 - 1, "1 MiB", "1.05 MB"),
        (10**6 - 1, "976.56 KiB", "1 MB"),
        (2**70, "1048576 PiB", "1180591.62 PB"),
    ],
)
def test_known_sizes(num_bytes: int, binary: str, decimal: str) -> None:
    assert format_bytes(num_bytes) == binary
    assert format_si_bytes(num_bytes) == decimal


@given(st.integers(0, 2**60))
def test_a_formatted_size_is_the_size_to_two_decimals(num_bytes: int) -> None:
    for text, units, base in (
        (format_bytes(num_bytes), IEC, 1024),
        (format_si_bytes(num_bytes), SI, 1000),
    ):
        number, unit = text.split()
        value, factor = Fraction(Decimal(number)), units[unit]
        # Half a hundredth of the unit, and the rounding of a float64 on top.
        assert abs(value * factor - num_bytes) <= Fraction(501, 100_000) * factor
        assert value < base or unit.startswith("P")
        assert unit == "B" or value >= 1


@pytest.mark.parametrize("base", [1024, 1000])
@pytest.mark.parametrize("power", range(1, 6))
def test_the_unit_steps_up_where_the_rounded_figure_does(base: int, power: int) -> None:
    function = format_bytes if base == 1024 else format_si_bytes
    units = list(IEC if base == 1024 else SI)
    assert function(base**power) == f"1 {units[power]}"
    assert function(base**power - 1).endswith(units[power] if power > 1 else "B")
    assert function(base**power - base**power // 100).endswith(f" {units[power - 1]}")


@pytest.mark.case("CAL-10")
def test_gigabytes_and_gibibytes_are_not_taken_for_each_other() -> None:
    row = rows("cases_steps.json")["CAL-10"]
    sizes, want = row["inputs"]["sizes"], row["expected"]
    assert [format_si_bytes(size) for size in sizes] == want["decimal"]
    assert [format_bytes(size) for size in sizes] == want["binary"]
    assert [parse_size("80GB"), parse_size("80GiB")] == sizes
    assert parse_size(format_bytes(sizes[1])) == sizes[1]


@pytest.mark.parametrize("function", [format_bytes, format_si_bytes])
def test_a_negative_size_is_refused(function: object) -> None:
    with pytest.raises(ValueError, match="cannot be negative, got -1"):
        function(-1)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (8192, "8,192"),
        (999_949, "999,949"),
        (999_950, "1 million"),
        (1_327_186, "1.327 million"),
        (999_949_999, "999.9 million"),
        (999_950_000, "1 billion"),
        (70_553_706_496, "70.55 billion"),
        (671_026_419_200, "671 billion"),
        (15 * 10**11, "1.5 trillion"),
        (1_243_923_594_870_784, "1,244 trillion"),
        (10**16, "10,000 trillion"),
    ],
)
def test_known_counts(number: int, text: str) -> None:
    assert format_count(number) == text


@given(st.integers(10**6, 10**15 - 10**12))
def test_a_formatted_count_is_the_count_to_four_digits(number: int) -> None:
    figure, word = format_count(number).split()
    value = (
        Fraction(Decimal(figure)) * {"million": 10**6, "billion": 10**9, "trillion": 10**12}[word]
    )
    assert abs(value - number) <= Fraction(51, 100_000) * number
    assert 1 <= Decimal(figure) < 1000


@pytest.mark.parametrize("number", [-1, 10**30, 10**400, float("nan")])
def test_a_count_that_is_none_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="a count must be from 0 to below"):
        format_count(number)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80GB", 80 * 10**9),
        ("80 GiB", 80 * 2**30),
        ("1.5GiB", 3 * 2**29),
        ("32k", 32_768),
        ("128K", 131_072),
        ("1m", 2**20),
        ("4096", 4096),
        (" 7 b ", 7),
        ("2tb", 2 * 10**12),
        ("0.5 kB", 500),
        ("1PiB", 2**50),
        (12, 12),
    ],
)
def test_known_texts(text: str | int, value: int) -> None:
    got = parse_size(text)
    assert got == value
    assert type(got) is int


@given(st.integers(0, 10**6), st.sampled_from([*IEC.items(), *SI.items()]))
def test_whole_numbers_of_any_unit_come_back(count: int, unit: tuple[str, int]) -> None:
    name, factor = unit
    for text in (f"{count}{name}", f"{count} {name.upper()}", f"{count} {name.lower()}"):
        assert parse_size(text) == count * factor


@pytest.mark.parametrize("count", [2**53 + 1, 9_007_199_254_740_993 * 3])
def test_large_whole_numbers_are_exact(count: int) -> None:
    assert parse_size(count) == count
    assert parse_size(f"{count} B") == count


@pytest.mark.parametrize(
    "text", ["", "GB", "-1", "1.2.3 GB", "5 XB", "1e3", "4 G B", "nan", None, "x" * 200]
)
def test_other_texts_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="cannot read the size"):
        parse_size(text)


@pytest.mark.parametrize(
    "text",
    [
        "9" * 31,
        "9" * 5000 + " GB",
        "1" * 400 + ".5",
        "1" * 24 + " PiB",
        10**30,
        10**5000,
        -(10**400),
    ],
    ids=["31", "5000", "fraction", "unit", "int", "long int", "negative"],
)
def test_numbers_without_an_end_are_refused_in_few_words(text: str | int) -> None:
    with pytest.raises(ValueError, match=r"too large: it must be below 10\*\*30") as caught:
        parse_size(text)
    assert len(str(caught.value)) < 200


def test_the_largest_size_is_read() -> None:
    assert parse_size("9" * 30) == parse_size(10**30 - 1) == 10**30 - 1


@pytest.mark.parametrize("function", [format_bytes, format_si_bytes])
@pytest.mark.parametrize("size", [float("nan"), float("inf"), 10**30, 10**400])
def test_a_size_that_is_none_is_not_formatted(function: object, size: float) -> None:
    with pytest.raises(ValueError, match=r"must be below 10\*\*30"):
        function(size)


@pytest.mark.parametrize("text", ["1.5", "0.1 B", "0.3KiB"])
def test_fractions_of_a_byte_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a whole number"):
        parse_size(text)


def test_a_speedup_is_the_old_time_over_the_new() -> None:
    assert speedup(12.0, 3.0) == 4
    assert speedup(3.0, 12.0) == 0.25
    assert speedup(7.0, 7.0) == 1


@pytest.mark.parametrize("wrong", [0, -1.5, float("nan"), float("inf")])
def test_times_that_are_none_are_refused(wrong: float) -> None:
    with pytest.raises(
        ValueError, match=f"the time before must be positive and finite, got {wrong}"
    ):
        speedup(wrong, 1.0)
    with pytest.raises(
        ValueError, match=f"the time after must be positive and finite, got {wrong}"
    ):
        speedup(1.0, wrong)
