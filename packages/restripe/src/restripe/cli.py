"""The command line. It needs the extra `cli`, and `plot` for pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from restripe.analysis import spelling
from restripe.analysis.cost import Rates
from restripe.analysis.explanation import ExplainedMove, facts_table, fan_out_table, messages_table
from restripe.analysis.mapping import Degrees, Move, moves
from restripe.analysis.models import MODELS, parameters
from restripe.analysis.simulation import simulate
from restripe.analysis.spelling import SpellingError
from restripe.analysis.summary import by_kind, describe_balance, describe_holders, describe_time, figures, verdict
from restripe.bench import planning, transfers
from restripe.bench.transfers import BenchError
from restripe.errors import ReshardError

__all__ = ["app"]

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Exact resharding of distributed tensors.")
bench = typer.Typer(add_completion=False, invoke_without_command=True)
app.add_typer(bench, name="bench")

WIDTH = 180  # columns; a narrower terminal wraps lines, since cutting them would lose figures
DEFAULT = Rates()
LAYOUT = "as mesh:placements, such as 2x4:R,S(0): for each mesh dim R (replicates), S(d) (shards tensor dim d), SS(d,k) (strided) or SG(d,\\[a,b]) (segmented)"
DEGREES = "degrees of parallelism joined by x, of PP, DP, EP, ETP and TP"

Latency = Annotated[float, typer.Option(help="us until a submission's first byte moves, and again until a fan-out's.")]
PerMessage = Annotated[float, typer.Option(help="us that each send or receive takes by itself.")]
Link = Annotated[
    float, typer.Option(help="GB/s into and out of a rank within a host; 370 was measured on NVLink, H200.")
]
Network = Annotated[
    float, typer.Option(help="GB/s into and out of a rank between hosts; 45 is one 400 Gb/s adapter a GPU.")
]
Memory = Annotated[float, typer.Option(help="GB/s at which a GPU packs and copies pieces; 620 was measured on H200.")]
Host = Annotated[
    int | None,
    typer.Option(
        help="Ranks a host, which fill hosts in order: holders on a receiver's host then come first. "
        f"Left out, meshes know no hosts, and times are predicted for {DEFAULT.host} ranks a host."
    ),
]
Model = Annotated[str, typer.Option(help=f"A model: {', '.join(MODELS)}.")]
Train = Annotated[
    str, typer.Option(help=f"How the trainer, on the first ranks, holds the model: {DEGREES}, such as EP8xPP2.")
]
Generate = Annotated[str, typer.Option(help="How the generator, on the ranks after them, holds it, such as TP8xDP2.")]


@app.callback()
def main() -> None:
    """Exact resharding of distributed tensors between layouts."""


@app.command()
def explain(
    shape: Annotated[str, typer.Option(help="The tensor's global sizes, such as 4096x2560.")] = "",
    src: Annotated[str, typer.Option(help=f"The source layout, {LAYOUT}.")] = "",
    dst: Annotated[str, typer.Option(help="The destination layout, written alike.")] = "",
    src_mesh: Annotated[str | None, typer.Option(help="The source mesh, where --src has placements alone.")] = None,
    dst_mesh: Annotated[
        str | None, typer.Option(help="The destination mesh, where --dst has placements alone.")
    ] = None,
    src_ranks: Annotated[
        str | None, typer.Option(help="The source's ranks, such as 0-7 or 0,2,4-7; from 0 on.")
    ] = None,
    dst_ranks: Annotated[str | None, typer.Option(help="The destination's; those after the source's highest.")] = None,
    dtype: Annotated[str, typer.Option(help="torch's name of the dtype.")] = "bfloat16",
    turn: Annotated[int, typer.Option(help="The round-robin offset of the holders: which replica sends first.")] = 0,
    most: Annotated[int, typer.Option("--messages", help="How many messages, and parts of fan-outs, to show.")] = 32,
    model: Model = "",
    train: Train = "",
    generate: Generate = "",
    picture: Annotated[Path | None, typer.Option(help="Draw it too: a file that ends in .svg or .png.")] = None,
    latency_us: Latency = DEFAULT.latency,
    message_us: PerMessage = DEFAULT.message,
    link: Link = DEFAULT.link,
    network: Network = DEFAULT.network,
    memory: Memory = DEFAULT.memory,
    host_ranks: Host = None,
) -> None:
    """Show what a move does: one tensor between two layouts, or a model between a trainer and a generator."""
    with exit_with_sentence():
        rates = make_rates(latency_us, message_us, link, network, memory, host_ranks)
        if bool(model) == bool(shape):
            raise SpellingError(
                "expected a tensor (--shape 4096x2560 --src 8:S(0) --dst 2x4:R,S(1)) "
                "or a model (--model qwen3-30b-a3b --train EP8xPP2 --generate TP8xDP2)"
            )
        if model:
            explain_model(
                model_moves(model, train, generate, host_ranks),
                rates,
                f"{model} from trainer {train} to generator {generate}",
                picture,
            )
            return
        source = spelling.layout(src, src_mesh, src_ranks, host=host_ranks)
        target = spelling.layout(dst, dst_mesh, dst_ranks, first=source.mesh.highest + 1, host=host_ranks)
        move = Move("tensor", "", spelling.shape(shape), spelling.dtype(dtype), source, target)
        explain_pair(ExplainedMove.of(move, turn), rates, most, picture)


def explain_pair(explained: ExplainedMove, rates: Rates, most: int, picture: Path | None) -> None:
    """Draw one tensor's move where a picture is wanted, and print its tables."""
    if picture is not None:
        with explain_missing_matplotlib():
            from restripe.analysis.drawing import draw_pair  # noqa: PLC0415 - matplotlib is an extra

            draw_pair(
                explained.move, explained.world, picture, f"{explained.reason}\n{describe_balance(explained.totals)}"
            )
    console = Console(width=WIDTH)
    console.print(facts_table(explained, rates))
    console.print(messages_table(explained, most))
    if explained.totals.fan_outs:
        console.print(fan_out_table(explained, most))


