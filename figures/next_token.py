"""``python -m figures.next_token``: the real distribution behind ``01_sampling_filters``.

Runs the model once and writes ``figures/data/01_next_token.json``; drawing needs only that file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PROMPT = "She opened the door and saw a"
MODEL = "smollm2-135m"
SHOWN = 12
SETTINGS: dict[str, dict[str, float]] = {
    "τ = 1": {},
    "τ = 0.7": {"temperature": 0.7},
    "top-k 5": {"top_k": 5},
    "top-p 0.8": {"top_p": 0.8},
    "min-p 0.1": {"min_p": 0.1},
}
PATH = Path(__file__).parent / "data" / "01_next_token.json"


def measure() -> dict[str, Any]:
    """The most likely next tokens, and what each setting leaves of their probabilities."""
    import torch

    from refimpl import weights
    from refimpl.sampling import Sampler

    model, tokenizer = weights.load(MODEL, dtype=torch.float32)
    prompt = tokenizer.encode(PROMPT)
    with torch.no_grad():
        logits_BV = model(torch.tensor([prompt]))[:, -1].double()
    order = torch.sort(logits_BV[0], descending=True, stable=True).indices[:SHOWN]
    panels = []
    for name, setting in SETTINGS.items():
        probs_V = Sampler(**setting).probabilities(logits_BV)[0]
        shown = probs_V[order]
        panels.append(
            {
                "name": name,
                "setting": setting,
                "kept": int((probs_V > 0).sum()),
                "probabilities": [round(float(p), 6) for p in shown],
                "others": abs(round(float(probs_V.sum() - shown.sum()), 6)),
            }
        )
    return {
        "model": MODEL,
        "weights": "Q4_1 file, computed in fp32",
        "prompt": PROMPT,
        "prompt_ids": prompt,
        "vocabulary": int(logits_BV.shape[-1]),
        "ids": order.tolist(),
        "tokens": [tokenizer.decode([int(i)]) for i in order],
        "panels": panels,
        "made_by": "python -m figures.next_token",
    }


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    print(f"wrote {PATH.name}")
