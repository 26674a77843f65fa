"""How much each direction of spectrum.csv is seen and grows, against a random one."""

import pandas as pd

from blindspot.collect.collected import Collected

#: Of each direction, over what a random one has at the same states.
RATIOS = ["visibility_to_random", "activity_to_random"]


def relative(c: Collected) -> pd.DataFrame:
    """spectrum.csv with the columns `RATIOS`."""
    frame = c.frame("spectrum")
    keys = ["run", "k"]
    values = ["visibility", "activity"]
    random = frame[frame["direction"] == "random"].set_index(keys)[values]
    at = random.reindex(pd.MultiIndex.from_frame(frame[keys]))
    return frame.assign(
        **{
            name: frame[value].to_numpy() / at[value].to_numpy()
            for name, value in zip(RATIOS, values, strict=True)
        }
    )
