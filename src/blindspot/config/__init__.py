"""What a study is: config, checked; the specification and hash of each run, its cost, its files."""
