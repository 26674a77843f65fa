"""One file a family of models: where its state is, and how a loop of it runs."""
