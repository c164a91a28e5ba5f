"""LoRA adapters: reading PEFT's folders, and keeping adapters in the slots of a model's layers."""
