"""Section `check`: the step that trains against the plain float32 reference.

`correctness.csv`, one row a case x path, dropout 0, one batch of random ids, fresh weights:

    path                reference-bf16    the reference under bf16 autocast: what bf16 costs anyone
                        eager-float32     the engine's step, float32, not compiled
                        eager-bf16        the engine's step under autocast
                        compiled-bf16     the same, compiled: what a GPU trains with
    loss_error          |loss - loss of reference| / loss of reference
    gradient_error      |g - g of reference| / |g of reference| over all parameters together
    worst_error         the largest of those of single parameters, `worst` its name
    loss_tolerance, gradient_tolerance, ok
                        float32: 1e-5 and 1e-3. bf16: twice the error of reference-bf16, but at
                        least 1e-3 and 1e-2: a bf16 step may be no farther off than bf16 is.

`repeat.csv`: whether two runs of a few steps with dropout end in the same bits, with deterministic
algorithms on and off.

`attention.csv`: the implementation of attention that torch takes for a step's shapes; `MATH` would
be the explicit one, with T x T weights in memory.
"""

import torch
from torch import Tensor

from blindspot.config.spec import RunSpec
from gpu.bench import Bench, Reference, Sheet, engine, gradients
from gpu.plan import CELLS

COLUMNS = (
    "size",
    "layers",
    "cell",
    "path",
    "batch",
    "loss",
    "loss_error",
    "gradient_error",
    "worst_error",
    "worst",
    "loss_tolerance",
    "gradient_tolerance",
    "ok",
)
REPEAT = ("size", "cell", "deterministic", "steps", "equal")
ATTENTION = ("size", "precision", "dropout", "implementation")
#: Least tolerances of loss and gradient.
FLOAT32, BF16 = (1e-5, 1e-3), (1e-3, 1e-2)
STEPS = 4


def run(bench: Bench) -> None:
    plan = bench.plan
    with bench.case("repeat"):
        _repeat(bench)
    with bench.case("attention"):
        _attention(bench)
    sheet = bench.sheet("correctness", COLUMNS)
    size, batch, small = "44m", plan.small_batch, plan.small_layers
    layers = plan.sizes[size]["layers"]
    whole = plan.run(size, "perloop-rms", batch, dropout={"rate": 0.0})
    name = f"{size}, {layers} layers, perloop-rms"
    with bench.case(f"{name}, not compiled"):
        _compare(bench, sheet, whole, size, "perloop-rms", compiled=False)
    # What takes long comes last, and small before large. The first compilation is the dearest: it
    # loads the compiler, and leaves kernels for the others.
    compile_s = 0.0
    for cell in CELLS:
        if bench.fits(f"{size}, {small} layers, {cell}", compile_s):
            with bench.case(f"{size}, {small} layers, {cell}"):
                spec = plan.run(size, cell, batch, layers=small, dropout={"rate": 0.0})
                compile_s = _compare(bench, sheet, spec, size, cell, compiled=True)
    # A toy has no more layers than its small one, and was compiled.
    if layers > small and bench.fits(f"{name}, compiled", 1.2 * compile_s * layers / small):
        with bench.case(f"{name}, compiled"):
            _compare(bench, sheet, whole, size, "perloop-rms", compiled=True)


def _compare(
    bench: Bench, sheet: Sheet, spec: RunSpec, size: str, cell: str, compiled: bool
) -> float:
    """Add a case's rows; returns the seconds that the compiled step took to its first result."""
    ids = bench.ids(spec)
    exact = spec.model_copy(
        update={"training": spec.training.model_copy(update={"precision": "float32"})}
    )
    loss, truth = Reference(spec, bench.device, "float32").gradients(ids)
    coarse = BF16
    took = 0.0
    for path in ("reference-bf16", "eager-float32", "eager-bf16", "compiled-bf16"):
        if path == "compiled-bf16" and not compiled:
            continue
        if path == "reference-bf16":
            found = Reference(spec, bench.device, "bf16").gradients(ids)
        else:
            with_ = exact if path == "eager-float32" else spec
            made = engine(with_, bench.device, compile=path == "compiled-bf16")
            results: list[tuple[float, dict[str, Tensor]]] = []
            took = bench.seconds(lambda m=made, r=results: r.append(gradients(m, ids)))  # type: ignore[misc]
            found = results[0]
        errors = {n: _error(found[1][n], truth[n]) for n in truth}
        worst = max(errors, key=lambda n: errors[n])
        whole = _error(_flat(found[1], truth), _flat(truth, truth))
        off = abs(found[0] - loss) / abs(loss)
        limits = FLOAT32 if path == "eager-float32" else coarse
        ok: int | str = int(off <= limits[0] and whole <= limits[1])
        if path == "reference-bf16":
            coarse = (max(BF16[0], 2 * off), max(BF16[1], 2 * whole))
            limits, ok = (None, None), ""  # type: ignore[assignment]
        row = [size, spec.model.layers, cell, path, spec.batch, found[0], off, whole]
        sheet.add([*row, errors[worst], worst, *limits, ok], key=4)
    bench.forget()
    return took


def _error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth.double()).norm() / truth.double().norm())


def _flat(tensors: dict[str, Tensor], names: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensors[n].reshape(-1) for n in names])


def _attention(bench: Bench) -> None:
    from torch.nn.attention import SDPBackend

    sheet = bench.sheet("attention", ATTENTION)
    for size, shape in bench.plan.sizes.items():
        heads, width = shape["heads"], shape["d_model"] // shape["heads"]
        for precision, dtype in (("bf16", torch.bfloat16), ("float32", torch.float32)):
            # As the model lays them out.
            qkv = torch.empty(
                (shape["batch"], bench.plan.context, 3, heads, width),
                dtype=dtype,
                device=bench.device,
                requires_grad=True,
            )
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            for dropout in (0.0, 0.1):
                chosen = torch._fused_sdp_choice(q, k, v, dropout_p=dropout, is_causal=True)
                sheet.add([size, precision, dropout, SDPBackend(chosen).name])


def _repeat(bench: Bench) -> None:
    """First of all, since cuBLAS reads its setting for determinism when it starts."""
    sheet = bench.sheet("repeat", REPEAT)
    spec = bench.plan.run("44m", "perloop-rms", layers=bench.plan.small_layers)
    try:
        for deterministic in (True, False):
            ends = []
            for _ in range(2):
                made = engine(spec, bench.device, deterministic=deterministic)
                for step in range(STEPS):
                    made.step(bench.ids(spec, step), step)
                made.harvest()
                ends.append([p.detach().clone() for p in made.parameters])
            equal = all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
            sheet.add(["44m", "perloop-rms", int(deterministic), STEPS, int(equal)])
            torch.use_deterministic_algorithms(False)
    finally:
        torch.use_deterministic_algorithms(False)
