"""What a reader calls: comparisons, grading, hints, progress; each able to fail."""

import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from labkit import check, examine, pairing, tasks
from labkit.check import CheckFailed
from labkit.compare import difference, render
from labkit.tasks import Example, Property, all_tasks

ROOT = Path(__file__).parent.parent
TASKS = all_tasks()


@pytest.fixture(autouse=True)
def fresh_session(monkeypatch):
    monkeypatch.setattr(check, "_session", {})


# ── check.same ───────────────────────────────────────────────────────────────────────────────


def test_same_prints_one_line(capsys):
    x = torch.randn(2, 6, 5, 8, generator=torch.Generator().manual_seed(0))
    check.same(x + 1e-7, x, name="attend")
    check.same([3, 1, 2], torch.tensor([3, 1, 2]), name="ids")
    check.same(2.5, 2.5)
    check.same(x.bfloat16().float(), x.bfloat16(), name="narrow")
    check.same((x, [1, 2, 3]), (x, [1, 2, 3]), atol=1e-3, name="pair")
    check.same("text", "text", name="text")
    assert capsys.readouterr().out.splitlines() == [
        "same: attend (2, 6, 5, 8) within 1e-05",
        "same: ids (3,) exactly",
        "same: values within 1e-05",
        "same: narrow (2, 6, 5, 8) within 1e-05",
        "same: pair within 0.001 + 1e-05·|reference|",
        "same: text exactly",
    ]


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("mine", "reference", "kind", "says"),
    [
        (torch.ones(2, 3), torch.ones(3, 2), "shape", "expected shape (3, 2), got (2, 3)"),
        (torch.ones(1), torch.tensor(1.0), "shape", "expected shape (), got (1,)"),
        ([1, 2], [1.0, 2.0], "dtype", "expected float values, got integer values"),
        ([True, False], [1, 0], "dtype", "expected integer values, got bool values"),
        ([1, 2, 4], [1, 2, 3], "values", "at index 2 expected 3, got 4 (1 of 3 differ)"),
        ([1.0, 2.1], [1.0, 2.0], "values", "at index 1 expected 2, got 2.1"),
        ([[1.0], [2.1]], [[1.0], [2.0]], "values", "at index (1, 0)"),
        ([1.0, NAN], [1.0, 2.0], "nan", "expected 2, got nan"),
        ([1.0, 2.0], [1.0, NAN], "nan", "expected nan, got 2"),
        ([NAN], [NAN], "nan", "both are NaN"),
        ([INF], [-INF], "values", "expected -inf, got inf"),
        ([1e30], [INF], "values", "expected inf"),
        ([INF], [1e30], "values", "got inf"),
        (None, [1.0], "type", "got None"),
        ([1.0], None, "type", "expected None"),
        ("a", "b", "values", "expected 'b', got 'a'"),
        ([[1], [2, 3]], [[1], [2, 4]], "values", "[1]: at index 1 expected 4, got 3"),
        (([1.0], 2), ([1.0], 3), "values", "[1]: expected 3, got 2"),
        (([1.0],), ([1.0], [2.0, 3.0]), "shape", "expected 2 items, got 1"),
        ({"a": 1}, {"b": 1}, "shape", "expected keys ['b'], got ['a']"),
        ({"a": 1}, {"a": 2}, "values", "['a']: expected 2, got 1"),
        ([], [], "empty", "nothing was compared"),
        (torch.ones(0, 3), torch.ones(0, 3), "empty", "nothing was compared"),
        (2**60 + 1, 2**60, "values", f"expected {2**60}, got {2**60 + 1}"),
        (1.00001, 1.0, "values", "expected 1, got 1.00001"),
        (1.0000025, 1.0, "values", "expected 1.0, got 1.0000025"),
    ],
)
def test_same_fails(mine, reference, kind, says):
    with pytest.raises(CheckFailed) as failed:
        check.same(mine, reference, name="x", atol=1e-6, rtol=1e-6)
    assert failed.value.property == kind
    assert says in str(failed.value) and str(failed.value).startswith("x: ")


def test_same_fails_on_every_single_perturbed_element():
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    for place in np.ndindex(*x.shape):
        changed = x.clone()
        changed[place] *= 1.01
        with pytest.raises(CheckFailed) as failed:
            check.same(changed, x)
        assert failed.value.example == place


def test_same_accepts_nan_only_when_told(capsys):
    check.same([1.0, NAN], [1.0, NAN], equal_nan=True)
    with pytest.raises(CheckFailed):
        check.same([NAN, 1.0], [1.0, NAN], equal_nan=True)
    check.same([INF, -INF], [INF, -INF])
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_exact_integers_are_not_compared_as_floats():
    found = difference(float(2**60), 2**60 + 1, strict_family=False)
    assert found is not None
    assert difference(6.0, 6, strict_family=False) is None


