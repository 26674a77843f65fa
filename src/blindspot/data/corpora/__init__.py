"""Where corpora come from: the hub, files, the embedded excerpt."""
