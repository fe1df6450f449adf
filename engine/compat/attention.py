"""Attention metadata, which a connector gets with each layer to save."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kvconform.engine.compat.fit import fitting

try:
    from vllm.v1.attention.backend import CommonAttentionMetadata
except ImportError:  # until 0.13
    from vllm.v1.attention.backends.utils import CommonAttentionMetadata


def attention_metadata(
    starts: Sequence[int], lengths: Sequence[int], tables: Sequence[np.ndarray], block_size: int
) -> CommonAttentionMetadata:
    """Attention metadata of a batch, as the runner builds it from its block tables.

    Args:
        starts: per request, computed tokens before this step.
        lengths: per request, tokens in this step.
        tables: per request, block ids.
        block_size: tokens per block.
    """
    firsts, counts = np.asarray(starts), np.asarray(lengths)
    ends = firsts + counts
    query = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=query[1:])
    width = max((len(t) for t in tables), default=0)
    padded = np.zeros((len(tables), width), dtype=np.int32)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    # Per token: its request, its position, and so its slot.
    rows = np.repeat(np.arange(len(counts)), counts)
    positions = np.arange(len(rows)) + (firsts - query[:-1])[rows]
    slots = padded[rows, positions // block_size].astype(np.int64) * block_size
    slots += positions % block_size
    query_start_loc = torch.from_numpy(query)
    seq_lens = torch.from_numpy(ends.astype(np.int32))
    return CommonAttentionMetadata(
        **fitting(
            CommonAttentionMetadata,
            query_start_loc=query_start_loc,
            query_start_loc_cpu=query_start_loc,
            seq_lens=seq_lens,
            seq_lens_cpu=seq_lens,
            num_computed_tokens_cpu=torch.from_numpy(firsts.astype(np.int32)),
            num_reqs=len(starts),
            num_actual_tokens=len(rows),
            max_query_len=max(lengths, default=0),
            max_seq_len=int(ends.max(initial=0)),
            block_table_tensor=torch.from_numpy(padded),
            slot_mapping=torch.from_numpy(slots),
        )
    )
