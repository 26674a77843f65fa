"""The audit's result: what audit.json holds. docs/audit.schema.json is made from it."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

#: Raised whenever a field of audit.json changes its meaning.
FORMAT = 1

#: Median KL, nats, above which a change of scale is visible.
VISIBLE = 1e-3
#: Nats a token by which the last exit has to be better than the first; about 1 % of perplexity.
USEFUL = 0.01
#: Growth a loop above which a norm drifts.
DRIFT = 1.1

Degree = Literal["yes", "partly", "no"]


class Part(BaseModel):
    """Frozen, without fields that are not declared."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Estimate(Part):
    """A number, and a 95 % t-interval of its mean over windows of text (null for one window)."""

    value: float | None
    low: float | None = None
    high: float | None = None


class Depth(Part):
    """After loop k; k = 0 is what enters loop 1."""

    k: int
    trained: bool = Field(description="k is at most the trained number of loops.")
    norm: Estimate = Field(description="Mean of |H_k| over tokens.")
    norm_p50: float | None
    norm_p99: float | None
    norm_max: float | None
    angle: Estimate | None = Field(description="Between H_{k-1} and H_k, radians; from k = 1.")
    residual: Estimate | None = Field(description="|H_k - H_{k-1}| / |H_{k-1}|; from k = 1.")
    ce: Estimate | None = Field(description="Cross-entropy at exit k, nats a token; from k = 1.")
    gain: Estimate | None = Field(description="Cross-entropy that loop k takes away; from k = 2.")
    shift: Estimate | None = Field(description="Median KL(p(H_k) || p(H_{k-1})), nats; from k = 2.")
    clamp: Estimate | None = Field(
        description="Change of cross-entropy at exit k when |H| is held at |H_1|; 2..K."
    )
    common: Estimate = Field(description="Length of the mean direction of a window's tokens.")
    level: Estimate = Field(description="Share of |H_k|^2 in the mean over the width.")
    rank: Estimate = Field(description="Effective number of directions of a window's tokens.")


class Factor(Part):
    """What multiplying the state of one boundary by a factor does."""

    factor: float
    kl: Estimate = Field(description="Median KL of the prediction read there, nats.")
    exponent: Estimate = Field(description="Median log(|F(aH)| / |F(H)|) / log a.")
    end: Estimate = Field(description="Change of cross-entropy after loop K, nats a token.")


class Boundary(Part):
    """Between loop k and loop k + 1."""

    k: int
    visible: bool
    visible_kl: Estimate = Field(description="The greater of the two median KL, at 2 and 1/2.")
    noise_kl: Estimate = Field(description="Median KL when each entry is off by one rounding.")
    carried: Degree
    carried_exponent: Estimate = Field(description="Mean of the exponents at 2 and 1/2.")
    blind: Degree
    sure: bool = Field(description="No interval crosses a threshold that the verdict rests on.")
    factors: list[Factor]


class Growth(Part):
    """Geometric growth of the mean norm a loop."""

    rate: Estimate
    drifting: bool


class Verdict(Part):
    """Two questions that are never mixed: the structure, and what the norm does."""

    blind: Degree
    blind_at: list[int] = Field(description="Boundaries k that are blind.")
    visible_at: list[int] = Field(description="Boundaries k whose reading shows the scale.")
    drifting: bool
    growth: Growth = Field(description="From loop 1 to K.")
    growth_beyond: Growth | None = Field(description="From loop K on; null where not looked at.")
    first_loop: Estimate = Field(description="|H_1| / |H_0|.")
    norm_made_in: Literal["loop 1", "the recurrence", "both", "neither"]
    depth_use: Literal["yes", "no", "unsure"] = Field(
        description="Whether exit K is better than exit 1 by 0.01 nats a token or more."
    )
    sentences: list[str]


class Model(Part):
    name: str
    source: str
    point: str = Field(description="Where the state is taken.")
    loops: int
    vocab_size: int
    parameters: int | None
    dtype: str
    device: str


class Text(Part):
    name: str
    tokens: int
    windows: int
    length: int


class Report(Part):
    """audit.json."""

    format: int = FORMAT
    model: Model
    text: Text
    verdict: Verdict
    boundaries: list[Boundary]
    depths: list[Depth]
    overflow: int | None = Field(
        description="First loop beyond K whose state or logits were not finite."
    )
    provenance: dict[str, Any]