def explain_model(tensors: list[Move], rates: Rates, title: str, picture: Path | None) -> None:
    """Draw a model's move where a picture is wanted, and print its table."""
    totals = simulate(tensors)
    if picture is not None:
        with explain_missing_matplotlib():
            from restripe.analysis.drawing import draw_model  # noqa: PLC0415 - matplotlib is an extra

            draw_model(totals["all"].sent, picture, title, describe_balance(totals["all"]))
    console = Console(width=WIDTH)
    console.print(title, style="bold", highlight=False)
    console.print(by_kind(tensors, totals, rates))
    whole = totals["all"]
    for line in (
        f"holders: {describe_holders(whole, rates)}",
        describe_balance(whole),
        f"predicted {describe_time(whole, rates)}",
    ):
        console.print(line, highlight=False)


@app.command("simulate")
def simulate_command(
    model: Model,
    train: Train,
    generate: Generate,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: bytes, ratios and milliseconds.")] = False,
    latency_us: Latency = DEFAULT.latency,
    message_us: PerMessage = DEFAULT.message,
    link: Link = DEFAULT.link,
    network: Network = DEFAULT.network,
    memory: Memory = DEFAULT.memory,
    host_ranks: Host = None,
) -> None:
    """Plan a whole model on every rank, and check that the plans pair up and write every destination byte exactly once."""
    with exit_with_sentence():
        rates = make_rates(latency_us, message_us, link, network, memory, host_ranks)
        tensors = model_moves(model, train, generate, host_ranks)
        totals = simulate(tensors)
        if as_json:
            typer.echo(
                json.dumps({kind: figures(kind_totals, rates) for kind, kind_totals in totals.items()}, indent=1)
            )
            return
        console = Console(width=WIDTH)
        ranks = [Degrees.of(text).ranks for text in (train, generate)]
        title = f"{model}: {train} on {ranks[0]:,} ranks to {generate} on {ranks[1]:,}"
        console.print(title, style="bold", highlight=False)
        console.print(by_kind(tensors, totals, rates))
        for line in verdict(totals["all"], rates):
            console.print(line, highlight=False)


def make_rates(latency: float, message: float, link: float, network: float, memory: float, host: int | None) -> Rates:
    """Return the rates; without a size of hosts the default holds."""
    return Rates(latency, message, link, network, memory, DEFAULT.host if host is None else host)


def model_moves(model: str, train: str, generate: str, host: int | None) -> list[Move]:
    """Return the moves of a model's tensors."""
    return moves(parameters(model), Degrees.of(train), Degrees.of(generate), host)


@bench.callback()
def bench_rows(
    context: typer.Context,
    only: Annotated[str, typer.Option("--rows", help="Only rows whose name contains this.")] = "",
    limit: Annotated[
        float | None, typer.Option(help="Seconds after which the run is ended; left out, it follows from the rows.")
    ] = None,
) -> None:
    """Time restripe's calls on this host: between its GPUs, or without two of them between two processes on the CPU."""
    if context.invoked_subcommand is not None:
        return
    console = Console(width=WIDTH)
    wrong_bytes = 0
    with exit_with_sentence():
        ranks = transfers.rank_count()
        selected = transfers.select_rows(transfers.playable_rows(ranks), only, ranks)
        console.print(transfers.conditions(ranks), highlight=False)
        for times in transfers.measure(selected, ranks, transfers.time_limit(selected) if limit is None else limit):
            console.print(transfers.table(times))
            wrong_bytes += sum(time.wrong_bytes for time in times)
    if wrong_bytes:
        raise typer.Exit(1)


@bench.command("plan")
def bench_plan(
    ranks: Annotated[
        str, typer.Option(help="Sizes of worlds, half of them source, joined by commas.")
    ] = "64,2048,16384",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time one rank's plan and a warm look-up in large worlds; needs no GPU."""
    with exit_with_sentence():
        times = [planning.measure(size) for size in world_sizes(ranks)]
    if as_json:
        typer.echo(json.dumps([world.to_json() for world in times], indent=1))
    else:
        Console(width=WIDTH).print(planning.table(times))


def world_sizes(text: str) -> list[int]:
    """Return the sizes of `64,2048`; raise SpellingError unless each is even and at least 2."""
    sizes = [int(part) if part.strip().isdigit() else 0 for part in text.split(",")]
    if any(size < 2 or size % 2 for size in sizes):
        raise SpellingError(f"expected even sizes of worlds, joined by commas, such as 64,2048,16384, got {text!r}")
    return sizes


@contextmanager
def exit_with_sentence() -> Iterator[None]:
    """Print the error of a command that cannot be done, one sentence, and exit with 2."""
    try:
        yield
    except (BenchError, SpellingError, ReshardError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


@contextmanager
def explain_missing_matplotlib() -> Iterator[None]:
    """Raise SpellingError with what to install where matplotlib is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise SpellingError("a picture needs matplotlib: pip install 'restripe[plot]'") from error
