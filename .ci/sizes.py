"""House limits: module <= 300 lines, function <= 60 (style 2.2). Exit 1 and name each offender."""

import ast
import sys
from pathlib import Path

offenders = []
for path in sorted([*Path("edgekit").rglob("*.py"), *Path("tui").rglob("*.py")]):
    text = path.read_text(encoding="utf-8")
    if (lines := text.count("\n")) > 300:
        offenders.append(f"{path}: {lines} lines")
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (size := node.end_lineno - node.lineno + 1) > 60
        ):
            offenders.append(f"{path}:{node.lineno}: {node.name} has {size} lines")
print("\n".join(offenders) or "sizes: every module <= 300 lines, every function <= 60")
sys.exit(bool(offenders))
