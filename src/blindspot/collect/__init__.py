"""From the result folders of single runs to tidy CSVs; reading those, statistics over seeds."""
