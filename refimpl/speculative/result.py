"""What speculative decoding gives back: the tokens, and what each round took."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Round:
    """One row's share of one target pass: drafts proposed, drafts accepted, tokens given out."""

    proposed: int
    accepted: int
    emitted: int


@dataclass(frozen=True)
class Speculation:
    """What came out, and what it took.

    ``tokens`` are those that :func:`refimpl.decode.generate` returns: one list for one prompt, else
    one a row. ``finished`` says for each row ``"stop"`` or ``"length"``; ``rounds`` lists each
    row's rounds; ``target_passes`` counts passes of the target, the one over the prompt included.
    """

    tokens: list[int] | list[list[int]]
    finished: list[str]
    rounds: list[list[Round]]
    target_passes: int

    @property
    def proposed(self) -> int:
        """Draft tokens, all rows."""
        return sum(done.proposed for row in self.rounds for done in row)

    @property
    def accepted(self) -> int:
        """Draft tokens that stood, all rows; those behind a stop token included."""
        return sum(done.accepted for row in self.rounds for done in row)

    @property
    def acceptance(self) -> float:
        """Accepted over examined: an estimate of α. A block is examined up to its first failure,
        so this is more than accepted over proposed. NaN if nothing was proposed.
        """
        failed = sum(done.accepted < done.proposed for row in self.rounds for done in row)
        examined = self.accepted + failed
        return self.accepted / examined if examined else float("nan")

    @property
    def tokens_per_round(self) -> float:
        """Tokens that a row gained in a round, on average; NaN if there was none."""
        emitted = [done.emitted for row in self.rounds for done in row]
        return sum(emitted) / len(emitted) if emitted else float("nan")