def test_render_is_short():
    assert render(torch.arange(6).reshape(2, 3)) == "[[0, 1, 2], [3, 4, 5]]"
    assert render(torch.zeros(50, 50)).startswith("shape (50, 50): 0, 0, 0, 0")
    assert render((1.5, [True, None])) == "(1.5, [True, None])"
    assert render({"a": [1, 2], "b": True}) == "a: [1, 2]\nb: True"


# ── check.<task> ─────────────────────────────────────────────────────────────────────────────


def failure_of(name, function):
    with pytest.raises(CheckFailed) as failed:
        getattr(check, name)(function)
    return failed.value


def test_a_right_answer_prints_one_line(capsys):
    check.causal_mask(TASKS["causal_mask"].answers[1])
    assert capsys.readouterr().out == (
        "passed: causal_mask — 4 properties, 10 examples (2 points)\n"
    )


def test_a_wrong_answer_says_what_where_and_why():
    error = failure_of("causal_mask", lambda T, S: torch.ones(T, S, dtype=torch.bool).tril())
    assert isinstance(error, AssertionError)
    assert error.task == "causal_mask"
    assert error.property == "a single new token reads everything stored"
    assert error.example.args == (1, 2)
    assert error.mutant == "anchored top left"
    assert "oldest keys" in error.diagnosis
    text = str(error)
    for part in (error.property, "num_new = 1", "num_stored = 2", error.mutant):
        assert part in text
    assert "expected  [[True, True]]" in text and "got       [[True, False]]" in text
    assert error._render_traceback_() == [f"CheckFailed: {text}"]


@pytest.mark.parametrize("name", TASKS)
def test_every_message_shows_expected_and_got(name):
    for mutant in TASKS[name].mutants:
        error = failure_of(name, mutant.function)
        assert "  expected  " in str(error) and "  got       " in str(error)
        assert error.diagnosis == mutant.diagnosis and error.property and error.example
        assert max(map(len, str(error).splitlines())) <= 102


def test_the_example_shown_is_the_first_that_fails():
    task = TASKS["token_passes"]
    error = failure_of("token_passes", task.mutants[0].function)
    passed = []
    for prop in task.properties:
        for example in prop.examples():
            if example.args == error.example.args:
                assert prop.name == error.property
                assert passed and all(passed)
                return
            passed.append(task.mutants[0].function(*example.args) == example.expected)


def raising(*args):
    values = [1, 2]
    return values[7]


def returning_nothing(*args):
    print("the answer is 3")


def unwritten(*args):
    raise NotImplementedError


def overwriting(q_BHTD, k_BGSD, v_BGSD):
    v_BGSD.mul_(2)
    return TASKS["attend"].answers[0](q_BHTD, k_BGSD, v_BGSD / 2)


def leaving(*args):
    raise SystemExit(3)


def raising_value(*args):
    raise ValueError("never")


def reading_early(k_buffer, v_buffer, num_tokens, k, v):
    TASKS["append_and_read"].answers[0](k_buffer, v_buffer, num_tokens, k, v)
    return k_buffer[:, :, :num_tokens], v_buffer[:, :, :num_tokens]


def too_few(num_prompt):
    return num_prompt


@pytest.mark.parametrize(
    ("name", "function", "says"),
    [
        ("token_passes", raising, "IndexError: list index out of range"),
        (
            "token_passes",
            raising,
            "at: return values[7]",
        ),
        ("token_passes", returning_nothing, "got       None: the function returned nothing"),
        ("token_passes", returning_nothing, "printed   'the answer is 3\\n'"),
        ("token_passes", unwritten, "token_passes is not written yet"),
        ("token_passes", leaving, "SystemExit: 3"),
        ("token_passes", too_few, "TypeError: too_few() takes 1 positional argument"),
        ("token_passes", lambda p, n: "3", "expected the integer 1, got a str"),
        ("token_passes", lambda p, n: [1, 2], "expected shape (), got (2,)"),
        ("attend", overwriting, "a changed argument: v_BGSD is not what it was"),
        ("generate", lambda m, p, n, s: p.append(0) or p, "a changed argument: prompt"),
        ("generate", lambda m, p, n, s: [m(torch.tensor(p))], "of shape [B, T]"),
        ("attend", lambda q, k, v: q[0], "expected shape (1, 1, 1, 2), got (1, 1, 2)"),
        ("attend", lambda q, k, v: torch.full_like(q, NAN), "got       [[[[nan, nan]]]]"),
        # Where a check drives the function: what it returned, and the reader's own line.
        ("append_and_read", returning_nothing, "got       None: the function returned nothing"),
        ("append_and_read", raising, "at: return values[7]"),
        ("append_and_read", reading_early, "differs   ['returned']: expected shape"),
        ("truncate", raising_value, "ValueError: never"),
        ("cached_generate", lambda m, p, n, s: p[0].append(0) or p, "a changed argument: prompts"),
        ("cached_generate", lambda m, p, n, s: p, "expected  new tokens: [[7]]\n            each"),
        ("draw", 5, "pass the function itself, check.draw(draw), not int 5"),
        ("draw", torch.ones(2), "pass the function itself"),
    ],
)
def test_what_goes_wrong_is_said(name, function, says):
    error = failure_of(name, function)
    assert says in str(error)
    assert error.task == name


