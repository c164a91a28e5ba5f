"""Text <-> token ids: tokenizers of Hugging Face folders and GGUF files, incremental decoding, chat templates."""
