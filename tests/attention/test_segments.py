"""The layout of a batch: every row once, graphs apart, blocks of bounded size and little padding."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from difformer.attention.segments import CPU_POLICY, GPU_POLICY, Segments, _cut, as_segments


@given(st.lists(st.integers(0, 12), min_size=0, max_size=60))
def test_every_row_stands_in_one_place(graphs):
    batch = torch.tensor(graphs, dtype=torch.long)
    segments = Segments(batch)
    order = torch.cat([batch[:0], *(block.order for block in segments.blocks)])
    assert torch.equal(order.sort().values, torch.arange(len(batch)))
    for block in segments.blocks:
        owners = batch[block.rows]
        assert (owners == owners[:, :1]).all(), "a row of another graph"
        assert torch.equal(block.mask.sum(1), block.sizes)
        assert torch.equal(block.sizes, segments.sizes[owners[:, 0]])
        assert (block.place is None) == bool(block.mask.all())
        assert torch.equal(block.rows[block.mask], block.order)
        assert block.place is None or torch.equal(block.rows.flatten()[block.place], block.order)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_gather_undoes_pad(graphs):
    segments = Segments(torch.tensor(graphs))
    x = torch.randn(len(graphs), 2, 3)
    torch.testing.assert_close(segments.gather([block.pad(x) for block in segments.blocks]), x)
    for block in segments.blocks:
        assert (block.pad(x)[~block.mask] == 0).all()


@pytest.mark.parametrize("policy", [CPU_POLICY, GPU_POLICY], ids=["cpu", "gpu"])
def test_blocks_are_bounded(policy):
    lengths = torch.randint(1, 600, (3000,), generator=torch.Generator().manual_seed(0)).sort().values
    blocks = _cut(lengths, policy)
    assert sum(graphs for graphs, _, _ in blocks) == 3000
    assert sum(real for _, _, real in blocks) == int(lengths.sum())
    assert all(graphs == 1 or graphs * nodes**2 <= policy.most for graphs, nodes, _ in blocks)
    places = sum(graphs * nodes for graphs, nodes, _ in blocks)
    assert places <= policy.stretch * int(lengths.sum())


def test_one_size_needs_no_padding():
    segments = Segments(torch.arange(64 * 21) // 21)
    assert all(block.place is None for block in segments.blocks)
    assert "64 graphs" in repr(segments)


def test_has_edges_marks_rows_of_graphs_with_edges():
    segments = Segments(torch.tensor([0, 1, 1, 2]))
    assert segments.has_edges(torch.tensor([[1], [2]])).tolist() == [False, True, True, False]


def test_num_graphs_allows_empty_graphs_and_is_checked():
    assert Segments(torch.tensor([0, 2]), num_graphs=5).sizes.tolist() == [1, 0, 1, 0, 0]
    with pytest.raises(ValueError, match="num_graphs is 2, but batch names graph 2"):
        Segments(torch.tensor([0, 2]), num_graphs=2)


def test_as_segments_passes_ready_ones_through():
    ready = Segments(torch.tensor([0, 1]))
    assert as_segments(ready) is ready
    assert as_segments(None) is None
