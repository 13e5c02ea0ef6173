"""The solver of the contracts' proofs. Runs several solvers in turn and prints the first answer.

    python tests/contracts/solve.py QUERY.smt2

Prints sat and the model, unsat, or unknown, as halmos expects. Run in the environment of halmos. Yices answers most
queries quickly but does not finish on sums of many words, which cvc5 reads as sums of integers. Bitwuzla takes the
rest.
"""

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Final

YICES: Final = (str(Path(sys.executable).with_name("yices-smt2")), "--smt2-model-format", "--bvconst-in-decimal")
TURNS: Final = (("yices", 3), ("cvc5 iand", 10), ("cvc5 sum", 30), ("bitwuzla", 30), ("yices", 60), ("cvc5 sum", 300))


def by_cvc5(path: str, translation: str) -> None:
    import cvc5  # noqa: PLC0415 - a solver of another turn is not loaded

    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("solve-bv-as-int", translation)
    solver.setOption("produce-models", "true")
    parser = cvc5.InputParser(solver)
    parser.setFileInput(cvc5.InputLanguage.SMT_LIB_2_6, path)
    while not (command := parser.nextCommand()).isNull():
        sys.stdout.write(command.invoke(solver, parser.getSymbolManager()))


def by_bitwuzla(path: str) -> None:
    import bitwuzla  # noqa: PLC0415

    options = bitwuzla.Options()
    options.set(bitwuzla.Option.PRODUCE_MODELS, True)
    # Queries request the model even when none exists. The answer has been printed before that.
    with contextlib.suppress(bitwuzla.BitwuzlaException):
        bitwuzla.Parser(bitwuzla.TermManager(), options).parse(path)


def answer(path: str) -> str:
    for solver, seconds in TURNS:
        command = [*YICES, path] if solver == "yices" else [sys.executable, __file__, path, solver]
        try:
            said = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False).stdout
        except subprocess.TimeoutExpired:
            continue
        if said.startswith(("sat", "unsat")):
            return said
    return "unknown\n"


def main(path: str, solver: str = "") -> None:
    match solver.split():
        case []:
            sys.stdout.write(answer(path))
        case ["cvc5", translation]:
            by_cvc5(path, translation)
        case _:
            by_bitwuzla(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
