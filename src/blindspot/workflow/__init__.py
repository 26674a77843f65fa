"""What Snakemake's rules ask for, beside the study itself."""
