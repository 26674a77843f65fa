"""A finished run as a Hugging Face model folder."""
