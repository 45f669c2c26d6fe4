"""How much memory a computation holds at its worst, beyond what was there before it."""

from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes that tensors made by ``work`` occupied at one time, its result included.

    Exact and the same in every run: storages are counted when an operator returns them and taken
    off when they are freed, at any nesting and in the backward pass too. Views cost nothing, and
    neither does what existed before. Scratch memory inside a single operator is not seen; torch's
    plain products, sums and softmax need next to none, its fused attention some.
    """
    with _LiveStorages() as live:
        result = work()
        live.free_dead()
    del result
    return live.peak


class _LiveStorages(TorchDispatchMode):
    """Sees every operator; knows which storages it made are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._now = 0
        # A weak reference keeps the address from being used again while it stands here.
        self._known: dict[StorageWeakRef, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch imports its compiler at the first operator, which takes seconds and brings
        # Triton in, in whichever mode it finds.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict | None = None
    ) -> Any:
        self.free_dead()
        for leaf in tree_leaves((args, kwargs)):
            self._see(leaf, made_here=False)
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            self._see(leaf, made_here=True)
        self.peak = max(self.peak, self._now)
        return result

    def free_dead(self) -> None:
        for storage in [storage for storage in self._known if storage.expired()]:
            self._now -= self._known.pop(storage)

    def _see(self, leaf: object, *, made_here: bool) -> None:
        if not isinstance(leaf, torch.Tensor):
            return
        storage = leaf.untyped_storage()
        reference = StorageWeakRef(storage)
        if reference not in self._known:
            self._known[reference] = storage.nbytes() if made_here else 0
            self._now += self._known[reference]
