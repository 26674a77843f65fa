"""Dropout masks as a pure function of their key; attention with them; norms on the CPU."""

import itertools
import math

import pytest
import torch

from blindspot.lm import attention, dropout
from blindspot.lm.norm import rms_norm
from reference_model import rms


def keys(n, seed=1, step=2, loops=3, layers=2):
    return dropout.step_keys(seed, step, range(n), loops, layers)


def plain(key, entries, below):
    """The hash in Python's whole numbers."""
    k0, k1 = (int(word) % 2**32 for word in key)
    found = []
    for i in range(-(-entries // 2)):
        x = (i + k0) % 2**32
        x = (x ^ x >> 16) * 0x21F0AAAD % 2**32
        x = (x ^ x >> 15 ^ k1) * 0xD35A2D97 % 2**32
        x ^= x >> 15
        found += [x % 2**16 >= below, x >> 16 >= below]
    return torch.tensor(found[:entries], dtype=torch.uint8)


@pytest.mark.parametrize("words", [2**18, 7])
def test_masks_are_the_hash_on_every_path(words, monkeypatch):
    monkeypatch.setattr(dropout, "WORDS", words)
    some = keys(5)[:, 3]
    found = dropout.kept(some, 33, 0.3)
    below = dropout.threshold(0.3)
    assert torch.equal(found, torch.stack([plain(key, 33, below) for key in some]))
    assert torch.equal(found, dropout.kept_in_torch(some, 33, below))


def test_a_mask_keeps_the_share_it_should_and_entries_are_independent():
    """Within five deviations of a binomial: the share, and the agreement of neighbours at several
    distances, of rows, of places, layers, loops, steps and seeds."""
    n, rate = 2**18, 0.1
    every = [keys(2), keys(2, step=3), keys(2, seed=2)]
    flat = torch.cat([k.flatten(0, 1) for k in every])
    masks = dropout.kept(flat, n, rate).double()
    assert len(flat.unique(dim=0)) == len(flat) == 3 * 2 * (1 + 3 * 2 * 3)
    p = dropout.threshold(rate) / 2**16
    assert p == pytest.approx(rate, abs=2**-17)
    sigma = math.sqrt(p * (1 - p) / n)
    assert bool(((masks.mean(1) - (1 - p)).abs() < 5 * sigma).all())
    centred = (masks - (1 - p)) / math.sqrt(p * (1 - p))
    # Correlations have the deviation 1 / sqrt(n).
    pairs = (centred @ centred.T / n).fill_diagonal_(0)
    assert pairs.abs().max() < 5 / math.sqrt(n)
    for distance in (1, 2, 3, 32, 256, 4096):
        shifted = (centred[:, distance:] * centred[:, :-distance]).mean(1)
        assert shifted.abs().max() < 5 / math.sqrt(n), distance


def test_what_is_kept_is_scaled_to_the_mean():
    x = torch.ones(4, 1000, 10)
    y = dropout.dropped(x, keys(4)[:, 0], 0.25)
    assert y.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert y.mean().item() == pytest.approx(1, abs=0.02)
    assert dropout.dropped(x, None, 0.25) is x


def explicit(qkv, heads, mask, scale):
    B, T, width = qkv.shape
    w = width // 3 // heads
    q, k, v = qkv.view(B, T, 3, heads, w).permute(2, 0, 3, 1, 4)
    scores = (q @ k.mT / math.sqrt(w)).masked_fill(
        ~torch.ones(T, T, dtype=torch.bool).tril(), -math.inf
    )
    p = scores.softmax(-1)
    if mask is not None:
        p = p * mask.view(B, heads, T, T) * scale
    return (p @ v).transpose(1, 2).reshape(B, T, width // 3)


@pytest.mark.parametrize("tile,dropped", list(itertools.product([128, 4, 3], [False, True])))
def test_attention_in_tiles_is_attention(tile, dropped, monkeypatch):
    """Values and gradients in float64, with tiles that do and do not divide the length."""
    monkeypatch.setattr(attention, "TILE", tile)
    heads, rate = 2, 0.3
    torch.manual_seed(0)
    qkv = torch.randn(3, 8, 24, dtype=torch.float64, requires_grad=True)
    mask = dropout.kept(keys(3)[:, 1], heads * 64, rate) if dropped else None
    scale = dropout.scale(rate) if dropped else 1.0
    gradient = torch.randn(3, 8, 8, dtype=torch.float64)
    found = attention.attend(qkv, heads, mask, scale)
    expected = explicit(qkv, heads, mask, scale)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    a, b = (torch.autograd.grad(y, qkv, gradient)[0] for y in (found, expected))
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)
    with torch.no_grad():
        assert torch.equal(attention.attend(qkv, heads, mask, scale), found)


@pytest.mark.parametrize("B,T,heads", [(3, 8, 2), (3, 8, 1), (1, 8, 1), (2, 1, 1), (1, 1, 2)])
def test_compilers_are_told_the_shapes_and_strides_that_operators_return(B, T, heads):
    """One head or one token make a copy into a view, whose strides are others."""
    ops, w = torch.ops.blindspot, 4
    qkv = torch.randn(B, T, 3 * heads * w)
    mask = dropout.kept(keys(B)[:, 1], heads * T * T, 0.3)
    real = ops.attend(qkv, heads, mask, 1.5, True)
    fake = attention._attend_fake(qkv.to("meta"), heads, mask.to("meta"), 1.5, True)
    gradient = torch.randn_like(real[0])
    real += (ops.attend_backward(gradient, *real[1:], mask, 1.5), mask)
    fake += (
        attention._attend_backward_fake(gradient.to("meta"), *fake[1:], None, 1.5),
        dropout._kept_fake(keys(B)[:, 1].to("meta"), heads * T * T, 1),
    )
    for a, b in zip(real, fake, strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
        assert a.is_contiguous()


@pytest.mark.parametrize("eps,gained", list(itertools.product([0.0, 1e-2], [False, True])))
def test_rms_norm_and_its_gradients(eps, gained):
    torch.manual_seed(0)
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    gain = torch.rand(8, dtype=torch.float64, requires_grad=True) if gained else None
    inputs = [x, gain] if gained else [x]
    gradient = torch.randn(3, 5, 8, dtype=torch.float64)
    found, expected = rms_norm(x, gain, eps), rms(x, gain, eps)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-14)
    for a, b in zip(
        *(torch.autograd.grad(y, inputs, gradient) for y in (found, expected)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)
