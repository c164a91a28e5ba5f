"""Model names to files, files to (name, tensor) and typed metadata. Knows file formats; no layer and no device."""
