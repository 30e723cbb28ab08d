"""Time of every hand-written layer and kernel against PyTorch's own: `docs/decisions/013-hand-written-kernels.md`.

python -m benchmarks.kernels --out results.json      GPU kernels where there is a GPU, then CPU convolution and dropout

GPU times are of CUDA graph replays, so that launching costs nothing; the best of five. CPU times are the best of five.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from benchmarks.timing import machine
from rbi import gpu
from rbi.gpu import layers
from rbi.networks import NATURE_CNN, dropout
from rbi.observations import ObservationSpec, random_shifts
from rbi.optim import ADAM_BETAS, Adam

ATARI = ObservationSpec((84, 84), 4, 6)
REPEATS, CALLS, REPLAYS = 5, 20, 10
BF16, F32 = torch.bfloat16, torch.float32


def graph_seconds(function, generator=None):
    """Seconds of a call on a GPU, inside a CUDA graph of many."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    if generator is not None:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS):
            function()
    return min(timed(lambda: [graph.replay() for _ in range(REPLAYS)]) for _ in range(REPEATS)) / REPLAYS / CALLS


def timed(work):
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def cpu_seconds(function, calls=3):
    """Seconds of a call on a CPU."""
    function()
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def tensors(*shapes, dtype=F32, device="cpu", grad=True):
    return [torch.randn(shape, device=device).to(dtype).requires_grad_(grad) for shape in shapes]


def gradients(function, inputs, like):
    """A function's forward and backward pass, as a call without arguments."""
    (slope,) = tensors(like.shape, dtype=like.dtype, device=like.device, grad=False)
    return lambda: torch.autograd.grad(function(*inputs), inputs, slope)


def conv2d_relu(x, weight, bias, kernel, stride):
    images = functional.conv2d(x.permute(0, 3, 1, 2), layers.as_filters(weight, x, kernel), bias, stride=stride)
    return functional.relu(images).permute(0, 2, 3, 1)


def adam_cases():
    for size, dtype in ((200_000, F32), (3_400_000, F32), (6_800_000, BF16)):
        vector = torch.randn(size, device="cuda")
        compute = vector if dtype == F32 else vector.to(dtype)
        adam = Adam(vector, compute, 1e-4, 1e-4)
        mean, square, count = torch.zeros_like(vector), torch.zeros_like(vector), torch.ones((), device="cuda")
        gradient = torch.zeros_like(vector)

        def theirs(vector=vector, compute=compute, adam=adam, state=(mean, square, count), gradient=gradient):
            mean, square, count = state
            if compute is not vector:  # PyTorch's kernel takes gradients in the vector's precision
                gradient.copy_(adam.gradient)
            count.add_(1)
            torch._fused_adam_(
                [vector], [gradient], [mean], [square], [], [count], lr=1e-4, beta1=ADAM_BETAS[0], beta2=ADAM_BETAS[1],
                weight_decay=0.0, eps=1e-4, amsgrad=False, maximize=False,
            )  # fmt: skip
            if compute is not vector:
                compute.copy_(vector)

        yield f"Adam, {size:,} weights, {dtype}", adam.step, theirs


def layer_cases():
    for shape, groups in (((128, 20, 20, 32), 1), ((128, 9, 9, 64), 1), ((128, 1024), 2)):
        inputs = tensors(shape, shape[-1:], dtype=BF16, device="cuda")

        def torchs(x, bias, groups=groups):
            rows = x.reshape(*x.shape[:-1], groups, -1)
            normed = torch.layer_norm(rows, rows.shape[-1:], eps=layers.LAYER_NORM_EPSILON)
            return (normed.flatten(-2) + bias).relu()

        ours = gradients(lambda x, bias, groups=groups: layers.normalise_relu(x, bias, groups), inputs, inputs[0])
        yield f"layer norm + bias + ReLU {shape}", ours, gradients(torchs, inputs, inputs[0])
    for rows, columns in ((32, 7), (128, 4), (128, 1024), (528, 64)):
        (x,) = tensors((rows, columns), device="cuda", grad=False)
        name = f"column sums {rows} x {columns}"
        yield name, lambda x=x: layers.column_sums(x, F32), lambda x=x: x.sum(0, dtype=F32)
    for batch, inputs, outputs, dtype in ((32, 1024, 7, F32), (128, 512, 4, BF16)):
        given = tensors((batch, inputs), (outputs, inputs), (outputs,), dtype=dtype, device="cuda")
        like = functional.linear(*(tensor.detach() for tensor in given))
        name = f"dense layer {batch} x {inputs} -> {outputs} {dtype}"
        yield name, gradients(layers.dense, given, like), gradients(functional.linear, given, like)
    channels, size = ATARI.block_channels, 21
    for filters, pixels, pixel_stride in NATURE_CNN:
        kernel, stride = (2, 1) if pixel_stride == ATARI.block_size else (pixels, pixel_stride)
        given = tensors(
            (128, size, size, channels), (filters, kernel**2 * channels), (filters,), dtype=BF16, device="cuda"
        )
        size = layers.conv_output_size(size, kernel, stride)
        like = torch.empty((128, size, size, filters), dtype=BF16, device="cuda")

        def pair(function, kernel=kernel, stride=stride, given=given, like=like):
            return gradients(lambda *three: function(*three, kernel, stride), given, like)

        yield f"convolution + bias + ReLU {channels} -> {filters}", pair(layers.convolve_relu), pair(conv2d_relu)
        channels = filters


