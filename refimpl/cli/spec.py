"""``spec``: what speculative decoding buys, in closed form.

``--json`` prints one object: ``alpha``, ``gamma``, ``cost_ratio``, ``verify_cost`` as given,
``expected_tokens`` (from one pass of the target), ``speedup`` (times plain decoding; below 1 is
slower), ``operations`` (times the arithmetic of plain decoding, a draft's own left out),
``best_gamma`` (0 where none beats plain decoding) and ``best_speedup``, ``acceptance_needed``: a
list of objects with ``times`` and the least ``alpha`` at which some gamma is that many times faster
(null where none is), and ``sweep``: a list of objects with ``gamma``, ``expected_tokens`` and
``speedup``.
"""

import argparse
import json
from typing import Any

from refimpl.cli import sizes, text

HELP = "expected tokens, speed-up and best block length of speculative decoding"
SWEEP = (1, 2, 3, 4, 5, 6, 8, 12, 16, 20)
TIMES = (2, 3, 4, 5)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The draft, the block, what a wider pass costs."""
    parser.add_argument(
        "alpha", type=text.number, metavar="ALPHA", help="chance that a draft token is accepted"
    )
    parser.add_argument(
        "--gamma", type=text.whole, default=4, metavar="N", help="drafts in a block; default: 4"
    )
    parser.add_argument(
        "--cost",
        type=text.number,
        default=0.02,
        metavar="C",
        help="time of a draft token over that of a target step; default: 0.02",
    )
    parser.add_argument(
        "--verify-cost",
        type=text.number,
        default=1.0,
        metavar="V",
        help="time of the verifying pass over that of a target step; default: 1, it only reads",
    )
    parser.add_argument("--json", action="store_true", help="one object for scripts")


def run(options: argparse.Namespace) -> int:
    """Print the table, or the object."""
    report = _report(options.alpha, options.gamma, options.cost, options.verify_cost)
    print(json.dumps(report) if options.json else _text(report))
    return 0


def _report(alpha: float, gamma: int, cost: float, verify_cost: float) -> dict[str, Any]:
    # Imported late: the package brings torch with it, which --help does not wait for.
    from refimpl.speculative import (
        acceptance_needed,
        best_gamma,
        expected_tokens,
        operations,
        speedup,
    )

    best = best_gamma(alpha, cost, verify_cost)
    return {
        "alpha": alpha,
        "gamma": gamma,
        "cost_ratio": cost,
        "verify_cost": verify_cost,
        "expected_tokens": expected_tokens(alpha, gamma),
        "speedup": speedup(alpha, gamma, cost, verify_cost),
        "operations": operations(alpha, gamma),
        "best_gamma": best,
        "best_speedup": speedup(alpha, best, cost, verify_cost) if best else 1.0,
        "acceptance_needed": [
            {"times": times, "alpha": acceptance_needed(times, cost, verify_cost)}
            for times in TIMES
        ],
        "sweep": [
            {
                "gamma": number,
                "expected_tokens": expected_tokens(alpha, number),
                "speedup": speedup(alpha, number, cost, verify_cost),
            }
            for number in SWEEP
        ],
    }


def _text(report: dict[str, Any]) -> str:
    head = (
        f"alpha {report['alpha']:g}, gamma {report['gamma']}, a draft at {report['cost_ratio']:g} "
        f"and a verifying pass at {report['verify_cost']:g} of a target step"
    )
    rows = [
        ["tokens from a target pass", f"{report['expected_tokens']:.2f}"],
        ["times plain decoding", f"{report['speedup']:.2f}"],
        ["times its arithmetic", f"{report['operations']:.2f}"],
    ]
    best = report["best_gamma"]
    verdict = "No block up to 20 beats plain decoding."
    if best:
        verdict = f"Best gamma up to 20: {best}, {report['best_speedup']:.2f} times plain decoding."
    sweep = [["gamma", "tokens", "times plain"]]
    for row in report["sweep"]:
        figures = (f"{row['expected_tokens']:.2f}", f"{row['speedup']:.2f}")
        sweep.append([f"{row['gamma']}", *figures])
    needed = [
        f"{row['times']} times: {'never' if row['alpha'] is None else format(row['alpha'], '.2f')}"
        for row in report["acceptance_needed"]
    ]
    lines = [head, "", sizes.table(rows), "", verdict, "", sizes.table(sweep), ""]
    lines += ["Alpha needed at the best gamma, same costs", "  ".join(needed), ""]
    lines += ["Each draft is taken to be accepted independently of the others, and the verifying"]
    return "\n".join([*lines, "pass to cost the same for every gamma."])
