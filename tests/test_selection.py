from __future__ import annotations

import itertools

import pytest
import torch

from foveate.selection import sample, sequence_log_probability, top_k


def test_top_k_gives_row_major_order_not_that_of_probability() -> None:
    chosen = top_k(torch.tensor([[0.1, 0.3, 0.05, 0.4, 0.15]]), 3)
    assert chosen.cells.tolist() == [[1, 3, 4]]
    assert chosen.log_probability.item() == pytest.approx(torch.tensor([0.3, 0.4, 0.15]).log().sum().item())


def test_of_equal_probabilities_the_first_cells_are_taken() -> None:
    assert top_k(torch.full((2, 25), 0.04), 4).cells.tolist() == [[0, 1, 2, 3]] * 2
    assert top_k(torch.tensor([0.1, 0.2, 0.2, 0.2, 0.3]), 3).cells.tolist() == [1, 2, 4]


def test_sequences_without_replacement_have_probabilities_that_sum_to_one() -> None:
    p = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    sequences = torch.tensor(list(itertools.permutations(range(4), 3)))
    found = sequence_log_probability(p.expand(len(sequences), -1), sequences).exp()
    assert found.sum().item() == pytest.approx(1)
    first = (sequences == torch.tensor([0, 1, 2])).all(1)
    assert found[first].item() == pytest.approx(0.5 * 0.3 / 0.5 * 0.15 / 0.2)


def test_drawing_all_cells_is_finite_even_for_tiny_probabilities() -> None:
    p = torch.tensor([[1 - 3e-9, 1e-9, 2e-9]])
    assert torch.isfinite(sequence_log_probability(p, torch.tensor([[0, 1, 2]]))).all()


def test_samples_are_distributed_as_successive_draws() -> None:
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    generator = torch.Generator().manual_seed(1)
    drawn = sample(p.expand(40_000, -1), 2, generator=generator)
    for pair in itertools.combinations(range(4), 2):
        share = (drawn.cells == torch.tensor(pair)).all(1).float().mean().item()
        wanted = sum((p[a] * p[b] / (1 - p[a])).item() for a, b in itertools.permutations(pair))
        assert share == pytest.approx(wanted, abs=4 * (wanted / 40_000) ** 0.5)


def test_sampling_repeats_with_its_generator() -> None:
    p = torch.softmax(torch.randn(8, 25), -1)
    draws = [sample(p, 5, generator=torch.Generator().manual_seed(3)).cells for _ in range(2)]
    assert torch.equal(*draws)
    assert (draws[0].diff(dim=-1) > 0).all()


@pytest.mark.gradients
def test_gradients_reach_the_probabilities() -> None:
    for select in (top_k, sample):
        logits = torch.randn(2, 6, requires_grad=True)
        select(torch.softmax(logits, -1), 3).log_probability.sum().backward()
        assert logits.grad is not None
        assert logits.grad.abs().sum() > 0
