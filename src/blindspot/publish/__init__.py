"""Functions of the tidy CSVs: tables, figures, the ledger of claims, pages. No torch here."""
