"""From a corpus to batches: text, tokenizers, token files, windows."""
