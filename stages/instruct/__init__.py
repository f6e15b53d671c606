"""LoRA instruction tuning."""
