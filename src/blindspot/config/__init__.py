"""What a study is: config files, checked, and the specification and hash of each of its runs."""
