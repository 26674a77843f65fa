"""What others read: a study as an RO-Crate, its data as Croissant (docs/sharing.md)."""
