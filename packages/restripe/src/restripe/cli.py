"""The command line; needs the extra `cli`, and `plot` for pictures."""

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
from restripe.analysis.explanation import Explained, facts, messages, stripes
from restripe.analysis.mapping import Degrees, Move, moves
from restripe.analysis.models import MODELS, parameters
from restripe.analysis.simulation import simulate
from restripe.analysis.spelling import SpellingError
from restripe.analysis.summary import balance, by_kind, figures, holders, predicted, verdict
from restripe.bench import planning
from restripe.bench.rows import Row, left_out, rows
from restripe.bench.table import WIDTH, table
from restripe.bench.world import BenchError, allowed, gpus, restripes, results
from restripe.errors import ReshardError

__all__ = ["app"]

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Exact resharding of distributed tensors.")
bench = typer.Typer(add_completion=False, invoke_without_command=True)
app.add_typer(bench, name="bench")

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
    turn: Annotated[int, typer.Option(help="The tensor's place in a submission: which replicas send.")] = 0,
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
    with refused():
        rates = rated(latency_us, message_us, link, network, memory, host_ranks)
        if bool(model) == bool(shape):
            raise SpellingError(
                "expected a tensor (--shape 4096x2560 --src 8:S(0) --dst 2x4:R,S(1)) "
                "or a model (--model qwen3-30b-a3b --train EP8xPP2 --generate TP8xDP2)"
            )
        if model:
            explain_model(
                mapped(model, train, generate, host_ranks),
                rates,
                f"{model} from trainer {train} to generator {generate}",
                picture,
            )
            return
        source = spelling.layout(src, src_mesh, src_ranks, host=host_ranks)
        target = spelling.layout(dst, dst_mesh, dst_ranks, first=source.mesh.highest + 1, host=host_ranks)
        move = Move("tensor", "", spelling.shape(shape), spelling.dtype(dtype), source, target)
        explain_pair(Explained.of(move, turn), rates, most, picture)


def explain_pair(one: Explained, rates: Rates, most: int, picture: Path | None) -> None:
    """One tensor's picture and its tables."""
    if picture is not None:
        with drawing():
            from restripe.analysis.drawing import draw_pair  # noqa: PLC0415 - matplotlib is an extra

            draw_pair(one.move, one.world, picture, f"{one.reason}\n{balance(one.totals)}")
    console = Console(width=WIDTH)
    console.print(facts(one, rates))
    console.print(messages(one, most))
    if one.totals.rebuilt:
        console.print(stripes(one, most))


def explain_model(tensors: list[Move], rates: Rates, title: str, picture: Path | None) -> None:
    """A model's picture and its table."""
    totals = simulate(tensors)
    if picture is not None:
        with drawing():
            from restripe.analysis.drawing import draw_model  # noqa: PLC0415 - matplotlib is an extra

            draw_model(totals["all"].sent, picture, title, balance(totals["all"]))
    console = Console(width=WIDTH)
    console.print(title, style="bold", highlight=False)
    console.print(by_kind(tensors, totals, rates))
    whole = totals["all"]
    for line in (f"holders: {holders(whole, rates)}", balance(whole), f"predicted {predicted(whole, rates)}"):
        console.print(line, highlight=False)


@app.command("simulate")
def simulated(
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
    with refused():
        rates = rated(latency_us, message_us, link, network, memory, host_ranks)
        tensors = mapped(model, train, generate, host_ranks)
        totals = simulate(tensors)
        if as_json:
            typer.echo(json.dumps({kind: figures(each, rates) for kind, each in totals.items()}, indent=1))
            return
        console = Console(width=WIDTH)
        ranks = [Degrees.of(text).ranks for text in (train, generate)]
        title = f"{model}: {train} on {ranks[0]:,} ranks to {generate} on {ranks[1]:,}"
        console.print(title, style="bold", highlight=False)
        console.print(by_kind(tensors, totals, rates))
        for line in verdict(totals["all"], rates):
            console.print(line, highlight=False)


def rated(latency: float, message: float, link: float, network: float, memory: float, host: int | None) -> Rates:
    """The rates; hosts are of the usual size where none is given."""
    return Rates(latency, message, link, network, memory, DEFAULT.host if host is None else host)


def mapped(model: str, train: str, generate: str, host: int | None) -> list[Move]:
    """A model's tensors with their layouts."""
    return moves(parameters(model), Degrees.of(train), Degrees.of(generate), host)


@bench.callback()
def rows_on_gpus(
    context: typer.Context,
    only: Annotated[str, typer.Option("--rows", help="Only rows whose name contains this.")] = "",
    limit: Annotated[
        float | None, typer.Option(help="Seconds after which the run is ended; left out, it follows from the rows.")
    ] = None,
) -> None:
    """Time restripe on the GPUs of this host beside the same sends and receives issued by hand; `bench plan` needs no GPU."""
    if context.invoked_subcommand is not None:
        return
    console = Console(width=WIDTH)
    with refused():
        ranks = gpus()
        found = chosen(only, ranks)
        for result in results(found, restripes, ranks, allowed(found) if limit is None else limit):
            console.print(table(result))
        console.print(left_out(ranks))


@bench.command("plan")
def bench_plan(
    ranks: Annotated[
        str, typer.Option(help="Sizes of worlds, half of them source, joined by commas.")
    ] = "64,2048,16384",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time one rank's plan and a warm look-up in large worlds; needs no GPU."""
    with refused():
        found = [planning.measure(size) for size in worlds(ranks)]
    if as_json:
        typer.echo(json.dumps([each.told() for each in found], indent=1))
    else:
        Console(width=WIDTH).print(planning.table(found))


def worlds(text: str) -> list[int]:
    """The sizes of `64,2048`; each even and at least 2."""
    found = [int(part) if part.strip().isdigit() else 0 for part in text.split(",")]
    if any(size < 2 or size % 2 for size in found):
        raise SpellingError(f"expected even sizes of worlds, joined by commas, such as 64,2048,16384, got {text!r}")
    return found


@contextmanager
def refused() -> Iterator[None]:
    """Say in a sentence what cannot be done, and end with 2."""
    try:
        yield
    except (BenchError, SpellingError, ReshardError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


@contextmanager
def drawing() -> Iterator[None]:
    """Pictures need matplotlib, which only the extra `plot` brings."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise SpellingError("a picture needs matplotlib: pip install 'restripe[plot]'") from error


def chosen(only: str, ranks: int) -> list[Row]:
    """The rows on so many ranks whose name contains the text; BenchError where none does."""
    every = rows(ranks)
    found = [row for row in every if only in row.name]
    if not found:
        raise BenchError(f"no row on {ranks} ranks is named {only!r}; there are {[row.name for row in every]}")
    return found
