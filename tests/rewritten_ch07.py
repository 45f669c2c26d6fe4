"""Chapter 07's mistakes as somebody else would write them: the check knows them by what they do."""

import math

import torch

WIDTH = {"FP32": 4, "BF16": 2, "FP16": 2, "FP8": 1}


def blocks_with_room_for_the_next(num_tokens, block_size):
    return math.ceil((num_tokens + 1) / block_size)


def blocks_that_are_full(num_tokens, block_size):
    return len([end for end in range(1, num_tokens + 1) if end % block_size == 0])


def slot_behind_the_first(block_table, position, block_size):
    first = block_table[0] * block_size
    return list(range(first, first + block_size * len(block_table)))[position]


def slot_of_the_block_before(block_table, position, block_size):
    block = block_table[math.ceil(position / block_size) - 1]
    return block_size * block + position % block_size


def row_in_a_kernel(block_table, position, head, num_kv_heads, block_size, head_dim):
    block = torch.tensor([block_table[position // block_size]], dtype=torch.int32)
    row = (block * num_kv_heads + head) * block_size + position % block_size
    return (row * head_dim).item()


def row_of_tokens_before_heads(block_table, position, head, num_kv_heads, block_size, head_dim):
    slot = block_table[position // block_size] * block_size + position % block_size
    return slot * num_kv_heads * head_dim + head * head_dim


def gather_by_mask(k_pool_NGPD, block_table, num_tokens):
    P = k_pool_NGPD.shape[2]
    wanted_N = torch.zeros(len(k_pool_NGPD), dtype=torch.bool)
    wanted_N[block_table[: math.ceil(num_tokens / P)]] = True
    return k_pool_NGPD[wanted_N].permute(1, 0, 2, 3).flatten(1, 2)[:, :num_tokens]


def gather_by_view(k_pool_NGPD, block_table, num_tokens):
    G, P, D = k_pool_NGPD.shape[1:]
    held = torch.stack([k_pool_NGPD[b] for b in block_table[: math.ceil(num_tokens / P)]])
    return held.view(G, -1, D)[:, :num_tokens]


def gather_every_block(k_pool_NGPD, block_table, num_tokens):
    blocks = [b for i, b in enumerate(block_table) if i * k_pool_NGPD.shape[2] < num_tokens]
    return torch.cat([k_pool_NGPD[b] for b in blocks], dim=1)


def frees_every_empty_slot(lengths, max_tokens, P, L, H, G, D, dtype):
    empty = 0
    for n in lengths:
        empty += max_tokens - n
    return f"{empty * L * G * 2 * D * WIDTH[dtype] / 1000} kB"


def frees_of_one_long_sequence(lengths, max_tokens, P, L, H, G, D, dtype):
    blocks = math.ceil(sum(lengths) / P)
    return (
        f"{(max_tokens * len(lengths) / P - blocks) * P * 2 * L * G * D * WIDTH[dtype]:.0f} bytes"
    )


def waste_of_a_fair_guess(P, num_sequences, L, H, G, D, dtype):
    fills = [P - filled for filled in range(P + 1)]
    per_slot = 2 * L * G * D * WIDTH[dtype]
    return f"{num_sequences * sum(fills) / len(fills) * per_slot} B"


def waste_at_most(P, num_sequences, L, H, G, D, dtype):
    per_slot = 2 * L * G * D * WIDTH[dtype]
    return f"{num_sequences * max(P - filled for filled in range(1, P + 1)) * per_slot} B"


def append_without_looking(block_table, num_tokens, ref_counts, free, block_size):
    if len(block_table) * block_size == num_tokens:
        if not free:
            raise ValueError("the pool is full")
        block_table.append(free.pop())
        ref_counts[block_table[-1]] += 1
    return block_table[num_tokens // block_size], -1


def append_with_a_leak(block_table, num_tokens, ref_counts, free, block_size):
    begins = not num_tokens % block_size
    if not begins and ref_counts[block_table[-1]] < 2:
        return block_table[-1], -1
    if not free:
        raise ValueError("the pool is full")
    new = free.pop()
    ref_counts[new] += 1
    old = -1 if begins else block_table.pop()
    block_table += [new]
    return new, old


def append_sharing_first(block_table, num_tokens, ref_counts, free, block_size):
    shared = bool(block_table) and ref_counts[block_table[-1]] > 1
    if not shared and num_tokens % block_size:
        return block_table[-1], -1
    if not free:
        raise ValueError("the pool is full")
    new = free.pop()
    ref_counts[new] = 1
    if not shared:
        block_table.append(new)
        return new, -1
    old = block_table[-1]
    ref_counts[old] -= 1
    block_table[-1] = new
    return new, old


def free_entry_by_entry(block_table, ref_counts, free):
    for block in block_table:
        if ref_counts[block] == 0 and block_table.count(block) == 1:
            raise ValueError("freed before")
    before = len(free)
    while block_table:
        block = block_table.pop()
        ref_counts[block] -= 1
        if not ref_counts[block]:
            free.append(block)
    return len(free) - before


def free_everything_named(block_table, ref_counts, free):
    named = set(block_table)
    if not all(ref_counts[block] for block in named):
        raise ValueError("freed before")
    for block in named:
        ref_counts[block] -= 1
    free.extend(named)
    return len(named)


def free_without_a_check(block_table, ref_counts, free):
    back = 0
    for block in set(block_table):
        ref_counts[block] = ref_counts[block] - 1
        if ref_counts[block] == 0:
            free.insert(0, block)
            back += 1
    return back


def truncate_to_the_slot(block_table, num_tokens, num_kept, ref_counts, free, block_size):
    if num_tokens < num_kept:
        raise ValueError("too many")
    back, last_entry = 0, num_kept // block_size
    for block in block_table[last_entry + 1 :]:
        ref_counts[block] -= 1
        if ref_counts[block] == 0:
            free.append(block)
            back += 1
    del block_table[last_entry + 1 :]
    return back


def truncate_by_rejected(block_table, num_tokens, num_kept, ref_counts, free, block_size):
    rejected, back = num_tokens - num_kept, 0
    if rejected < 0:
        raise ValueError("too many")
    while rejected >= block_size:
        block = block_table.pop()
        rejected -= block_size
        ref_counts[block] -= 1
        if not ref_counts[block]:
            free.append(block)
            back += 1
    return back


def truncate_and_hand_out(block_table, num_tokens, num_kept, ref_counts, free, block_size):
    if num_tokens < num_kept:
        raise ValueError("too many")
    stay = math.ceil(num_kept / block_size)
    gone = [block_table.pop() for _ in range(len(block_table) - stay)]
    for block in gone:
        ref_counts[block] -= 1
        free.append(block)
    return len(gone)


def reorder_free_then_fork(tables, parents, ref_counts, free):
    old = [tuple(table) for table in tables]
    for block in [block for table in old for block in table]:
        ref_counts[block] -= 1
        if not ref_counts[block]:
            free.append(block)
    new = []
    for parent in parents:
        new.append([*old[parent]])
        for block in old[parent]:
            ref_counts[block] += 1
    return new


def reorder_by_reference(tables, parents, ref_counts, free):
    for beam, table in enumerate(tables):
        for block in table:
            ref_counts[block] += parents.count(beam) - 1
    held = [block for block, count in enumerate(ref_counts) if count]
    free.extend({b for table in tables for b in table} - set(held))
    return list(map(tables.__getitem__, parents))


def reorder_in_place(tables, parents, ref_counts, free):
    before = {b for table in tables for b in table}
    for beam, parent in enumerate(parents):
        tables[beam] = tables[parent].copy()
    for block in before:
        ref_counts[block] = sum(block in table for table in tables)
        if ref_counts[block] == 0:
            free.append(block)
    return tables


REWRITTEN = [
    ("blocks_needed", "one more behind a full block", blocks_with_room_for_the_next),
    ("blocks_needed", "rounded down", blocks_that_are_full),
    ("slot_of", "blocks taken as one run", slot_behind_the_first),
    ("slot_of", "positions counted from one", slot_of_the_block_before),
    ("row_offset", "wrapped at 32 bits", row_in_a_kernel),
    ("row_offset", "heads within slots", row_of_tokens_before_heads),
    ("gather_blocks", "blocks in the order of the pool", gather_by_mask),
    ("gather_blocks", "axes cut anew", gather_by_view),
    ("gather_blocks", "tail not cut", gather_every_block),
    ("paging_frees", "freed to the token", frees_every_empty_slot),
    ("paging_frees", "requests packed together", frees_of_one_long_sequence),
    ("last_block_waste", "half a block", waste_of_a_fair_guess),
    ("last_block_waste", "the worst case", waste_at_most),
    ("append_slot", "shared block written to", append_without_looking),
    ("append_slot", "source still counted", append_with_a_leak),
    ("append_slot", "full block copied", append_sharing_first),
    ("free_table", "counted by table entry", free_entry_by_entry),
    ("free_table", "shared blocks freed", free_everything_named),
    ("free_table", "double free goes through", free_without_a_check),
    ("truncate_table", "block kept at the boundary", truncate_to_the_slot),
    ("truncate_table", "whole blocks of rejected tokens", truncate_by_rejected),
    ("truncate_table", "shared block freed", truncate_and_hand_out),
    ("reorder_beams", "let go before held", reorder_free_then_fork),
    ("reorder_beams", "children share one list", reorder_by_reference),
    ("reorder_beams", "overwritten while being read", reorder_in_place),
]
