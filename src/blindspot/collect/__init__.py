"""From the result folders of single runs to tidy CSVs, and reading those."""
