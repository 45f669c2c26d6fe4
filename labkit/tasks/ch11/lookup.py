"""Exercise of chapter 11 on a drafter without a model: what followed the same words before."""

from labkit.tasks import Example, Mutant, Property, Task

# ── prompt_lookup ─────────────────────────────────────────────────────────────────────────────


def _lookup_examples(*rows: tuple[list[int], int, int]) -> list[Example]:
    """Every earlier place with what follows it; the longest wins, the latest of equals."""
    examples = []
    for tokens, ngram, num_draft in rows:
        text = list(map(str, tokens))
        end = " ".join(["", *text[-ngram:], ""])
        found: list[int] = []
        for stop in range(ngram, len(tokens)):  # what ends before the row's own end
            before = " ".join(["", *text[:stop], ""])
            behind = tokens[stop:][:num_draft]
            if before.endswith(end) and len(behind) >= len(found):
                found = behind
        examples.append(Example((tokens, ngram, num_draft), found))
    return examples


def _lookup_plain(tokens, ngram, num_draft):
    """From the end to the beginning, until a place has enough behind it."""
    found = []
    for stop in range(len(tokens) - 1, ngram - 1, -1):
        if tokens[stop - ngram : stop] == tokens[-ngram:]:
            found = tokens[stop : stop + num_draft]
            if len(found) == num_draft:
                break
    return found


def _lookup_listed(tokens, ngram, num_draft):
    starts = range(len(tokens) - ngram)
    places = [i + ngram for i in starts if tokens[i : i + ngram] == tokens[len(tokens) - ngram :]]
    if not places:
        return []
    enough = [place for place in places if place + num_draft <= len(tokens)]
    place = enough[-1] if enough else places[0]
    return tokens[place : place + num_draft]


def _places(tokens: list[int], ngram: int) -> list[int]:
    """Where the last ``ngram`` tokens end for an earlier time."""
    end = tokens[len(tokens) - ngram :]
    return [s for s in range(ngram, len(tokens)) if tokens[s - ngram : s] == end]


def _chosen(places: list[int], tokens: list[int], num_draft: int) -> list[int]:
    enough = [place for place in places if place + num_draft <= len(tokens)]
    place = enough[-1] if enough else min(places, default=len(tokens))
    return tokens[place : place + num_draft]


def _lookup_itself(tokens, ngram, num_draft):
    return []


def _lookup_first(tokens, ngram, num_draft):
    places = _places(tokens, ngram)
    return tokens[places[0] : places[0] + num_draft] if places else []


def _lookup_latest(tokens, ngram, num_draft):
    places = _places(tokens, ngram)
    return tokens[places[-1] : places[-1] + num_draft] if places else []


def _lookup_with_words(tokens, ngram, num_draft):
    starts = [place - ngram for place in _places(tokens, ngram)]
    return _chosen(starts, tokens, num_draft)


def _lookup_one_less(tokens, ngram, num_draft):
    return _chosen(_places(tokens, max(1, ngram - 1)), tokens, num_draft)


def _lookup_one_more(tokens, ngram, num_draft):
    return _chosen(_places(tokens, ngram + 1), tokens, num_draft)


def _lookup_apart(tokens, ngram, num_draft):
    places = [place for place in _places(tokens, ngram) if place <= len(tokens) - ngram]
    return _chosen(places, tokens, num_draft)


def _lookup_whole_only(tokens, ngram, num_draft):
    found = _chosen(_places(tokens, ngram), tokens, num_draft)
    return found if len(found) == num_draft else []


def _lookup_goes_around(tokens, ngram, num_draft):
    found = _chosen(_places(tokens, ngram), tokens, num_draft)
    return (found + tokens * num_draft)[:num_draft] if found else []


def _lookup_repeats(tokens, ngram, num_draft):
    found = _chosen(_places(tokens, ngram), tokens, num_draft)
    return (found * num_draft)[:num_draft]


