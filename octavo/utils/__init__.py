"""Pure helpers without a better home."""
