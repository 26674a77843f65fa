"""Columns of the tables' CSVs that are of no collected file.

Most columns of a table are a column of a collected file, as a mean over seeds; a name with one of
the endings below is what stands around that mean.
"""

#: Ending of a column's name to what it says of the column without it.
ENDINGS = {
    "_ci": "half-width of the 95 % t-interval over seeds; empty with one seed",
    "_low": "lower end of the 95 % t-interval, where logarithms are averaged",
    "_high": "upper end of it",
}
#: Name to unit and meaning.
COLUMNS: dict[str, tuple[str, str]] = {
    "seeds": ("", "runs that the mean is over"),
    "outliers": ("", "of these, runs far from the others of their cell"),
    "loops": ("", "the K that the cell was trained with"),
    "targets": ("tokens", "targets that were counted"),
    "context": ("", "how much context a counted target has"),
    "eps_share": (
        "",
        "share of the radial part that the readout's eps lets through, mean over tokens; each "
        "token has that of the middle of its half-decade of norms, within a factor of 3.2 of its "
        "own",
    ),
    "loss": ("", "where the loss is placed: terminal or per-loop"),
    "init": ("", "standard deviation of the initialization; default is PyTorch's"),
    "rate": ("", "learning rate"),
    "d_model": ("", "width of the state"),
    "layers": ("", "layers of the shared stack"),
    "heads": ("", "attention heads of a layer"),
    "window": ("tokens", "length of a training window"),
    "dropout": ("", "rate, and where it acts"),
    "norm_eps": ("", "eps of every normalization"),
    "epochs": ("", "passes over the training windows, where steps are not given"),
    "learning_rate": ("", "of AdamW, at its highest"),
    "betas": ("", "of AdamW"),
    "weight_decay": ("", "of AdamW, on every parameter"),
    "clip": ("", "greatest norm of a gradient"),
    "schedule": ("", "course of the learning rate"),
    "nonfinite": ("", "what a step does whose loss is not finite"),
    "planned_seeds": ("", "seeds that the config has"),
    "control": ("", "further controls of the norm"),
    "readout": ("", "how states are read"),
    "norm": ("", "mean norm of the state after the last loop"),
    "norm_0": ("", "mean norm of H_0"),
    "norm_1": ("", "mean norm of H_1"),
    "ce_gain": ("nats/token", "cross-entropy at exit 1 less that at the last exit"),
    "norm_to_raw": ("", "norm over that of perloop-raw at the same size"),
    "ce_to_last": ("nats/token", "cross-entropy at exit 1 less that at the last exit"),
    "growth": ("", "norm less that of the loop before"),
    "speedup": ("", "tokens/s over those of a pass to the last loop"),
    "hours": ("h", "of training"),
    "flops": ("FLOPs", "of training, by formula"),
    "mfu": ("", "share of the device's peak"),
    "finished": ("", "runs that came to their end"),
    "failed": ("", "runs that ended without weights"),
    "budget": ("", "what is equal: steps, flops or hours"),
    "at": ("", "how much of the budget: the least that a run used"),
    "pairs": ("", "seeds that both cells have"),
    "difference": ("nats/token", "from perloop-rms, paired by seed"),
    "noise_sd": ("nats/token", "standard deviation over seeds, pooled over cells"),
    "sweep": ("", "name of the sweep, or that no power law was fitted on the setting"),
    "of": ("", "the cell that the sweep departs from"),
    "value": ("", "the swept value"),
    "predicted": ("", "norm of the state after the last loop, by the product of the power laws"),
    "dose": ("", "s*: the scale that was set, or that the state was steered towards"),
    "reached": ("", "RMS of the state before the last loop"),
    "angle": ("rad", "from the state before the last loop to the one after it"),
    "b_perp": ("", "what all branches add across the direction of the last state"),
    "gain": ("nats/token", "cross-entropy at exit 1 less that at the last exit"),
    "holds": ("", "whether the interval of the growth of the norm ends at most at 2"),
    "front": ("", "whether no other cell has both more gain and a lower cross-entropy"),
    "change": ("nats/token", "cross-entropy less that at the trained K"),
    "visibility_to_random": ("", "visibility of the direction over that of a random one"),
    "activity_to_random": ("", "activity of the direction over that of a random one"),
    "equivalent": ("", "whether the change is within 0.01: yes, no or open"),
}