def preprocess_cases():
    for batch, shifted in ((32, False), (128, True)):
        frames = torch.randint(256, (batch, 4, 84, 84), dtype=torch.uint8, device="cuda")
        shifts = random_shifts(batch, 4, torch.Generator("cuda").manual_seed(0)) if shifted else None

        def plain(frames=frames, shifts=shifts):
            usable, gpu.usable = gpu.usable, lambda _: False
            try:
                return ATARI.preprocess(frames, BF16, shifts)
            finally:
                gpu.usable = usable

        name = f"preprocess batch {batch}" + (", random shifts" if shifted else "")
        yield name, lambda f=frames, s=shifts: ATARI.preprocess(f, BF16, s), plain


def on_gpu():
    """(name, our seconds, PyTorch's seconds) of everything that runs on a GPU."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        for cases in (adam_cases(), layer_cases(), preprocess_cases()):
            for name, ours, theirs in cases:
                yield name, graph_seconds(ours), graph_seconds(theirs)
    generator = torch.Generator("cuda").manual_seed(0)
    for shape in ((32, 21, 21, 64), (32, 1024)):
        (x,) = tensors(shape, device="cuda", grad=False)
        ours = graph_seconds(lambda x=x: dropout(x, 0.25, generator), generator)
        yield f"dropout {shape}", ours, graph_seconds(lambda x=x: functional.dropout(x, 0.25))


def nature_cnn(function, dtype, batch):
    """Forward and backward pass of the Nature CNN, as a call without arguments."""
    (x,) = tensors((batch, 21, 21, 64), dtype=dtype, grad=False)
    sizes, channels = [], ATARI.block_channels
    for filters, pixels, pixel_stride in NATURE_CNN:
        kernel, stride = (2, 1) if pixel_stride == ATARI.block_size else (pixels, pixel_stride)
        sizes.append((filters, kernel, stride, channels))
        channels = filters
    weights = [tensors((f, k * k * c), (f,), dtype=dtype) for f, k, _, c in sizes]

    def call():
        y = x
        for (weight, bias), (_, kernel, stride, _) in zip(weights, sizes, strict=True):
            y = function(y, weight, bias, kernel, stride)
        torch.autograd.grad(y, [tensor for pair in weights for tensor in pair], torch.ones_like(y))

    return call


def on_cpu():
    """(name, our seconds, PyTorch's seconds): the convolution over patches, in bfloat16 only with AMX, and dropout."""
    amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    for batch in (32, 128):
        for dtype in (F32, BF16) if amx else (F32,):
            times = [
                cpu_seconds(nature_cnn(function, dtype, batch))
                for function in (layers._PatchConvRelu.apply, conv2d_relu)
            ]
            yield f"CPU: Nature CNN, batch {batch}, {dtype}", *times
    generator = torch.Generator().manual_seed(0)
    (x,) = tensors((32, 21, 21, 64), grad=False)
    ours, theirs = (lambda: dropout(x, 0.25, generator)), (lambda: functional.dropout(x, 0.25))
    yield "CPU: dropout (32, 21, 21, 64)", cpu_seconds(ours), cpu_seconds(theirs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision("high")
    found = [*(on_gpu() if torch.cuda.is_available() else ()), *on_cpu()]
    table = Table(title="one call, microseconds")
    for column in ("", "ours", "PyTorch", "gain"):
        table.add_column(column, justify="right" if column else "left")
    for name, ours, theirs in found:
        table.add_row(name, f"{ours * 1e6:,.1f}", f"{theirs * 1e6:,.1f}", f"{theirs / ours:.2f}")
    Console().print(table)
    if args.out:
        cases = [{"case": name, "ours_seconds": ours, "torch_seconds": theirs} for name, ours, theirs in found]
        result = {"command": "python -m benchmarks.kernels", "machine": machine(), "threads": args.threads}
        args.out.write_text(json.dumps(result | {"cases": cases}, indent=2) + "\n")


if __name__ == "__main__":
    main()