def endless(*args):
    while True:
        pass


def endless_with_except(*args):
    while True:
        try:
            time.sleep(0.001)
        except Exception:
            continue


def endless_on_later_examples(num_prompt, num_new):
    while num_new > 1:
        pass
    return num_prompt


def endless_generation(model, prompt, max_new_tokens, stop_tokens=()):
    tokens = list(prompt)
    while True:
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))


@pytest.mark.parametrize("function", [endless, endless_with_except, endless_on_later_examples])
def test_a_call_that_does_not_end_is_stopped(monkeypatch, function):
    monkeypatch.setattr(examine, "CALL_SECONDS", 0.3)
    start = time.monotonic()
    error = failure_of("token_passes", function)
    assert "no result within 0.3 seconds" in str(error)
    assert error.diagnosis is None
    assert time.monotonic() - start < 5


def test_a_generation_without_end_is_an_error_and_no_wait():
    error = failure_of("generate", endless_generation)
    assert "RuntimeError: the model was called more than 100 times" in str(error)


def test_printing_is_no_mistake_and_is_not_shown(capsys):
    def chatty(num_prompt, num_new):
        print("looking at", num_prompt, num_new)
        return TASKS["token_passes"].answers[0](num_prompt, num_new)

    check.token_passes(chatty)
    assert capsys.readouterr().out == (
        "passed: token_passes — 4 properties, 13 examples (1 point)\n"
    )


def test_a_check_without_examples_never_passes():
    task = TASKS["causal_mask"]
    nothing = Property("nothing", lambda: [])
    for properties in ((), (nothing,), (*task.properties, nothing)):
        with pytest.raises(ValueError, match="has no"):
            check.grade(replace(task, properties=properties), task.answers[0])


def test_an_example_that_expects_something_else_fails_a_right_answer():
    task = TASKS["token_passes"]
    wrong = Property("wrong", lambda: [Example((1, 1), 2)])
    with pytest.raises(CheckFailed):
        check.grade(replace(task, properties=(*task.properties, wrong)), task.answers[0])


def test_nan_is_a_result_only_where_a_task_says_so():
    task = TASKS["truncate"]
    assert examine.examine(task, task.answers[0]).passed
    strict = examine.examine(replace(task, equal_nan=False), task.answers[0])
    assert strict.failure is not None and "both are NaN" in strict.failure.message()


def test_a_driven_function_gets_buffers_of_its_own():
    task = TASKS["append_and_read"]
    for prop in task.properties:
        for example in prop.examples():
            before = [x.clone() for x in example.args[:2]]
            for _ in range(2):
                result = task.call(task.answers[0], *example.args)
                assert difference(result, example.expected, equal_nan=True) is None
            assert difference(list(example.args[:2]), before, equal_nan=True) is None


def test_an_unknown_task_suggests_near_ones():
    with pytest.raises(AttributeError, match="did you mean causal_mask"):
        _ = check.casual_mask
    for ask in (check.hint, check.reveal):
        with pytest.raises(ValueError, match="did you mean attend"):
            ask("atend")
    with pytest.raises(ValueError, match="tasks: token_passes"):
        check.hint("zzz")
    assert not hasattr(check, "no_such_thing") and not hasattr(check, "_private")


def test_task_names_do_not_hide_the_modules_own():
    assert not set(TASKS) & set(vars(check))
    assert {*TASKS, "same", "hint", "reveal", "progress"} <= set(dir(check))
    assert check.attend.__doc__.startswith("Softmax attention")


def test_two_tasks_of_one_name_are_an_error(monkeypatch):
    from labkit.tasks import ch01

    monkeypatch.setattr(ch01, "TASKS", (*ch01.TASKS, ch01.TASKS[0]))
    with pytest.raises(ValueError, match="two tasks are named 'token_passes'"):
        tasks.all_tasks.__wrapped__()


