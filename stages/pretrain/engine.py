"""The model under DeepSpeed: configuration, forward and backward, snapshots, gathered weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn import functional

from trainwright.stages.contract import UsageError
from trainwright.stages.pretrain.optimizer import GuardedAdamW, make_optimizer
from trainwright.stages.pretrain.params import PretrainParams
from trainwright.stages.pretrain.snapshots import TAG


def deepspeed_config(params: PretrainParams) -> dict[str, Any]:
    """DeepSpeed's configuration; the batch arithmetic is derived from the parameters."""
    config: dict[str, Any] = {
        "train_batch_size": params.global_batch,
        "train_micro_batch_size_per_gpu": params.per_rank // params.accumulation,
        "gradient_accumulation_steps": params.accumulation,
        "gradient_clipping": params.optimization.clip_norm,
        "zero_optimization": {"stage": params.zero_stage},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2**31,
    }
    if params.precision == "bf16":
        config["bf16"] = {"enabled": True}
    if params.precision == "fp16":
        config["fp16"] = {"enabled": True, "loss_scale": 0}
    return config


class Engine:
    """One rank's view of the training engine."""

    def __init__(self, model: torch.nn.Module, params: PretrainParams) -> None:
        import deepspeed
        from deepspeed.accelerator import get_accelerator

        if params.precision == "fp16" and not get_accelerator().is_fp16_supported():
            raise UsageError(
                "pretrain.precision is fp16, which this device does not compute; "
                "use bf16 or float32 here"
            )
        self.params = params
        self.optimizer: GuardedAdamW = make_optimizer(model, params.optimization)
        self.engine, *_ = deepspeed.initialize(
            model=model, optimizer=self.optimizer, config=deepspeed_config(params)
        )
        self.device: torch.device = self.engine.device

    @property
    def skipped(self) -> int:
        """Updates that were skipped because a gradient was not finite, on all ranks alike."""
        return int(self.engine.skipped_steps) + self.optimizer.skipped

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next update."""
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate

    def step(self, batch: torch.Tensor) -> float:
        """Forward, backward and update on this rank's sequences; the global mean loss (nats a token).

        `batch` is int64 [sequences, length + 1]. Each forward pass takes an equal part, so the mean
        over parts and ranks is the mean over the global batch.
        """
        parts = batch.to(self.device).chunk(self.params.accumulation)
        total = torch.zeros((), device=self.device)
        for part in parts:
            loss = self.loss(part)
            self.engine.backward(loss)
            self.engine.step()
            total += loss.detach().float() / len(parts)
        distributed.all_reduce(total)
        return float(total) / distributed.get_world_size()

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        """Mean NLL of the next token over [sequences, length + 1], in nats."""
        logits = self.engine(input_ids=batch[:, :-1], use_cache=False).logits
        return functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())

    def grad_norm(self) -> float | None:
        """Global norm of the last gradient before clipping, where DeepSpeed knows it."""
        norm = self.engine.get_global_grad_norm()
        return None if norm is None else float(norm)

    @torch.no_grad()
    def evaluate(self, windows: list[torch.Tensor]) -> float:
        """Mean NLL over windows [1, length + 1] that are shared out over the ranks, nats a token."""
        self.engine.eval()
        rank, ranks = distributed.get_rank(), distributed.get_world_size()
        rounds = -(-len(windows) // ranks)
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for number in range(rounds):
            index = number * ranks + rank
            # With ZeRO 3 a forward pass is a collective: a rank without a window repeats the last.
            window = windows[min(index, len(windows) - 1)].to(self.device)
            loss = self.loss(window)
            if index < len(windows):
                sums += torch.tensor([float(loss) * window.shape[0], window.shape[0]])
        distributed.all_reduce(sums)
        self.engine.train()
        return float(sums[0] / sums[1])

    def save(self, place: Path) -> None:
        """Write this rank's part of a snapshot (all ranks call this)."""
        self.engine.save_checkpoint(str(place), tag=TAG, save_latest=False)

    def load(self, place: Path) -> None:
        """Go back to a snapshot (all ranks call this)."""
        found, _ = self.engine.load_checkpoint(str(place), tag=TAG)
        if found is None:
            raise UsageError(f"DeepSpeed found no checkpoint in {place}")

    def gathered(self, snapshot: Path) -> dict[str, torch.Tensor] | None:
        """All weights in float32 on rank 0 (all ranks call this); None on the others.

        In lower precision they come from the master weights of the last snapshot.
        """
        import deepspeed

        if self.params.precision != "float32":
            return self._masters(snapshot)
        parameters = list(self.engine.module.parameters())
        with deepspeed.zero.GatheredParameters(
            parameters, modifier_rank=None, enabled=self.params.zero_stage == 3
        ):
            if distributed.get_rank() != 0:
                return None
            state = self.engine.module.state_dict()
            return {name: value.detach().cpu().clone() for name, value in state.items()}

    def _masters(self, snapshot: Path) -> dict[str, torch.Tensor] | None:
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        if distributed.get_rank() != 0:
            return None
        state = get_fp32_state_dict_from_zero_checkpoint(str(snapshot), tag=TAG)
        return {name: value.float() for name, value in state.items()}