PROMPT_LOOKUP = Task(
    name="prompt_lookup",
    chapter=11,
    title="Drafts without a model",
    minutes=8,
    points=3,
    level=2,
    spec=(
        "Up to num_draft tokens that followed the last ngram tokens where these stood in the row "
        "before: of several places the latest that has num_draft tokens behind it, or, where none "
        "has, the earliest; what follows a place ends with the row; [] where they never stood "
        "there before."
    ),
    signature="prompt_lookup(tokens: list[int], ngram: int, num_draft: int) -> list[int]",
    properties=(
        Property(
            "what followed the same words before",
            lambda: _lookup_examples(([5, 6, 7, 5, 6], 2, 3)),
        ),
        Property(
            "no more than num_draft tokens",
            lambda: _lookup_examples(([5, 6, 7, 8, 5, 6], 2, 1), ([5, 6, 7, 8, 5, 6], 2, 3)),
        ),
        Property(
            "the last ngram tokens, no more and no fewer",
            lambda: _lookup_examples(
                ([1, 5, 6, 7, 8, 2, 5, 6], 2, 2),
                ([9, 5, 6, 7, 8, 3, 6, 4, 1, 5, 6], 2, 2),
                ([5, 6, 7, 8, 6, 2, 4, 6], 1, 2),
            ),
        ),
        Property(
            "of several places the latest",
            lambda: _lookup_examples(
                ([5, 6, 7, 5, 6, 8, 5, 6], 2, 1), ([4, 5, 6, 9, 1, 4, 5, 6, 3, 2, 4, 5, 6], 3, 2)
            ),
        ),
        Property(
            "of several places one that has enough behind it",
            lambda: _lookup_examples(
                ([5, 6, 7, 8, 5, 6, 9, 5, 6], 2, 4), ([5, 6, 7, 5, 6, 9, 5, 6], 2, 7)
            ),
        ),
        Property(
            "a text that goes round in a circle",
            lambda: _lookup_examples(
                ([1, 2, 1, 2, 1], 3, 2), ([4, 4, 4, 4], 1, 2), ([4, 4, 4, 4, 4], 2, 3)
            ),
        ),
        Property(
            "they never stood there before",
            lambda: _lookup_examples(([1, 2, 3], 2, 3), ([5, 6, 7, 8, 6, 5], 2, 3)),
            edge=True,
        ),
        Property(
            "a row that has hardly begun",
            lambda: _lookup_examples(([5], 2, 3), ([5], 1, 3), ([5, 5], 2, 3)),
            edge=True,
        ),
    ),
    hints=(
        "Go through the row from the end. Where did the last ngram tokens stand before, and what "
        "came next?",
        "A place that ends at stop matches if tokens[stop − ngram : stop] == tokens[−ngram:]. The "
        "row's own end, stop = len(tokens), is not an earlier place.",
        "For stop from len(tokens) − 1 down to ngram: on a match take tokens[stop : stop + "
        "num_draft], and leave the loop if that has num_draft tokens.",
    ),
    mutants=(
        Mutant(
            "finds the row's own end",
            "the last ngram tokens match themselves, at the very end: the search is over at once "
            "and nothing follows, so that nothing is ever drafted",
            _lookup_itself,
        ),
        Mutant(
            "first place",
            "the first place is the oldest: later ones, with enough behind them, are likelier to "
            "go on as the text does now",
            _lookup_first,
        ),
        Mutant(
            "latest place, whatever follows",
            "the latest place has too little behind it: in a text that repeats itself it is a "
            "token or two before the end, and as few are drafted where a whole block could be",
            _lookup_latest,
        ),
        Mutant(
            "begins with the words themselves",
            "the matched tokens are in the text already; drafted again, they are rejected at once",
            _lookup_with_words,
        ),
        Mutant(
            "one token less compared",
            "ngram − 1 tokens match in more places, which have less to do with this one",
            _lookup_one_less,
        ),
        Mutant(
            "one token more compared",
            "ngram + 1 tokens are asked to match: places are missed where only the last ngram do",
            _lookup_one_more,
        ),
        Mutant(
            "no overlap allowed",
            "an earlier place may share tokens with the row's end: in a short circle that is the "
            "only place there is",
            _lookup_apart,
        ),
        Mutant(
            "all or nothing",
            "fewer tokens than num_draft are a draft as well",
            _lookup_whole_only,
        ),
        Mutant(
            "filled up behind the end",
            "what follows a place ends with the row; tokens invented behind that cost their share "
            "of the pass, and are hardly ever accepted",
            _lookup_goes_around,
            also=(_lookup_repeats,),
        ),
    ),
    answers=(_lookup_plain, _lookup_listed),
)
