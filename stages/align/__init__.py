"""Reward model and PPO (RLHF)."""
