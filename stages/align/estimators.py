"""What PPO estimates from a rollout: KL, advantages, returns. Pure functions on [answers, tokens].

`mask` is bool: true for an answer's tokens (its end token included), told by length and never by a
padding id.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def length_mask(lengths: Tensor, width: int) -> Tensor:
    """Bool [answers, width]: the first `lengths[i]` of row i."""
    return torch.arange(width, device=lengths.device)[None] < lengths[:, None]


def kl_k1(policy: Tensor, reference: Tensor) -> Tensor:
    """The unbiased estimate log p - log q at tokens drawn from p; may be negative.

    Schulman 2020, "Approximating KL divergence" (joschu.net/blog/kl-approx.html).
    """
    return policy - reference


def kl_k3(policy: Tensor, reference: Tensor) -> Tensor:
    """The estimate r - 1 - log r, r = q/p, at tokens drawn from p; unbiased and never negative."""
    gap = reference - policy
    return torch.expm1(gap) - gap


def kl_exact(policy_logits: Tensor, reference_logits: Tensor) -> Tensor:
    """KL(p || q) over the whole vocabulary; the last dimension is summed away."""
    p, q = policy_logits.log_softmax(-1), reference_logits.log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over what the mask holds."""
    return (values * mask).sum() / mask.sum()


def whiten(values: Tensor, mask: Tensor, eps: float = 1e-8) -> Tensor:
    """Mean 0 and variance 1 over what the mask holds (population variance); 0 elsewhere."""
    mean = masked_mean(values, mask)
    variance = masked_mean((values - mean) ** 2, mask)
    return (values - mean) * torch.rsqrt(variance + eps) * mask


def token_rewards(scores: Tensor, kl: Tensor, lengths: Tensor, coefficient: float) -> Tensor:
    """Per-token rewards: -coefficient * kl, and the answer's score on its last token.

    `scores` and `lengths` [answers], `kl` [answers, tokens].
    """
    rewards = -coefficient * kl * length_mask(lengths, kl.shape[1])
    rows = torch.arange(len(lengths), device=lengths.device)
    rewards[rows, lengths - 1] += scores
    return rewards


def gae(
    rewards: Tensor, values: Tensor, lengths: Tensor, *, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, [answers, tokens] each; 0 beyond an answer's length.

    Generalized advantage estimation (Schulman et al. 2015, arXiv:1506.02438, eq. 16), backwards:
    delta_t = r_t + gamma V_{t+1} - V_t, A_t = delta_t + gamma lam A_{t+1}; after the last token
    V and A are 0, for an answer is an episode.
    """
    mask = length_mask(lengths, rewards.shape[1])
    values = values * mask
    advantages = torch.zeros_like(values)
    later = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        following = values[:, t + 1] if t + 1 < values.shape[1] else torch.zeros_like(later)
        delta = rewards[:, t] + gamma * following - values[:, t]
        later = torch.where(mask[:, t], delta + gamma * lam * later, torch.zeros_like(later))
        advantages[:, t] = later
    return advantages, (advantages + values) * mask
