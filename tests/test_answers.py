"""Answers with units: what is read, what is right, and which slip a wrong one is put down to."""

from dataclasses import replace
from fractions import Fraction

import pytest

from labkit import answers
from labkit.check import CheckFailed
from labkit.tasks import Example, Mutant, Property, Task

LLAMA_3_70B = 2 * 80 * 8 * 128 * 2  # one token in BF16


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("327,680 B", 327_680, "B"),
        ("327680 bytes", 327_680, "B"),
        ("320 KiB", 327_680, "B"),
        ("320KiB", 327_680, "B"),
        (" 0.32768 MB ", 327_680, "B"),
        ("327.68 kB", 327_680, "B"),
        ("3.2768e5 B", 327_680, "B"),
        ("1.25 GiB", 5 * 2**28, "B"),
        ("3.35 TB/s", 3_350_000_000_000, "B/s"),
        ("42.5 ms", Fraction(425, 10_000), "s"),
        ("989 TFLOP/s", 989 * 10**12, "FLOP/s"),
        ("295 FLOP/byte", 295, "FLOP/B"),
        ("25,705 tokens", 25_705, "tokens"),
        ("1.3 million tokens", 1_300_000, "tokens"),
        ("50 users", 50, "users"),
        ("1.13 times", Fraction(113, 100), "times"),
        ("2.5 %", Fraction(25, 1000), "times"),
    ],
)
def test_what_a_person_writes_is_read_exactly(text, value, unit):
    assert answers.parse(text) == answers.Quantity(Fraction(value), unit)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("327680", "no unit"),
        (327_680, "as text with its unit"),
        (None, "as text with its unit"),
        ("320 k", "no unit is called 'k'"),
        ("320 Kb", "a small b is a bit"),
        ("5 gigabytes", "no unit is called 'gigabytes'"),
        ("32,7 KiB", "no unit is called ',7 KiB'"),
        ("about 5 GB", "a number and a unit"),
        ("-5 GB", "a number and a unit"),
        ("nan GB", "a number and a unit"),
        ("", "a number and a unit"),
    ],
)
def test_what_is_no_quantity_is_refused_with_the_reason(text, says):
    with pytest.raises(ValueError, match=says):
        answers.parse(text)


def test_another_dimension_is_refused():
    with pytest.raises(ValueError, match="given in tokens, the answer is a number of B"):
        answers.read("320 tokens", "B")
    assert answers.read("320 KiB", "KiB") == 320
    assert answers.read("0.0425 s", "ms") == pytest.approx(42.5)


@pytest.mark.parametrize("given", ["327,680 B", "320 KiB", "327.68 kB", "328 kB", "0.3125 MiB"])
def test_one_size_in_any_unit_is_right(given, capsys):
    answers.quantity(given, LLAMA_3_70B)
    is_exact = given == "327,680 B"
    assert capsys.readouterr().out == f"right: {given}{'' if is_exact else ' is 327,680 B'}\n"


@pytest.mark.parametrize(
    ("given", "expected", "says"),
    [
        ("40 GB", 40 * 2**30, "GB (10^9) and GiB (2^30)"),
        ("42.9 GiB", 40 * 2**30, "GB (10^9) and GiB (2^30)"),
        ("320 kB", LLAMA_3_70B, "kB (10^3) and KiB (2^10)"),
        ("20.97 MiB", 20 * 2**20, "differ by 4.9 percent"),
        ("2.5 MiB", LLAMA_3_70B, "query heads"),
        ("160 KiB", LLAMA_3_70B, "a factor of 2 is missing"),
        ("2.62 MB", LLAMA_3_70B, "query heads"),
    ],
)
def test_a_factor_is_put_down_to_its_slip(given, expected, says):
    with pytest.raises(CheckFailed) as failed:
        answers.quantity(given, expected, known={8: "query heads counted"}, task="x")
    assert says in failed.value.diagnosis and says in str(failed.value)
    assert failed.value.task == "x" and failed.value.example == given


def test_a_factor_that_nothing_explains_gets_no_diagnosis():
    with pytest.raises(CheckFailed, match=r"3 times the right answer$") as failed:
        answers.quantity("960 KiB", LLAMA_3_70B)
    assert failed.value.diagnosis is None


def test_slips_of_sizes_are_not_offered_for_other_quantities():
    with pytest.raises(CheckFailed) as failed:
        answers.quantity("84 ms", 42, "ms")
    assert failed.value.diagnosis is None


def test_the_tolerance_is_three_digits_and_no_more():
    answers.quantity("42.9 GB", 40 * 2**30)
    with pytest.raises(CheckFailed):
        answers.quantity("43.2 GB", 40 * 2**30)
    with pytest.raises(CheckFailed):
        answers.quantity("42.7 GB", 40 * 2**30)


def test_an_answer_without_a_unit_fails_for_that():
    with pytest.raises(CheckFailed, match="no unit") as failed:
        answers.quantity("327680", LLAMA_3_70B)
    assert failed.value.property == "unit"


# ── questions with numbers ───────────────────────────────────────────────────────────────────


def _bytes(H, G):
    return f"{4 * G} B"


TOY = Task(
    name="toy",
    chapter=99,
    title="",
    minutes=1,
    points=1,
    level=1,
    spec="Bytes.",
    signature="toy(H: int, G: int) -> str",
    properties=(Property("bytes", lambda: [Example((4, 2), 8.0)]),),
    hints=("", "", ""),
    mutants=(Mutant("heads", "query heads counted", lambda H, G: f"{4 * H} B"),),
    answers=(_bytes,),
    drive=answers.reading("B"),
    draw=lambda seed: (6 + 6 * seed, 3),
    ask=lambda H, G: f"{H} query heads, {G} key-value heads?",
    unit="B",
)


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(
        answers, "all_tasks", lambda: {"toy": TOY, "plain": replace(TOY, draw=None)}
    )


@pytest.mark.usefixtures("toy")
def test_each_seed_asks_a_question_of_its_own(capsys):
    answers.ask("toy", 0)
    answers.ask("toy", 1)
    answers.reply("toy", "12 B", seed=1)
    assert capsys.readouterr().out.splitlines() == [
        "6 query heads, 3 key-value heads?",
        "12 query heads, 3 key-value heads?",
        "right: 12 B",
    ]


@pytest.mark.usefixtures("toy")
def test_a_reply_that_makes_a_known_mistake_is_told_which():
    for seed, given in ((0, "24 B"), (1, "48 B")):
        with pytest.raises(CheckFailed) as failed:
            answers.reply("toy", given, seed)
        assert failed.value.diagnosis == "query heads counted"
    with pytest.raises(CheckFailed) as failed:
        answers.reply("toy", "31 B", 0)
    assert failed.value.diagnosis is None


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(("name", "seed"), [("plain", 0), ("none", 0), ("toy", -1), ("toy", True)])
def test_a_question_that_is_none_is_refused(name, seed):
    with pytest.raises(ValueError, match=r"toy|seed"):
        answers.ask(name, seed)