# ── hint, reveal, progress ───────────────────────────────────────────────────────────────────


def test_hints_come_one_a_call_and_then_the_solution(capsys):
    task = TASKS["draw"]
    check.reveal("draw")
    assert "3 hints left" in capsys.readouterr().out
    for i, text in enumerate(task.hints, start=1):
        check.hint("draw")
        assert capsys.readouterr().out == f"hint {i} of 3: {text}\n"
    check.hint("draw")
    assert "check.reveal('draw')" in capsys.readouterr().out
    check.reveal("draw")
    scope = {"torch": torch}
    exec(capsys.readouterr().out, scope)
    assert examine.examine(task, scope["draw"]).passed


def test_hints_do_not_give_the_solution_away_at_once():
    for task in TASKS.values():
        assert len(set(task.hints)) == 3
        assert "return" not in task.hints[0]


def line_of(table, name):
    return next(line.split() for line in table.splitlines() if line.startswith(name))


def test_progress_counts(capsys):
    right = TASKS["draw"].answers[0]
    failure_of("draw", unwritten)  # not an attempt
    failure_of("draw", raising)
    check.hint("draw")
    check.draw(right)
    check.reveal("rotate", force=True)
    check.rotate(TASKS["rotate"].answers[0])
    failure_of("attend", raising)
    capsys.readouterr()
    check.progress()
    shown = capsys.readouterr().out
    assert line_of(shown, "draw") == ["draw", "passed", "3/3", "2", "1/3"]
    assert line_of(shown, "rotate") == ["rotate", "passed,", "revealed", "0/3", "1", "0/3"]
    assert line_of(shown, "attend") == ["attend", "open", "0/4", "1", "0/3"]
    assert line_of(shown, "causal_mask") == ["causal_mask", "not", "tried", "0/2", "0", "0/3"]
    total = sum(t.points for t in TASKS.values() if t.chapter == 1)
    assert line_of(shown, "total") == ["total", f"3/{total}"]
    check.progress(1)
    assert capsys.readouterr().out == shown
    with pytest.raises(ValueError, match="no exercises for chapter 99"):
        check.progress(99)


def test_looking_at_the_solution_after_passing_costs_nothing(capsys):
    check.draw(TASKS["draw"].answers[0])
    check.reveal("draw")
    check.progress()
    shown = capsys.readouterr().out.split("\n\n")[-1]
    assert line_of(shown, "draw")[:3] == ["draw", "passed", "3/3"]


# ── solutions/ ───────────────────────────────────────────────────────────────────────────────

SOLUTIONS = sorted((ROOT / "solutions").glob("*.md"))


def cells_by_task(path):
    """(answer cell, check cell) of each task, in the order of the notebook."""
    notebook = pairing.read_source(path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    found = {}
    for before, cell in pairwise(code):
        if "check" in pairing.tags(cell):
            found[pairing.called_task(cell.source)] = (before.source, cell.source)
    return code[0].source, found


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda p: p.stem)
def test_solutions_pass_and_what_is_left_without_them_fails(path, capsys):
    setup, found = cells_by_task(path)
    chapter = int(path.stem[:2])
    assert list(found) == [t.name for t in TASKS.values() if t.chapter == chapter]
    for name, (answer, call) in found.items():
        scope: dict = {}
        exec(setup, scope)
        exec(pairing.cut_answer(answer), scope)
        with pytest.raises(CheckFailed, match="not written yet"):
            exec(call, scope)
        exec(answer, scope)
        exec(call, scope)
        assert f"passed: {name}" in capsys.readouterr().out
        assert scope[name].__doc__, "a stub says what it is for"


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda p: p.stem)
def test_solutions_state_minutes_points_level_and_the_sentence(path):
    text = path.read_text(encoding="utf-8").replace("`", "")
    for task in TASKS.values():
        if task.chapter != int(path.stem[:2]):
            continue
        points = "1 point" if task.points == 1 else f"{task.points} points"
        assert (
            f"## {task.title}\n\n{task.minutes} minutes · {points} · level {task.level}\n\n"
            f"{task.spec}\n"
        ) in text
    chapter = [t for t in TASKS.values() if t.chapter == int(path.stem[:2])]
    assert f"; {sum(t.points for t in chapter)} points." in text


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda p: p.stem)
def test_signatures_agree(path):
    import ast

    _, found = cells_by_task(path)
    for name, (answer, _) in found.items():
        theirs = ast.parse(answer).body[0]
        ours = ast.parse(TASKS[name].stub()).body[0]
        assert ast.dump(theirs.args) == ast.dump(ours.args)
        assert ast.dump(theirs.returns) == ast.dump(ours.returns)
