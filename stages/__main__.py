"""`python -m trainwright.stages <program> --spec PATH`: run one stage program.

`--identify` prints, as JSON, the digests of what the program reads from outside the store.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pydantic import ValidationError

from trainwright.stages.contract import ExitCode, StageError, UsageError, read_spec
from trainwright.stages.registry import PROGRAMS
from trainwright.stages.runner import (
    configure_logging,
    finish,
    parse_params,
    program_named,
    run_spec,
)


def main(argv: list[str] | None = None) -> ExitCode:
    """Parse the command line and run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainwright.stages", description=__doc__)
    parser.add_argument("program", help=f"one of {', '.join(PROGRAMS)}")
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--spec", type=Path, help="path of a StageSpec (JSON)")
    group.add_argument("--identify", type=Path, help="path of the program's parameters (JSON)")
    arguments = parser.parse_args(argv)
    try:
        if arguments.identify:
            return _identify(arguments.program, arguments.identify)
        return _run(arguments.program, arguments.spec)
    except StageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _identify(name: str, path: Path) -> ExitCode:
    program = program_named(name)
    params = parse_params(program, json.loads(path.read_text()))
    print(json.dumps(program.identify(params) if params.reads_outside() else {}))
    return ExitCode.OK


def _run(name: str, path: Path) -> ExitCode:
    program_named(name)
    configure_logging()
    try:
        spec = read_spec(path)
    except (OSError, ValidationError) as error:
        raise UsageError(f"{path} is not a stage spec: {error}") from None
    if spec.program != name:
        raise UsageError(f"{path} is a spec for {spec.program!r}, not for {name!r}")
    return run_spec(spec)


if __name__ == "__main__":
    finish(main())
