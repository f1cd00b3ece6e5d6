"""`edgekit models`: what the catalog knows, and one model in full."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.errors import UsageError

if TYPE_CHECKING:
    from edgekit.config import Home
    from edgekit.manifest import Model, TensorSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", help="show this one in full: a name, or your own .onnx or .tflite file; or `add MODEL`"
    )
    parser.add_argument("to", nargs="?", metavar="MODEL", help="with `add`: the model that the artifact is of")
    parser.add_argument("--artifact", type=Path, metavar="FILE", help="with `add`: a file compiled for this model")
    parser.add_argument(
        "--requires",
        action="append",
        default=[],
        metavar="LIB",
        help="with `add`: a delegate's library it runs through",
    )
    parser.add_argument("--name", help="with `add`: the artifact's name (default: the file's)")
    parser.add_argument("--precision", default="int8", help="with `add`: what it computes in (default: int8)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    import msgspec

    from edgekit.catalog import load_model, load_models
    from edgekit.config import home

    if args.model == "add":
        return _add(args)
    if args.to or args.artifact or args.requires or args.name:
        raise UsageError("to add an artifact: edgekit models add MODEL --artifact FILE [--requires LIB]")
    if args.model:
        model = load_model(args.model)
        print(
            _json(msgspec.to_builtins(model, enc_hook=str) | _here(model, home()))
            if args.json
            else _page(model, home())
        )
        return 0
    models = load_models()
    if args.json:
        print(_json([_row(model, home()) for model in models]))
    else:
        _print_table(models, home())
    return 0


def _add(args: argparse.Namespace) -> int:
    from edgekit.build.adopt import adopt
    from edgekit.catalog import load_model
    from edgekit.config import home

    if not args.to or not args.artifact:
        raise UsageError("to add an artifact: edgekit models add MODEL --artifact FILE [--requires LIB]")
    model = load_model(args.to)
    added = adopt(model, args.artifact, home=home(), requires=args.requires, name=args.name, precision=args.precision)
    if args.json:
        import msgspec

        print(_json({"path": str(added.path), **msgspec.to_builtins(added.record)}))
    else:
        print(f"{model.name}: {added.record.name} added; `edgekit bench {args.to}` measures it here")
    return 0


def _row(model: Model, home: Home) -> dict[str, Any]:
    return {
        "name": model.name,
        "version": model.version,
        "task": model.task,
        "summary": model.summary,
        "size_bytes": model.source.size_bytes,
        "licence": model.source.licence,
        "source": _source(model),
        **_here(model, home),
    }


def _here(model: Model, home: Home) -> dict[str, Any]:
    """What of the model is on this machine; nothing is fetched and nothing is hashed to find out."""
    from edgekit.artifact import load_artifacts
    from edgekit.fetch import cached_path

    is_fetched = model.source.file is not None or cached_path(model.source, home).is_file()
    built = [artifact.record.name for artifact in load_artifacts(home.artifacts(model.name))]
    return {"is_fetched": is_fetched, "artifact_names": ["standard", *(a.name for a in model.artifacts), *built]}


def _source(model: Model) -> str:
    source = model.source
    return source.url or (f"PyPI {source.wheel}" if source.wheel else str(source.file))


def _json(value: Any) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()


def _print_table(models: tuple[Model, ...], home: Home) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("model", "what it does", "size", "here", "artifacts"):
        table.add_column(heading, justify="right" if heading == "size" else "left", overflow="fold")
    for model in models:
        here = _here(model, home)
        names = ", ".join(here["artifact_names"])
        state = "yes" if here["is_fetched"] else "on first use"
        table.add_row(model.name, model.summary, _mib(model.source.size_bytes), state, names)
    Console(width=max(80, shutil.get_terminal_size((110, 24)).columns)).print(table)


def _page(model: Model, home: Home) -> str:
    here = _here(model, home)
    source = model.source
    lines = [
        f"{model.name} {model.version}: {model.summary}",
        f"  task       {model.task}" + (f", judged by {model.metric}" if model.metric else ""),
        f"  source     {_source(model)}" + (f", member {source.member}" if source.member else ""),
        f"  file       {source.format}, {_mib(source.size_bytes)}, sha256 {source.sha256[:16]}…",
        f"  licence    {source.licence or 'not stated'}",
        f"  here       {'yes' if here['is_fetched'] else 'no; fetched on first use'}",
        f"  artifacts  {', '.join(here['artifact_names'])}",
        *(f"  input      {_tensor(spec)}" for spec in model.inputs),
        *(f"  output     {_tensor(spec)}" for spec in model.outputs),
        *(f"  axis       {name}: {', '.join(map(str, sizes))}" for name, sizes in model.axes.items()),
    ]
    if model.preprocess or model.postprocess:
        steps = [type(step).__struct_config__.tag for step in (*model.preprocess, *model.postprocess)]
        steps.insert(len(model.preprocess), "MODEL")
        lines.append(f"  steps      {' > '.join(map(str, steps))}")
    if not model.inputs:
        lines.append("  tensors    as the file itself says; nothing is declared")
    return "\n".join(lines)


def _tensor(spec: TensorSpec) -> str:
    return f"{spec.name}: {spec.dtype} [{', '.join(map(str, spec.shape))}]"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f} MiB" if size_bytes >= 2**20 else f"{size_bytes / 1024:.0f} KiB"
